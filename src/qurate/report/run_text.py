"""The outcome of a run, and what answers changed, in sentences."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from qurate.report.page import count, percent, signed
from qurate.report.run_tables import moved_in
from qurate.run_results import BaselineComparison, Gain, Improvement, RunAnswers, RunRecord

CONFUSIONS = 10
"""Rows of the table of what was taken for what."""
WARNINGS = 5
"""Classes of which it is said that they fell or grew."""
_HEADLINES = {
    "helps": ("good", "Adaptation helped"),
    "unclear": ("open", "It is not clear whether adaptation helped"),
    "harms": ("bad", "Adaptation looks harmful here"),
    "same": ("open", "Adaptation changed no prediction"),
}
_NOT_COMPARED = (
    "There were too few labelled target images to compare the adapted model with plain training (S+T), which learns "
    "from the labelled images alone.",
    "Label some of the images at the end of this page and run again to find out.",
)


@dataclass(frozen=True)
class PageOutcome:
    """The first section of the page: its tone ('good', 'open' or 'bad'), the verdict, and what that rests on."""

    tone: str
    headline: str
    text: tuple[str, ...]


def outcome(
    comparison: BaselineComparison | None, no_comparison: str = "", answers: RunAnswers | None = None
) -> PageOutcome:
    """Is it helping? The answer, its uncertainty and what to do.

    Args:
        comparison: With S+T; None where there is none.
        no_comparison: Why there is none, as a sentence; too few labelled images unless given.
        answers: What the run learned from people, if anything.
    """
    if comparison is None:
        if answers is not None and answers.corrections is not None:
            headline = f"The model has learned from {count(answers.total, 'answer')}"
            tone, better = _is_better(answers)
            measured = improvement_in_words(answers.improvement, answers.not_measured)
            return PageOutcome(tone, f"{headline}{better}", (measured, no_comparison))
        if no_comparison:
            return PageOutcome("open", "Whether adaptation helped was not measured", (no_comparison,))
        return PageOutcome("open", "Whether adaptation helped could not be measured", _NOT_COMPARED)
    found = comparison
    estimate = (
        "Compared with plain training (S+T), which learns from the labelled images alone, the adapted model's accuracy "
        f"on images like the unlabelled ones differs by about {_interval(found.gain)}. "
        "Where all labels were known, 93 % of such intervals contained the true difference."
    )
    measured = (
        f"On {count(found.images, 'labelled target image')} that neither was trained on ({found.how}) the adapted "
        f"model is right on {percent(found.adapted, 1)} and plain training on {percent(found.baseline, 1)}. They "
        f"predict different classes for {percent(found.disagreement, 1)} of the unlabelled images, and no difference "
        f"can be larger than that; the predicted proportions of the classes differ by {percent(found.moved, 1)}."
    )
    tone, headline = _HEADLINES[found.verdict if found.disagreement else "same"]
    return PageOutcome(tone, headline, (estimate, measured, _advice(found)))


def _advice(found: BaselineComparison) -> str:
    if not found.disagreement:
        return "Both models give every unlabelled image the same class, so it does not matter which of them is used."
    if found.verdict == "helps":
        return "The whole interval is above zero, so use the adapted model."
    if found.verdict == "harms":
        return (
            "The whole interval is below zero, so do not use the adapted model. Use plain training: its model and its "
            "predictions are in the folder baseline of this run. Or label more images, which `qurate suggest` chooses, "
            "and run again."
        )
    return f"The interval includes zero, so this may be chance. {what_to_label(found)} {_meanwhile(found)}"


def what_to_label(found: BaselineComparison) -> str:
    """What this many labelled images can show, and how many more would show enough."""
    labeled = count(found.images, "labelled image")
    if math.isfinite(found.gain.smallest):
        can = f"With {labeled}, only a gain of about {_points(found.gain.smallest)} or more can be seen."
    else:
        can = f"With {labeled}, no gain can be seen."
    if found.wanted is None:
        return can
    if found.more is None:
        return f"{can} One of {_points(found.wanted)} is too small to be seen by labelling more."
    return (
        f"{can} To see one of {_points(found.wanted)}, add about {found.more:,} more of each class, taken at random, "
        "to the labelled images, and run again."
    )


def _meanwhile(found: BaselineComparison) -> str:
    differ = f"The two differ on {percent(found.disagreement, 1)} of the unlabelled images"
    if found.gain.estimate >= 0:
        use = "For now use the adapted model, for the estimate is not below zero."
    else:
        use = "For now use plain training, in the folder baseline of this run, for the estimate is below zero."
    return f"{use} {differ}: look at the classes whose share changed most before you rely on either."


def _interval(gain: Gain) -> str:
    low, high = signed(gain.low * 100, 1), signed(gain.high * 100, 1)
    return f"{signed(gain.estimate * 100, 1)} points (stated 95 % interval: between {low} and {high})"


def _points(gain: float) -> str:
    number = gain * 100
    text = f"{number:.0f}" if number >= 9.5 else f"{number:.1f}".removesuffix(".0")
    return "1 point" if text == "1" else f"{text} points"


def class_warnings(record: RunRecord) -> list[str]:
    """Which classes fell or grew by adaptation more than chance explains, and what to do; empty where none did."""
    moved = moved_in(record)
    if not moved:
        return []
    lines = [
        f"'{each.label}' {'fell' if each.now < each.before else 'grew'} from {each.before:,} to "
        f"{count(each.now, 'prediction')} by adaptation, compared with plain training (S+T)."
        for each in moved[:WARNINGS]
    ]
    if (left := len(moved) - WARNINGS) > 0:
        lines.append(f"{count(left, 'more class')} moved as well; all are marked in the table of classes.")
    it = "it" if len(moved) == 1 else "them"
    return [
        *lines,
        f"That is more than chance explains. Look at the images, label a few more of {it} (`qurate suggest`), or use "
        "the plain model in the folder baseline of this run.",
    ]


def flagged_in_words(record: RunRecord) -> tuple[str, ...]:
    """How many images fit none of the classes, how sure that is, and what to do; empty where it was not looked for."""
    if (found := record.flagged) is None:
        return ()
    compared = f"compared with {count(found.held_out, 'labelled image')} that {_were(found.held_out)} held out"
    images = len(record.predictions)
    about, least = count_unknown(record)
    in_all = f"about {about:,} of {images:,} may fit none of your classes"
    if not found.flagged and about:
        return (
            f"Of the unlabelled images {in_all}, and at least {least:,} with a confidence of 95 %. Which ones cannot "
            f"be told with {count(found.held_out, 'labelled image')}, so none was left out of training.",
            "Answer 'none' about some with `qurate open RUN`, and learn from the answers with `qurate adapt --from "
            "RUN`; RUN is the folder of this run. Or label more target images and run again.",
        )
    if not found.flagged:
        return (
            f"No image was found that fits none of your classes, {compared}. The fewer those are, the further from "
            "all classes an image must be to be found.",
        )
    seem, they = ("seems", "It was") if found.flagged == 1 else ("seem", "They were")
    return (
        f"{count(found.flagged, 'image')} of {images:,} {seem} to fit none of your classes, {compared}. {they} left "
        f"out of training. Of those flagged, about 1 in {round(1 / found.level)} does fit one.",
        *([f"In all {in_all}; the others cannot be told from images of the classes."] if about > found.flagged else []),
        "To find them more surely, answer 'none' about some with `qurate open RUN`, and learn from the answers with "
        "`qurate adapt --from RUN`; RUN is the folder of this run. Or remove them from the folder of unlabelled images "
        "and run again.",
    )


def issues_in_words(record: RunRecord) -> tuple[str, ...]:
    """How many labels are contradicted, what that means, and what to do."""
    issues, images = record.label_issues, len(record.source) + len(record.labeled)
    if issues.empty:
        return (
            f"No label of the {images:,} labelled images was found that models contradict which had not learned from "
            "that image.",
        )
    parts = {part: int((issues["part"] == part).sum()) for part in ("source", "labeled")}
    where = " and ".join(
        f"{number:,} in the {name}"
        for name, number in (("source", parts["source"]), ("labelled target", parts["labeled"]))
        if number
    )
    return (
        f"{count(len(issues), 'label')} of {images:,} labelled images may be wrong: {where}. Models that had not "
        "learned from that image predict another class, and are at least as sure of it as they are, on average, of "
        "images that are labelled with it.",
        "Not all of them are wrong: models err too, most of all where classes resemble each other. Look at the worst "
        "first, and stop where the labels are right.",
    )


def count_unknown(record: RunRecord) -> tuple[int, int]:
    """How many images fit none of the classes, about and at least, whether they can be told or not; else 0."""
    if (found := record.flagged) is None:
        return 0, 0
    images = len(record.predictions)
    about, least = (round((1 - share) * images) for share in (found.share, found.highest_share))
    return (about, least) if least else (0, 0)


def _were(number: int) -> str:
    return "was" if number == 1 else "were"


def how_sure(record: RunRecord) -> tuple[str, ...]:
    """What the probabilities of the page mean, one sentence each."""
    calibration, held_out = record.calibration, record.held_out
    if calibration.by == "nothing":
        return (
            "The probabilities are not calibrated: no labelled target images were held out to see how often the model "
            "is right when it is sure. They are usually too high, so use them to rank images, not as chances.",
        )
    was_changed = "made higher" if calibration.temperature < 1 else "made lower"
    scaled = f"were {was_changed} by one number for all: the network's logits are divided by"
    if calibration.temperature == 1 and calibration.by != "held-out images":
        if calibration.by == "the run before":
            return (
                "The probabilities are as they were trained: their mean is no higher than that of the run before, "
                "whose probabilities were calibrated, so they were not made lower. How often the model is right after "
                "the answers was not measured.",
            )
        return (
            "No labelled target image could be held out, so how often the model is right is not known. The "
            "probabilities are as they were trained: their mean is no higher than the share of images on which plain "
            "training (S+T) agrees, so they were not made lower. With two or more labelled images per class they would "
            "be measured.",
        )
    if calibration.by == "the run before":
        return (
            f"Its probabilities {scaled} {calibration.temperature:.2f}, such that it is as sure, on average, as the "
            "run before was, whose probabilities were calibrated. How often it is right after the answers was not "
            "measured.",
        )
    if calibration.by == "agreement with S+T":
        return (
            "No labelled target image could be held out, so how often the model is right is not known. Its "
            f"probabilities {scaled} {calibration.temperature:.2f}, such that it is as sure, on average, as plain "
            "training (S+T) agrees with it. With two or more labelled images per class they would be measured.",
        )
    right, before, after = (float(held_out[name].mean()) for name in ("right", "uncalibrated", "probability"))
    return (
        f"On {count(len(held_out), 'labelled target image')} that it was not trained on, the model was right on "
        f"{percent(right, 1)}. It was {percent(before, 1)} sure of them on average, and is {percent(after, 1)} sure "
        f"since its probabilities were calibrated: the network's logits are divided by {calibration.temperature:.2f}.",
        "The figure shows them in groups. What lies on the line is right as often as the model says.",
    )


def describe_center_prob(reward_config: Mapping[str, Any]) -> tuple[str, str]:
    """What p_f of Eq. (4) compares a label with: in full for a sentence, and in short for a card.

    Args:
        reward_config: Of the run; defines p_f.
    """
    if reward_config.get("center") == "centers":
        return "the centres of the classes", "class centres"
    number = f"{reward_config['neighbors']} " if "neighbors" in reward_config else ""
    return f"the {number}target images nearest to it", "neighbours"


def answers_in_words(found: RunAnswers) -> tuple[str, ...]:
    """The answers, how right the asked model was, and what changed; one or two sentences each."""
    sentences = [_kinds(found), *_accuracy_before(found)]
    if found.labeled:
        sentences.append(
            f"The new model gives the class that it was told to {found.right_now:,} of {found.labeled:,}. It has "
            "learned from these images, so that is no accuracy."
        )
    if (corrections := found.corrections) is not None:
        sentences.append(
            f"Of the {count(corrections.positives, 'pseudo-label')} that the previous run trusted, people confirmed "
            f"{corrections.confirmed:,} and rejected {len(corrections.left):,}. The confirmed ones are labels now; the "
            "rejected ones are trusted no longer."
        )
        if corrections.open:
            sentences.append(
                f"The prediction changed for {corrections.changed:,} of {corrections.open:,} images without an answer "
                f"({percent(corrections.changed / corrections.open)})."
            )
    return tuple(sentences)


def _is_better(found: RunAnswers) -> tuple[str, str]:
    """Tone and end of the headline, by whether the model is better than that of the run before."""
    if (better := found.improvement) is None or better.low <= 0 <= better.high:
        return "open", "; whether it is better is not clear"
    return ("good", " and is better") if better.low > 0 else ("bad", " and is worse")


def improvement_in_words(better: Improvement | None, not_measured: str) -> str:
    """Whether the model is better than that of the run before, by how much, how sure that is, and what to do."""
    if better is None:
        return (
            f"Whether the new model is better than the run before is not known. {not_measured} Labelled images "
            "that no run was given would tell: `qurate evaluate` measures each run on them."
        )
    low, high = signed(better.low * 100, 1), signed(better.high * 100, 1)
    measured = (
        f"On {count(better.images, 'image')} with an answer that were drawn at random, models like the new one that "
        f"had not learned from them are right on {percent(better.now, 1)}, and the run before on "
        f"{percent(better.before, 1)}: {signed((better.now - better.before) * 100, 1)} points (95 % interval: between "
        f"{low} and {high})."
    )
    if better.low > 0:
        return f"{measured} The whole interval is above zero, so use the new model."
    if better.high < 0:
        return f"{measured} The whole interval is below zero, so stay with the run before."
    return f"{measured} The interval includes zero, so this may be chance. More answers would tell."


def _kinds(found: RunAnswers) -> str:
    parts = []
    if found.labeled:
        parts.append(f"{found.labeled:,} got a class and joined the labelled images")
    if found.none:
        parts.append(f"{found.none:,} {_are(found.none)} of no class")
    if found.wrong:
        it = "it" if found.wrong == 1 else "them"
        parts.append(f"{found.wrong:,} {_are(found.wrong)} not what the model took {it} for")
    text = f"People answered about {count(found.total, 'image')}: {', '.join(parts)}."
    if left := found.none + found.wrong:
        text += f" The {left:,} without a class left the unlabelled images and {_are(left)} not learned from."
    if found.earlier:
        text += f" {count(found.earlier, 'answer')} besides, from which the previous run had learned, still hold."
    return text


def _are(number: int) -> str:
    return "is" if number == 1 else "are"


def _accuracy_before(found: RunAnswers) -> Iterator[str]:
    if found.judged:
        known = "" if found.judged == found.total else " of which that is known"
        text = (
            f"The model that was asked had been right on {found.right:,} of {found.judged:,} images{known} "
            f"({percent(found.right / found.judged)})."
        )
        if chosen := found.judged - found.random:
            text += f" {chosen:,} of them {_were(chosen)} not drawn at random, so that is not its accuracy."
        yield text
    if not found.random:
        yield "None of them was drawn at random, so they do not tell how often that model is right on all images."
        return
    yield (
        f"On those that were drawn at random it had been right on {found.random_right:,} of {found.random:,} "
        f"({percent(found.random_right / found.random)}), 95 % interval {percent(found.random_low)} to "
        f"{percent(found.random_high)}. If they are of one batch of questions, and all of it was answered, that is an "
        "honest estimate of its accuracy on all unlabelled images. Later batches are drawn from what is left, which is "
        "easier."
    )
