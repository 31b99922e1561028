"""Is it helping? The adapted model against S+T, on labelled target images that neither saw."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import torch
from torch import Tensor

from qurate.config import MethodConfig, RunConfig, SelectionConfig
from qurate.data.samples import Labeled, Split, take
from qurate.evaluation import predict_probabilities
from qurate.methods import Method
from qurate.report.run.record import BaselineComparison
from qurate.runtime.randomness import generator
from qurate.selection.algorithm import fit
from qurate.selection.callbacks import Callback

FOLDS = 3
"""Folds over the labelled images where they are few. Our choice: with the usual three shots, two stay to train on."""
ENOUGH = 100
"""Images in a third of the labelled ones from which on that third is held out once, instead of in folds. Our choice."""

Fold = dict[str, list[bool]]
"""For 'adapted' and 'baseline', whether each held-out image was right."""


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
    place, size = _places(labels, seed)
    third = ((place % FOLDS == 0) & (size >= 2 * FOLDS)).nonzero().squeeze(1)
    if len(third) >= ENOUGH and bool((size >= 2 * FOLDS).all()):
        return Plan("held-out images", (third,))
    folds = [((place % FOLDS == number) & (size >= 2)).nonzero().squeeze(1) for number in range(FOLDS)]
    return Plan("k-fold over the labelled images", tuple(fold for fold in folds if len(fold)))


def compare(
    split: Split,
    config: RunConfig,
    plan: Plan,
    *,
    done: Sequence[Fold] = (),
    on_fold: Callable[[list[Fold]], None] | None = None,
    listen: Callable[[str, int], Callback] | None = None,
) -> BaselineComparison | None:
    """Train both models without the held-out images and count who is right on them.

    Args:
        split: D_s, D_t, D_u.
        config: The run; S+T has the same network, training and seed.
        plan: What is held out.
        done: Folds of an interrupted comparison.
        on_fold: Called after each fold with all that are done.
        listen: Called before each training with its name and number of steps; what it returns is told how it goes.

    Returns:
        None where no image can be held out.
    """
    folds = list(done)
    plain = baseline_of(config)
    for number, held_out in enumerate(plan.folds[len(folds) :], len(folds) + 1):
        part, hidden = hold_out(split, held_out)
        name = f"comparison {number} of {len(plan.folds)}"
        right = {}
        for who, title, run in (("adapted", "adapted", config), ("baseline", "S+T", plain)):
            callbacks = [listen(f"{name}, {title}", run.total_steps)] if listen else []
            right[who] = _right(fit(part, run, callbacks=callbacks).method, hidden)
        folds.append(right)
        if on_fold is not None:
            on_fold(folds)
    adapted_right = [right for fold in folds for right in fold["adapted"]]
    baseline_right = [right for fold in folds for right in fold["baseline"]]
    return judge(adapted_right, baseline_right, plan.how) if adapted_right else None


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


def hold_out(split: Split, held_out: Tensor) -> tuple[Split, Labeled]:
    """The split without some labelled target images, and those."""
    labeled = split.target_labeled
    stays = torch.ones(len(labeled), dtype=torch.bool)
    stays[held_out] = False
    kept = stays.nonzero().squeeze(1)
    part = replace(split, target_labeled=Labeled(take(labeled.inputs, kept), labeled.labels[kept]))
    return part, Labeled(take(labeled.inputs, held_out), labeled.labels[held_out])


def baseline_of(config: RunConfig) -> RunConfig:
    """S+T with the network, training and seed of a run."""
    return replace(config, method=MethodConfig.of("source_target"), selection=SelectionConfig())


def is_baseline(config: RunConfig) -> bool:
    """Whether a run is S+T itself."""
    return config.method.name == "source_target" and config.selection.selector.name == "none"


def is_fold(fold: Any, size: int) -> bool:
    """Whether it says of this many images whether either model was right."""
    right = [fold.get(who) for who in ("adapted", "baseline")] if isinstance(fold, dict) else [None]
    return all(isinstance(one, list) and len(one) == size and {*map(type, one)} <= {bool} for one in right)


def _places(labels: Tensor, seed: int) -> tuple[Tensor, Tensor]:
    """Of each image its place in a shuffle of its class, and the size of the class."""
    place, size = torch.zeros_like(labels), torch.zeros_like(labels)
    for label in labels.unique():
        members = (labels == label).nonzero().squeeze(1)
        place[members[torch.randperm(len(members), generator=generator(seed, 7, int(label)))]] = torch.arange(
            len(members)
        )
        size[members] = len(members)
    return place, size


def _right(method: Method, hidden: Labeled) -> list[bool]:
    predicted = predict_probabilities(method, hidden.inputs).argmax(dim=1)
    right: list[bool] = (predicted == hidden.labels).tolist()
    return right
