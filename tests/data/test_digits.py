from __future__ import annotations

from collections.abc import Callable
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import matplotlib
import pytest
import torch
from PIL import ImageFont
from torch import Tensor

from qurate.data.digits import CLASSES, FONTS, SMALLEST, digits_split, handwritten_digits, typeset_digits
from qurate.data.samples import Inputs, Labeled, Split
from qurate.errors import ConfigError


def handwritten() -> Labeled:
    return Labeled(*handwritten_digits())


def rows(inputs: Inputs) -> Tensor:
    assert isinstance(inputs, Tensor)
    return inputs.flatten(1)


def images_of(inputs: Inputs) -> set[tuple[float, ...]]:
    """As a set: all 1797 handwritten images differ, so an image names its sample."""
    return {tuple(row) for row in rows(inputs).tolist()}


def target_parts(split: Split) -> list[Inputs]:
    parts = [split.target_labeled.inputs, split.target_unlabeled.inputs]
    return parts if split.validation is None else [*parts, split.validation.inputs]


def nearest_mean_accuracy(train: Labeled, test: Labeled) -> float:
    means = torch.stack([rows(train.inputs)[train.labels == k].mean(0) for k in range(10)])
    return float((torch.cdist(rows(test.inputs), means).argmin(1) == test.labels).float().mean())


@pytest.fixture(scope="module")
def typeset() -> Labeled:
    return typeset_digits(60, seed=0)


@pytest.mark.parametrize("make", [partial(typeset_digits, 5, seed=0), handwritten])
def test_images_are_8x8_of_17_grey_levels(make: Callable[[], Labeled]) -> None:
    digits = make()
    images = digits.inputs
    assert isinstance(images, Tensor)
    assert images.shape == (len(digits), 1, 8, 8)
    assert images.dtype == torch.float32
    assert digits.labels.dtype == torch.int64
    assert (float(images.min()), float(images.max())) == (0.0, 1.0)
    assert torch.equal(images * 16, (images * 16).round())


def test_brightness_is_alike_in_both_domains(typeset: Labeled) -> None:
    ours, theirs = rows(typeset.inputs), rows(handwritten().inputs)
    assert float(ours.mean()) == pytest.approx(float(theirs.mean()), abs=0.04)
    assert float(ours.std()) == pytest.approx(float(theirs.std()), abs=0.04)


def test_typeset_digits_are_balanced(typeset: Labeled) -> None:
    assert torch.bincount(typeset.labels).tolist() == [60] * 10


def test_handwritten_digits_are_all_there_and_all_differ() -> None:
    digits = handwritten()
    assert len(digits) == len(images_of(digits.inputs)) == 1797
    assert sorted(torch.bincount(digits.labels).tolist())[0] == 174


def test_typeset_digits_repeat_by_seed() -> None:
    first, again, other = (rows(typeset_digits(4, seed).inputs) for seed in (7, 7, 8))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)


def test_fewer_typeset_digits_are_the_first_of_more() -> None:
    assert torch.equal(rows(typeset_digits(2, 0).inputs), rows(typeset_digits(4, 0).inputs)[:20])


def test_typeset_digits_are_legible(typeset: Labeled) -> None:
    assert nearest_mean_accuracy(typeset, typeset_digits(30, seed=1)) > 0.8


def test_there_is_a_domain_gap(typeset: Labeled) -> None:
    assert 0.4 < nearest_mean_accuracy(typeset, handwritten()) < 0.8


@pytest.mark.parametrize("name", FONTS)
def test_a_font_has_ten_different_digits(name: str) -> None:
    font = ImageFont.truetype(Path(matplotlib.get_data_path()) / "fonts" / "ttf" / name, 40)
    masks = {bytes(font.getmask(digit)) for digit in CLASSES}
    assert len(masks) == 10


def test_split_repeats_by_seed() -> None:
    first, again, other = (digits_split(seed=seed, source_per_class=2, validation_shots=1) for seed in (7, 7, 8))
    for a, b, c in zip(*map(target_parts, (first, again, other)), strict=True):
        assert torch.equal(rows(a), rows(b))
        assert not torch.equal(rows(a), rows(c))
    assert torch.equal(rows(first.source.inputs), rows(again.source.inputs))
    assert not torch.equal(rows(first.source.inputs), rows(other.source.inputs))


