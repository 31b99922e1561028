"""Numbers of a run in plain words."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from qurate.report.run.record import Comparison

_SPACE = "\u00a0"  # keeps a number and its unit on one line
_DASH = "\u2013"
_MINUS = "\u2212"


@dataclass(frozen=True)
class Outcome:
    """What the page says first.

    Args:
        tone: 'good', 'open' or 'bad'.
        headline: The verdict in one sentence.
        text: What it rests on, a sentence each.
    """

    tone: str
    headline: str
    text: tuple[str, ...]


def percent(share: float) -> str:
    """0.934 as '93 %'; what is nearly none or nearly all is not rounded to it."""
    if not math.isfinite(share):
        return "unknown"
    if 0 < share < 0.01:
        return f"under 1{_SPACE}%"
    if 0.99 < share < 1:
        return f"over 99{_SPACE}%"
    return f"{share * 100:.0f}{_SPACE}%"


def exact_percent(share: float) -> str:
    """0.9342 as '93.4 %'."""
    return f"{share * 100:.1f}{_SPACE}%"


def signed(number: float, digits: int) -> str:
    """With its sign, and a minus that is as wide as a plus."""
    if not math.isfinite(number):
        return _DASH
    text = f"{number:+.{digits}f}"
    if float(text) == 0:
        return text[1:]
    return text.replace("-", _MINUS)


def count(number: int, noun: str) -> str:
    """'1 image', '2,817 images', 'no images'."""
    plural = noun + ("es" if noun.endswith("s") else "s")
    return f"{number or 'no':{',' if number else ''}} {noun if number == 1 else plural}"


def outcome(comparison: Comparison | None) -> Outcome:
    """Is it helping? The answer, its uncertainty and what to do."""
    if comparison is None:
        return Outcome(
            "open",
            "Whether adaptation helped could not be measured",
            (
                "There were too few labelled target images to compare the adapted model with plain training (S+T).",
                "Label some of the images at the end of this page and run again to find out.",
            ),
        )
    found = comparison
    difference = (found.adapted - found.baseline) * 100
    images = count(found.images, "labelled target image")
    measured = (
        f"The adapted model is right on {exact_percent(found.adapted)} of {images} it was not trained on; "
        f"plain training without adaptation (S+T) on {exact_percent(found.baseline)}. "
        f"How it was measured: {found.how}."
    )
    interval = (
        f"The difference is {signed(difference, 1)} points on these images. On others like them it lies, with "
        f"95{_SPACE}% confidence, between {signed(found.low * 100, 1)} and {signed(found.high * 100, 1)} points."
    )
    headlines = {
        "helps": ("good", "Adaptation helped"),
        "unclear": ("open", "It is not clear whether adaptation helped"),
        "harms": ("bad", "Adaptation looks harmful here"),
    }
    advice = {
        "helps": "The whole interval lies above zero.",
        "unclear": "The interval includes zero, so this may be chance. More labelled target images would tell.",
        "harms": "The whole interval lies below zero: plain training does better on these images. Do not use the "
        "adapted model as it is; label some of the images at the end of this page and run again.",
    }
    tone, headline = headlines[found.verdict]
    return Outcome(tone, headline, (measured, interval, advice[found.verdict]))


def why_trusted(
    classifier_prob: float, center_prob: float, entropy_drop: float | None, reward_config: Mapping[str, Any]
) -> str:
    """The three terms of phi, Eq. (4), as one sentence.

    Args:
        classifier_prob: p_c.
        center_prob: p_f.
        entropy_drop: Delta_e; 0 or NaN where it was not measured, None to say nothing of it.
        reward_config: Of the run; says what p_f was made of.
    """
    reasons = [
        f"The classifier is {percent(classifier_prob)} sure",
        f"{_witness(reward_config)} agree {percent(center_prob)}",
        *([] if entropy_drop is None else [_effect(entropy_drop)]),
    ]
    return "; ".join(reasons) + "."


def _witness(reward_config: Mapping[str, Any]) -> str:
    center = reward_config.get("center")
    if center == "neighbors":
        return f"its {reward_config.get('neighbors', '')} nearest target images".replace("  ", " ")
    return "the class centres" if center == "centers" else "nearby target images"


def _effect(entropy_drop: float) -> str:
    if not math.isfinite(entropy_drop) or entropy_drop == 0:
        return "its effect on the other predictions was not measured"
    if entropy_drop > 0:
        return f"learning it made the other predictions surer (entropy fell by {_small(entropy_drop)})"
    return f"learning it made the other predictions less sure (entropy rose by {_small(-entropy_drop)})"


def _small(number: float) -> str:
    return f"{number:.3f}" if number >= 0.001 else "less than 0.001"
