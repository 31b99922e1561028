"""Is it helping? Who is held out, and what the page is told."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from qurate.report.run_text import smallest_in_words
from qurate.run_results import Gain
from qurate.runs.comparison import compare, gain_worth_seeing, moved_proportions, plan_comparison
from qurate.selection.crossfit import HeldOut


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


def test_who_is_right_is_counted_over_all_folds() -> None:
    labels = torch.tensor([0, 1, 2])
    right, wrong = torch.eye(3).log(), torch.eye(3).roll(1, dims=1).log()
    folds = [HeldOut(labels, labels, said, wrong) for said in (right, right, wrong)]
    found = compare(folds, "in turn", right, wrong)
    assert found is not None
    assert found.adapted == pytest.approx(6 / 9)
    assert (found.baseline, found.images, found.how) == (0.0, 3, "in turn")
    assert (found.disagreement, found.moved) == (1.0, 0.0)
    assert compare([], "in turn", right, wrong) is None


def test_what_is_not_clear_says_what_would_make_it_so() -> None:
    labels = torch.arange(12) % 3
    said = (2 * torch.eye(3)[labels]).log_softmax(dim=1)
    other = said.clone()
    other[0] = said[1]
    found = compare([HeldOut(torch.arange(12), labels, said, other)], "in turn", said, other)
    assert found is not None
    assert found.verdict == "unclear"
    assert found.wanted is not None
    assert found.more is None or found.more > 0


def test_models_that_say_the_same_leave_nothing_to_label_for() -> None:
    labels = torch.arange(6) % 3
    said = torch.eye(3)[labels].log_softmax(dim=1)
    found = compare([HeldOut(torch.arange(6), labels, said, said)], "in turn", said, said)
    assert found is not None
    assert (found.verdict, found.wanted, found.more) == ("unclear", None, None)
    assert "does not matter which" in smallest_in_words(found)


@pytest.mark.parametrize(
    ("estimate", "smallest", "wanted"), [(-0.034, 0.1, 0.03), (0.002, 0.1, 0.05), (0.002, math.inf, 0.01)]
)
def test_a_gain_worth_seeing_is_one_that_may_be_there(estimate: float, smallest: float, wanted: float) -> None:
    assert gain_worth_seeing(Gain(estimate, -0.1, 0.1, 0.5, smallest)) == wanted


def test_proportions_move_by_what_changes_sides() -> None:
    first, second = torch.tensor([0, 0, 1, 2]), torch.tensor([0, 1, 1, 1])
    assert moved_proportions(first, second, 3) == 0.5
    assert moved_proportions(first, first.flip(0), 3) == 0