def test_split_parts_are_balanced() -> None:
    split = digits_split(shots=3, seed=0, source_per_class=2, validation_shots=4)
    assert split.classes == CLASSES
    assert split.validation is not None
    for part, count in ((split.source, 2), (split.target_labeled, 3), (split.validation, 4)):
        assert torch.bincount(part.labels).tolist() == [count] * 10


@pytest.mark.parametrize(("shots", "validation_shots"), [(1, 0), (3, 5), (100, 73), (173, 0)])
def test_target_parts_are_disjoint_and_complete(shots: int, validation_shots: int) -> None:
    split = digits_split(shots=shots, seed=0, source_per_class=1, validation_shots=validation_shots)
    assert (split.validation is None) == (validation_shots == 0)
    parts = target_parts(split)
    assert sum(map(len, parts)) == 1797
    assert set.union(*map(images_of, parts)) == images_of(handwritten().inputs)


def test_every_label_stays_with_its_image() -> None:
    digits = handwritten()
    truth = dict(zip(map(tuple, rows(digits.inputs).tolist()), digits.labels.tolist(), strict=True))
    split = digits_split(shots=3, seed=0, source_per_class=1, validation_shots=2)
    assert split.validation is not None
    assert split.target_unlabeled.sealed is not None
    labels = [
        split.target_labeled.labels,
        split.target_unlabeled.sealed.open_for_evaluation(),
        split.validation.labels,
    ]
    for inputs, given in zip(target_parts(split), labels, strict=True):
        assert [truth[tuple(row)] for row in rows(inputs).tolist()] == given.tolist()


def test_unlabelled_positions_do_not_give_labels_away() -> None:
    sealed = digits_split(seed=0, source_per_class=1).target_unlabeled.sealed
    assert sealed is not None
    labels = sealed.open_for_evaluation()
    assert float(((labels[1:] - labels[:-1]) % 10 == 1).float().mean()) < 0.2


def test_shots_are_nested_and_validation_stays() -> None:
    splits = [digits_split(shots=n, seed=3, source_per_class=1, validation_shots=2) for n in (1, 2, 3, 10)]
    for fewer, more in pairwise(splits):
        assert images_of(fewer.target_labeled.inputs) < images_of(more.target_labeled.inputs)
        assert fewer.validation is not None
        assert more.validation is not None
        assert torch.equal(rows(fewer.validation.inputs), rows(more.validation.inputs))
        assert torch.equal(rows(fewer.source.inputs), rows(more.source.inputs))


@pytest.mark.parametrize(
    ("shots", "validation_shots", "message"),
    [
        (0, 0, "shots must be an integer between 1 and 173, got 0"),
        (174, 0, "shots must be an integer between 1 and 173, got 174"),
        (164, 10, "shots must be an integer between 1 and 163, got 164"),
        (3, -1, "validation_shots must be an integer between 0 and 172, got -1"),
        (3, 173, "validation_shots must be an integer between 0 and 172, got 173"),
    ],
)
def test_counts_out_of_range_say_what_is_allowed(shots: int, validation_shots: int, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        digits_split(shots=shots, seed=0, source_per_class=1, validation_shots=validation_shots)


def test_no_typeset_digits_is_an_error() -> None:
    with pytest.raises(ValueError, match="per_class must be an integer between 1 and 1000000000, got 0"):
        typeset_digits(0, seed=0)


def test_the_smallest_class_is_as_small_as_the_checks_say() -> None:
    assert int(torch.bincount(handwritten().labels).min()) == SMALLEST


@pytest.mark.parametrize("seed", [-1, 10**20, 1.5, "0", None, True])
def test_a_wrong_seed_is_refused_before_anything_is_drawn(seed: Any) -> None:
    with pytest.raises(ConfigError, match="digits_split: seed must be an integer between 0 and 4294967295, got"):
        digits_split(shots=3, seed=seed)
