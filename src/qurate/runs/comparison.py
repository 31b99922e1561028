"""Is it helping? The adapted model against S+T, on labelled target images that neither saw."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from torch import Tensor

from qurate.report.run.record import BaselineComparison
from qurate.selection.crossfit import Fold, HeldOut, draw_folds, shuffle_classes

FOLDS = 3
"""Folds over the labelled images where they are few. Our choice: with the usual three shots, two stay to train on."""
ENOUGH = 100
"""Images in a third of the labelled ones from which on that third is held out once, instead of in folds. Our choice."""


@dataclass(frozen=True, eq=False)
class Plan:
    """Which labelled target images are held out.

    Args:
        how: In words, for the page.
        folds: Positions in D_t, one tensor for each pair of trainings; none where there are too few images.
    """

    how: str
    folds: tuple[Tensor, ...]


def plan_comparison(labels: Tensor, *, seed: int) -> Plan:
    """Choose held-out images; every class keeps at least one to train on.

    Args:
        labels: Of D_t, (N,) int64.
        seed: Decides which images.
    """
    place, size = shuffle_classes(labels, seed=seed)
    third = ((place % FOLDS == 0) & (size >= 2 * FOLDS)).nonzero().squeeze(1)
    if len(third) >= ENOUGH and bool((size >= 2 * FOLDS).all()):
        return Plan("held-out images", (third,))
    return Plan("k-fold over the labelled images", draw_folds(labels, FOLDS, seed=seed))


def compare(folds: Sequence[Fold], how: str) -> BaselineComparison | None:
    """Count who is right on the held-out images.

    Args:
        folds: Of `cross_fit`.
        how: The images were held out, in words.

    Returns:
        None where no image could be held out.
    """
    if not folds:
        return None
    held_out = HeldOut.join([fold.held_out for fold in folds])
    adapted, baseline = (
        (said.argmax(dim=1) == held_out.labels).tolist() for said in (held_out.adapted, held_out.baseline)
    )
    return judge(adapted, baseline, how)


def judge(adapted: Sequence[bool], baseline: Sequence[bool], how: str) -> BaselineComparison:
    """Two models on the same images, with the uncertainty of the difference said."""
    low, high = paired_interval(adapted, baseline)
    verdict: Literal["helps", "unclear", "harms"] = "helps" if low > 0 else "harms" if high < 0 else "unclear"
    n = len(adapted)
    return BaselineComparison(sum(adapted) / n, sum(baseline) / n, n, low, high, how, verdict)


def paired_interval(first: Sequence[bool], second: Sequence[bool]) -> tuple[float, float]:
    """95 % interval of the difference of two shares that were measured on the same images.

    With b images where only the first is right, c where only the second is, each raised by 1/2, and n raised by 2:
    (b - c) / n +- 1.96 sqrt(b + c - (b - c)^2 / n) / n. Agresti and Min, "Simple improved confidence intervals for
    comparing matched proportions", 2005; it holds for few images too, and is not empty where both agree on all.
    """
    b = sum(one and not other for one, other in zip(first, second, strict=True)) + 0.5
    c = sum(other and not one for one, other in zip(first, second, strict=True)) + 0.5
    n = len(first) + 2
    middle = (b - c) / n
    half = 1.96 * math.sqrt(b + c - (b - c) ** 2 / n) / n
    return max(-1.0, middle - half), min(1.0, middle + half)
