"""Is it helping? Who is held out, and how sure one can be."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from qurate.runs.comparison import compare, judge, paired_interval, plan_comparison
from qurate.selection.crossfit import Fold, HeldOut


def labels_of(*sizes: int) -> torch.Tensor:
    return torch.cat([torch.full((size,), label) for label, size in enumerate(sizes)])


def test_three_shots_are_held_out_once_each_and_two_stay() -> None:
    labels = labels_of(3, 3, 3, 3)
    plan = plan_comparison(labels, seed=0)
    assert plan.how == "k-fold over the labelled images"
    assert sorted(torch.cat(plan.folds).tolist()) == list(range(12))
    for fold in plan.folds:
        assert sorted(labels[fold].tolist()) == [0, 1, 2, 3]


@given(st.lists(st.integers(1, 9), min_size=2, max_size=6), st.integers(0, 5))
def test_every_class_keeps_an_image_to_train_on(sizes: list[int], seed: int) -> None:
    labels = labels_of(*sizes)
    held = []
    for fold in plan_comparison(labels, seed=seed).folds:
        assert bool((torch.bincount(labels[fold], minlength=len(sizes)) < torch.tensor(sizes)).all())
        held += fold.tolist()
    assert len(held) == len(set(held)) == sum(size for size in sizes if size > 1)


def test_many_labelled_images_are_held_out_at_once() -> None:
    plan = plan_comparison(labels_of(150, 160), seed=0)
    assert plan.how == "held-out images"
    assert [len(fold) for fold in plan.folds] == [50 + 54]


def test_single_shots_cannot_be_held_out() -> None:
    assert plan_comparison(labels_of(1, 1, 1), seed=0).folds == ()


def test_the_interval_is_that_of_the_formula_and_covers_the_difference() -> None:
    first = [True] * 30 + [False] * 10
    second = [True] * 20 + [False] * 20
    low, high = paired_interval(first, second)
    # b = 10.5, c = 0.5, n = 42
    assert low == pytest.approx(10 / 42 - 1.96 * (11 - 100 / 42) ** 0.5 / 42)
    assert low < 0.25 < high
    assert list(paired_interval(second, first)) == pytest.approx([-high, -low])


def test_the_interval_covers_the_truth_about_as_often_as_it_says() -> None:
    rng, inside = torch.Generator().manual_seed(0), 0
    for _ in range(400):
        shared, one, other = torch.rand(3, 60, generator=rng)
        first, second = (shared < 0.4) | (one < 0.5), (shared < 0.4) | (other < 0.3)  # 0.7 and 0.58
        low, high = paired_interval(first.tolist(), second.tolist())
        inside += low <= 0.12 <= high
    assert 0.92 <= inside / 400 <= 0.99


@pytest.mark.parametrize(
    ("adapted", "baseline", "verdict"), [(90, 60, "helps"), (60, 90, "harms"), (71, 70, "unclear"), (70, 70, "unclear")]
)
def test_the_verdict_is_where_the_interval_lies(adapted: int, baseline: int, verdict: str) -> None:
    found = judge([i < adapted for i in range(100)], [i < baseline for i in range(100)], "held-out images")
    assert (found.adapted, found.baseline, found.images) == (adapted / 100, baseline / 100, 100)
    assert found.verdict == verdict


def test_who_is_right_is_counted_over_all_folds() -> None:
    labels = torch.tensor([0, 1, 2])
    right, wrong = torch.eye(3).log(), torch.eye(3).roll(1, dims=1).log()
    none = torch.zeros(0, dtype=torch.int64)
    folds = [Fold(HeldOut(labels, labels, said, wrong), none, none) for said in (right, right, wrong)]
    found = compare(folds, "in turn")
    assert found is not None
    assert (found.adapted, found.baseline, found.images, found.how) == (6 / 9, 0.0, 9, "in turn")
    assert compare([], "in turn") is None
