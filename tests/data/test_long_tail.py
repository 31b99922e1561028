from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tests.data.files import image_files
from torch import Tensor

from qurate.data.images import ImageFiles
from qurate.data.samples import DataError, Labeled, SealedLabels, Split, Unlabeled
from qurate.data.suites import thin_to_tail

class_sizes = st.lists(st.integers(1, 40), min_size=2, max_size=8)
ratios, seeds = st.integers(1, 60), st.integers(0, 2**32 - 1)


def split_of(sizes: list[int]) -> Split:
    """The only number of a sample of D_u is its position; classes take turns as far as they go."""
    labels = torch.tensor(sorted((i for i, size in enumerate(sizes) for _ in range(size)), key=lambda i: i % 3))
    known = Labeled(torch.zeros(len(sizes), 1), torch.arange(len(sizes)))
    unlabeled = Unlabeled(torch.arange(len(labels))[:, None].float(), SealedLabels(labels))
    return Split(tuple(f"class {i}" for i in range(len(sizes))), known, known, unlabeled, known)


def positions(split: Split) -> list[int]:
    assert isinstance(split.target_unlabeled.inputs, Tensor)
    return [int(i) for i in split.target_unlabeled.inputs.flatten()]


def truth(split: Split) -> Tensor:
    assert split.target_unlabeled.sealed is not None
    return split.target_unlabeled.sealed.open_for_evaluation()


@given(class_sizes, ratios, seeds)
def test_it_is_a_subset_in_order_whose_labels_follow_their_samples(sizes: list[int], ratio: int, seed: int) -> None:
    whole = split_of(sizes)
    thin = thin_to_tail(whole, ratio, seed)
    kept = positions(thin)
    assert kept == sorted(set(kept))
    assert set(kept) <= set(positions(whole))
    assert truth(thin).tolist() == truth(whole)[kept].tolist()
    assert set(truth(thin).tolist()) == set(range(len(sizes)))  # at least one of each class


@given(class_sizes, ratios, seeds)
def test_counts_are_a_geometric_tail_limited_by_what_is_there(sizes: list[int], ratio: int, seed: int) -> None:
    counts = torch.bincount(truth(thin_to_tail(split_of(sizes), ratio, seed))).tolist()
    equal = torch.bincount(
        truth(thin_to_tail(split_of([100] * len(sizes)), 60, seed))
    )  # shows the order of the classes
    for rank, label in enumerate(equal.argsort(descending=True).tolist()):
        most = round(max(sizes) * ratio ** (-rank / (len(sizes) - 1)))
        assert counts[label] == min(sizes[label], max(1, most))


@pytest.mark.parametrize("ratio", [2, 5, 20])
def test_equal_classes_have_the_ratio_that_was_asked_for(ratio: int) -> None:
    counts = torch.bincount(truth(thin_to_tail(split_of([100] * 5), ratio, 3)))
    assert int(counts.max()) == 100
    assert int(counts.min()) == 100 // ratio
    steps = counts.sort().values.double().log().diff()
    assert float(steps.max() - steps.min()) < 0.2  # but for rounding, each is the same part of the one before


def test_a_ratio_of_one_is_the_split_itself() -> None:
    whole = split_of([9, 4])
    assert thin_to_tail(whole, 1, 0) is whole


@given(class_sizes, ratios, ratios, seeds)
def test_a_larger_ratio_of_the_same_seed_keeps_a_subset(sizes: list[int], one: int, other: int, seed: int) -> None:
    smaller, larger = (set(positions(thin_to_tail(split_of(sizes), r, seed))) for r in sorted((one, other)))
    assert larger <= smaller


def test_the_seed_decides_the_samples_and_the_order_of_the_classes() -> None:
    whole = split_of([30] * 6)
    assert positions(thin_to_tail(whole, 10, 1)) == positions(thin_to_tail(whole, 10, 1))
    assert positions(thin_to_tail(whole, 10, 1)) != positions(thin_to_tail(whole, 10, 2))
    largest = {int(torch.bincount(truth(thin_to_tail(whole, 10, seed))).argmax()) for seed in range(60)}
    assert largest == set(range(6))


def test_the_other_parts_and_the_global_generator_are_left_alone() -> None:
    whole, before = split_of([30] * 6), torch.get_rng_state()
    thin = thin_to_tail(whole, 10, 1)
    assert (thin.source, thin.target_labeled, thin.validation) == (whole.source, whole.target_labeled, whole.validation)
    assert len(whole.target_unlabeled) == 180
    assert torch.equal(torch.get_rng_state(), before)


def test_image_files_are_thinned_like_tensors() -> None:
    whole = split_of([20, 20])
    files = image_files([f"{i}.jpg" for i in range(40)])
    listed = replace(whole, target_unlabeled=Unlabeled(files, whole.target_unlabeled.sealed))
    found = thin_to_tail(listed, 4, 5).target_unlabeled.inputs
    assert isinstance(found, ImageFiles)
    assert [int(path.stem) for path in found.paths] == positions(thin_to_tail(whole, 4, 5))


@pytest.mark.parametrize(
    ("argument", "value"), [("imbalance", 0), ("imbalance", 2.5), ("imbalance", True), ("seed", -1)]
)
def test_arguments_out_of_range_are_named(argument: str, value: object) -> None:
    arguments = {"imbalance": 2, "seed": 0, argument: value}
    with pytest.raises(DataError, match=f"thin_to_tail: {argument} must be an integer of at least"):
        thin_to_tail(split_of([3, 3]), **arguments)  # type: ignore[arg-type]


def test_classes_that_nobody_knows_cannot_be_thinned() -> None:
    whole = split_of([2, 2])
    inputs = whole.target_unlabeled.inputs
    with pytest.raises(DataError, match="of 4 of 4 it is not"):
        thin_to_tail(replace(whole, target_unlabeled=Unlabeled(inputs)), 5, 0)
    partly = Unlabeled(inputs, SealedLabels(torch.tensor([0, 1, -1, 1])))
    with pytest.raises(DataError, match="of 1 of 4 it is not"):
        thin_to_tail(replace(whole, target_unlabeled=partly), 5, 0)
