"""What a finished run leaves for its report."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

import pandas as pd

from qurate.calibration import Calibration

HELD_OUT = ["probability", "uncalibrated", "right"]
"""Columns on held-out images: how sure the model is of each, with and without calibration, and whether it is right."""


@dataclass(frozen=True)
class BaselineComparison:
    """Is it helping? The adapted model against S+T on labelled target images that neither saw.

    Args:
        adapted: Accuracy of the adapted model.
        baseline: Accuracy of S+T on the same images.
        images: How many images both were measured on.
        low: Lower end of the 95 % interval of the difference.
        high: Upper end of it.
        how: 'held-out images' or 'k-fold over the labelled images'.
        verdict: Whether the interval lies above zero, around it, or below it.
    """

    adapted: float
    baseline: float
    images: int
    low: float
    high: float
    how: str
    verdict: Literal["helps", "unclear", "harms"]


@dataclass(frozen=True, eq=False)
class RunRecord:
    """Everything the page shows; files are absolute paths, or relative to the working folder.

    Args:
        title: Heading of the page.
        classes: Class names.
        source: Columns file, label.
        labeled: Columns file, label.
        predictions: Of the unlabelled images; columns file, label, probability.
        positives: Columns file, label, round, reward, phi, classifier_prob, center_prob, entropy_drop.
        rounds: Columns round, positives, new, seconds.
        embedding: A picture of the target in two dimensions, before and after; columns file, part ('source', 'labeled',
            'unlabeled'), label (predicted for 'unlabeled'), x_before, y_before, x_after, y_after.
        comparison: None where there was nothing to compare with or on.
        stopped: Why the rounds ended.
        config: The run's configuration as nested dictionaries.
        notes: Sentences on what was skipped or assumed.
        no_comparison: Why `comparison` is None, as a sentence; empty where there were too few labelled images.
        calibration: What the probabilities of `predictions` were divided by, before the softmax.
        held_out: What the adapted models said of labelled target images that they were not trained on; columns
            as `HELD_OUT` says; empty where there are none.
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
