"""The outcome of a run in plain words."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from qurate.report.numbers import count, percent, signed
from qurate.report.run.record import BaselineComparison, RunRecord

_HEADLINES = {
    "helps": ("good", "Adaptation helped"),
    "unclear": ("open", "It is not clear whether adaptation helped"),
    "harms": ("bad", "Adaptation looks harmful here"),
}
_ADVICE = {
    "helps": "The whole interval lies above zero, so this is unlikely to be chance.",
    "unclear": "The interval includes zero, so this may be chance. More labelled target images would tell.",
    "harms": "The whole interval lies below zero: plain training does better on these images. Do not use the "
    "adapted model as it is; label some of the images at the end of this page and run again.",
}
_NOT_COMPARED = (
    "There were too few labelled target images to compare the adapted model with plain training (S+T), which learns "
    "from the labelled images alone.",
    "Label some of the images at the end of this page and run again to find out.",
)

_NOT_CALIBRATED = (
    "The probabilities are not calibrated: no labelled target images were held out to see how often the model is right "
    "when it is sure. They are usually too high, so use them to rank images, not as chances."
)


@dataclass(frozen=True)
class PageOutcome:
    """What the page says first.

    Args:
        tone: 'good', 'open' or 'bad'.
        headline: The verdict in one sentence.
        text: What it rests on, one sentence each.
    """

    tone: str
    headline: str
    text: tuple[str, ...]


def outcome(comparison: BaselineComparison | None, no_comparison: str = "") -> PageOutcome:
    """Is it helping? The answer, its uncertainty and what to do.

    Args:
        comparison: With S+T; None where there is none.
        no_comparison: Why there is none, as a sentence; too few labelled images unless given.
    """
    if comparison is None:
        if no_comparison:
            return PageOutcome("open", "Whether adaptation helped was not measured", (no_comparison,))
        return PageOutcome("open", "Whether adaptation helped could not be measured", _NOT_COMPARED)
    found = comparison
    difference = (found.adapted - found.baseline) * 100
    measured = (
        f"The adapted model is right on {percent(found.adapted, 1)} of "
        f"{count(found.images, 'labelled target image')} that it was not trained on. Plain training (S+T), which "
        f"learns from the labelled images alone, is right on {percent(found.baseline, 1)}. "
        f"How it was measured: {found.how}."
    )
    interval = (
        f"The difference is {signed(difference, 1)} points on these images. On others like them it lies, with "
        f"95\u00a0% confidence, between {signed(found.low * 100, 1)} and {signed(found.high * 100, 1)} points."
    )
    return PageOutcome(*_HEADLINES[found.verdict], (measured, interval, _ADVICE[found.verdict]))


def how_sure(record: RunRecord) -> tuple[str, ...]:
    """What the probabilities of the page mean, one sentence each."""
    calibration, held_out = record.calibration, record.held_out
    if calibration.by == "nothing":
        return (_NOT_CALIBRATED,)
    was_changed = "made higher" if calibration.temperature < 1 else "made lower"
    scaled = f"were {was_changed} by one number for all: the network's logits are divided by"
    if calibration.by == "agreement with S+T":
        return (
            "No labelled target image could be held out, so how often the model is right is not known. Its "
            f"probabilities {scaled} {calibration.temperature:.2f}, such that it is as sure, on the mean, as plain "
            "training (S+T) agrees with it. With two or more labelled images per class they would be measured.",
        )
    right, before, after = (float(held_out[name].mean()) for name in ("right", "uncalibrated", "probability"))
    return (
        f"On {count(len(held_out), 'labelled target image')} that it was not trained on, the model was right on "
        f"{percent(right, 1)}, and {percent(before, 1)} sure on the mean. So its probabilities {scaled} "
        f"{calibration.temperature:.2f}. It is now {percent(after, 1)} sure of these images.",
        "The figure shows them in groups. What lies on the line is right as often as the model says.",
    )


def witnesses(reward_config: Mapping[str, Any]) -> tuple[str, str]:
    """Who else was asked about a label, p_f of Eq. (4): in full for a sentence, and in a word for a card.

    Args:
        reward_config: Of the run; says what p_f was made of.
    """
    if reward_config.get("center") == "centers":
        return "the centres of the classes", "class centres"
    number = f"{reward_config['neighbors']} " if "neighbors" in reward_config else ""
    return f"the {number}target images nearest to it", "neighbours"
