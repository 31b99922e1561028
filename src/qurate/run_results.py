"""Results of a run as plain records: the gain over S+T, what answers changed, and what the page shows."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, field, fields
from typing import Any, Literal

import pandas as pd

from qurate.calibration import Calibration

HELD_OUT = ["file", "label", "predicted", "probability", "uncalibrated", "right"]
"""Columns on held-out images: the probability of the prediction, calibrated and not, and whether it is right."""
LABEL_ISSUES = ["file", "label", "part", "given", "suggested", "probability", "given_probability"]
"""Columns of label_issues.csv: `label` is empty, for a person to fill in, `given` is the label that the image has,
`part` is 'source' or 'labeled', and `probability` that of the suggested class."""


@dataclass(frozen=True)
class Gain:
    """Accuracy of the model minus that of S+T, from -1 to 1, and its uncertainty.

    Args:
        estimate: The most probable value.
        low: Lower end of the interval that should hold it with 95 %; docs/verdict.md counts how often it does.
        high: Upper end of it.
        smallest: A true gain of this size gets a verdict half of the time; infinite where none does.
    """

    estimate: float
    low: float
    high: float
    smallest: float


@dataclass(frozen=True)
class BaselineComparison:
    """The adapted model compared with S+T, on labelled images that neither was trained on and on all unlabelled ones.

    Args:
        adapted: Share of the held-out labelled images on which the adapted model is right.
        baseline: The same for S+T.
        images: How many labelled images were held out.
        how: 'held-out images' or 'k-fold over the labelled images'.
        disagreement: Share of the unlabelled images to which the two give different classes; the gain is never more.
        moved: Share of the unlabelled images by which the predicted class proportions differ.
        gain: At the class proportions that the unlabelled images are estimated to have.
        verdict: 'helps' if the interval of `gain` is above 0, 'harms' if it is below, else 'unclear'.
        wanted: A gain worth seeing, where it is unclear; else None.
        more: How many more labelled images of each class would show it; None where no number would.
    """

    adapted: float
    baseline: float
    images: int
    how: str
    disagreement: float
    moved: float
    gain: Gain
    verdict: Literal["helps", "unclear", "harms"]
    wanted: float | None = None
    more: int | None = None

    def stored(self) -> dict[str, Any]:
        """For a JSON file, which has no infinity."""
        stored = asdict(self)
        return {**stored, "gain": {name: x if math.isfinite(x) else None for name, x in stored["gain"].items()}}

    @classmethod
    def of(cls, stored: Any) -> BaselineComparison:
        """The comparison that was stored.

        Raises:
            ValueError: If it is none.
        """
        gain = stored.get("gain") if isinstance(stored, dict) else None
        names = [{field.name for field in fields(kind)} for kind in (cls, Gain)]
        if not isinstance(gain, dict) or [{*stored}, {*gain}] != names:
            raise ValueError("comparison must be a table of all that was compared")
        shares = {name: stored[name] for name in ("adapted", "baseline", "disagreement", "moved")} | gain
        shares["smallest"] = gain["smallest"] if gain["smallest"] is not None else 1.0
        if stored["wanted"] is not None:
            shares["wanted"] = stored["wanted"]
        counts = [stored["images"], 0 if stored["more"] is None else stored["more"]]
        is_sound = all(type(x) in (int, float) and -1 <= x <= 1 for x in shares.values())
        if not is_sound or any(type(x) is not int or not 0 <= x <= 10**9 for x in counts):
            raise ValueError("a number of comparison is not one, or out of range")
        if stored["verdict"] not in ("helps", "unclear", "harms") or not isinstance(stored["how"], str):
            raise ValueError("comparison.verdict must be helps, unclear or harms")
        smallest = math.inf if gain["smallest"] is None else gain["smallest"]
        return cls(**{**stored, "gain": Gain(**{**gain, "smallest": smallest})})


@dataclass(frozen=True, eq=False)
class Corrections:
    """What answers changed since the run that another one continues from.

    Args:
        run: Its folder.
        positives: How many pseudo-labels it trusted.
        confirmed: How many of them people confirmed.
        left: Those that people rejected; columns file, label (as it was trusted) and answer (the class, 'none' or
            'wrong').
        open: Images without an answer that both models have a prediction for.
        changed: How many of these have another class now.
    """

    run: str
    positives: int
    confirmed: int
    left: pd.DataFrame
    open: int
    changed: int


@dataclass(frozen=True)
class Improvement:
    """A run that learned from answers against the run before, on images with an answer that were drawn at random.

    Args:
        images: How many.
        before: Share of them on which the model before is right.
        now: The same for models like the new one that had not learned from that image.
        low: Lower end of the 95 % interval of `now` - `before`.
        high: Upper end.
    """

    images: int
    before: float
    now: float
    low: float
    high: float


@dataclass(frozen=True, eq=False)
class RunAnswers:
    """The answers that a run learned from.

    Args:
        labeled: Images that got a class.
        none: Images of no class of the run.
        wrong: Images whose prediction was called wrong, without a class.
        earlier: Answers besides, from which the previous run had learned already.
        judged: Images of which it is known whether the model that was asked was right.
        right: On how many of them it was.
        right_now: For how many of the labelled ones the new model predicts the class of the answer.
        random: Those of the judged images that were drawn at random.
        random_right: On how many of these the model that was asked was right.
        random_low: Lower end of the 95 % interval of its accuracy.
        random_high: Upper end.
        confusions: Predicted class, true class and count; the most frequent first.
        corrections: What changed since the previous run; None where there is no previous run.
        improvement: Whether it is better than that; None where it is not known.
        not_measured: Why that is not known, as a sentence; empty where there is no previous run.
    """

    labeled: int
    none: int
    wrong: int
    earlier: int
    judged: int
    right: int
    right_now: int
    random: int
    random_right: int
    random_low: float
    random_high: float
    confusions: tuple[tuple[str, str, int], ...]
    corrections: Corrections | None = None
    improvement: Improvement | None = None
    not_measured: str = ""

    @property
    def total(self) -> int:
        """New answers."""
        return self.labeled + self.none + self.wrong


@dataclass(frozen=True)
class FlaggedImages:
    """The unlabelled images that fit none of the classes: those that can be told, and how many there are in all.

    Args:
        flagged: How many.
        level: Share of them that belongs to a class after all, about.
        held_out: How many labelled target images they were compared with.
        share: Estimated share of all unlabelled images that belong to a class.
        highest_share: It is no more than this, with a confidence of 95 %; 1 where all may belong to one.
    """

    flagged: int
    level: float
    held_out: int
    share: float
    highest_share: float = 1.0


@dataclass(frozen=True, eq=False)
class RunRecord:
    """Everything the page shows; files are absolute paths, or relative to the working folder.

    Args:
        title: Heading of the page.
        classes: Class names.
        source: Columns file, label.
        labeled: Columns file, label.
        predictions: Of the unlabelled images; columns file, label, probability, known (how well the image fits any
            class, 0 to 1, NaN where that was not measured), flagged (bool: fits none) and baseline (the class by S+T,
            empty where there is none).
        positives: Columns file, label, round, reward, phi, classifier_prob, center_prob, entropy_drop.
        rounds: Columns round, positives, new, seconds.
        embedding: A picture of the target in two dimensions, before and after; columns file, part ('source', 'labeled',
            'unlabeled'), label (predicted for 'unlabeled'), x_before, y_before, x_after, y_after.
        comparison: None where there was nothing to compare with or on.
        stopped: Why the rounds ended.
        config: The run's configuration as nested dictionaries.
        notes: Sentences on what was skipped or assumed.
        no_comparison: Why `comparison` is None, as a sentence; empty where there were too few labelled images.
        calibration: Of the probabilities of `predictions`.
        held_out: Predictions for labelled target images by models that were not trained on them; columns `HELD_OUT`.
        answers: The answers that the run learned from; None where there are none.
        flagged: Images that fit none of the classes; None where that was not looked for.
        suggested: What to label next, the most useful first, as `qurate suggest` writes it; empty where there is none.
        label_issues: Labels that models contradict which had not learned them, the worst first; columns `LABEL_ISSUES`.
        drawn: Embeddings that were drawn from class statistics in place of source images, of which there are none then.
    """

    title: str
    classes: tuple[str, ...]
    source: pd.DataFrame
    labeled: pd.DataFrame
    predictions: pd.DataFrame
    positives: pd.DataFrame
    rounds: pd.DataFrame
    embedding: pd.DataFrame
    comparison: BaselineComparison | None
    stopped: str
    config: dict[str, Any]
    notes: tuple[str, ...] = ()
    no_comparison: str = ""
    calibration: Calibration = field(default_factory=Calibration)
    held_out: pd.DataFrame = field(default_factory=lambda: pd.DataFrame(columns=HELD_OUT))
    answers: RunAnswers | None = None
    flagged: FlaggedImages | None = None
    suggested: pd.DataFrame = field(default_factory=pd.DataFrame)
    label_issues: pd.DataFrame = field(default_factory=lambda: pd.DataFrame(columns=LABEL_ISSUES))
    drawn: int = 0
