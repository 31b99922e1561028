"""Is it helping? Which labelled target images are held out, and what comes of them for the page."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from qurate.report.run.record import BaselineComparison, Gain
from qurate.runs.verdict import images_needed, judge, verdict_of
from qurate.selection.crossfit import HeldOut, draw_folds, shuffle_classes

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


def compare(folds: Sequence[HeldOut], how: str, adapted: Tensor, baseline: Tensor) -> BaselineComparison | None:
    """Judge the adapted model against S+T.

    Args:
        folds: Of `cross_fit`.
        how: The images were held out, in words.
        adapted: Log-probabilities of D_u by the adapted model, trained on all labelled images, (N_u, K).
        baseline: Those by S+T, trained on all of them too, (N_u, K).

    Returns:
        None where no image could be held out.
    """
    if not folds:
        return None
    held_out = HeldOut.join(folds)
    found = judge(held_out, adapted, baseline)
    verdict, images = verdict_of(found.gain), len(held_out.images.unique())
    wanted = more = None
    if verdict == "unclear" and found.disagreement:
        wanted = gain_worth_seeing(found.gain)
        needed = images_needed(found, images, wanted)
        more = None if needed is None else needed - images
    right = [
        float((said.argmax(dim=1) == held_out.labels).double().mean()) for said in (held_out.adapted, held_out.baseline)
    ]
    moved = moved_proportions(adapted.argmax(dim=1), baseline.argmax(dim=1), adapted.shape[1])
    return BaselineComparison(
        adapted=right[0],
        baseline=right[1],
        images=images,
        how=how,
        disagreement=found.disagreement,
        moved=moved,
        gain=found.gain,
        balanced=found.balanced,
        verdict=verdict,
        wanted=wanted,
        more=more,
    )


def gain_worth_seeing(gain: Gain) -> float:
    """The estimated gain where it is a point or more, else half of what can be seen now; in points, at least 1."""
    seen = gain.smallest if math.isfinite(gain.smallest) else 0.0
    size = abs(gain.estimate) if abs(gain.estimate) >= 0.01 else seen / 2
    return max(1, round(100 * size)) / 100


def moved_proportions(adapted: Tensor, baseline: Tensor, n_classes: int) -> float:
    """Half the sum over classes of |share by one model - share by the other|: from 0 to 1.

    Args:
        adapted: Predicted classes of D_u, (N_u,).
        baseline: The same by S+T.
        n_classes: K.
    """
    shares = [torch.bincount(named, minlength=n_classes).double() / len(named) for named in (adapted, baseline)]
    return float((shares[0] - shares[1]).abs().sum() / 2)
