from __future__ import annotations

from pathlib import Path

import pytest
import torch
from tests.data.files import image_files

from qurate.data.images import ImageFiles
from qurate.data.samples import DataError, Labeled, SealedLabels, Split, Unlabeled, join, take


def test_take_keeps_the_asked_order() -> None:
    assert take(torch.arange(4.0), torch.tensor([3, 0])).tolist() == [3.0, 0.0]  # type: ignore[union-attr]
    files = take(image_files(["a", "b", "c"]), torch.tensor([2, 0]))
    assert files == ImageFiles((Path("c"), Path("a")))


def test_join_puts_the_second_behind_the_first() -> None:
    assert join(image_files(["a"]), image_files(["b"])) == image_files(["a", "b"])
    joined = join(torch.zeros(1, 2), torch.ones(2, 2))
    assert torch.equal(torch.as_tensor(joined), torch.tensor([[0.0, 0], [1, 1], [1, 1]]))


def test_join_refuses_files_with_tensors() -> None:
    with pytest.raises(DataError, match="ImageFiles and Tensor"):
        join(image_files(["a"]), torch.zeros(1, 2))


@pytest.mark.parametrize(
    ("labels", "error", "message"),
    [
        (torch.tensor([0]), ValueError, "2 inputs but 1 labels"),
        (torch.tensor([0.0, 1.0]), DataError, "labels must be a tensor"),
        (torch.tensor([0, -1]), ValueError, "negative"),
    ],
)
def test_labeled_checks_its_labels(labels: torch.Tensor, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        Labeled(torch.zeros(2, 3), labels)


def test_sealed_labels_show_only_their_number() -> None:
    sealed = SealedLabels(torch.tensor([7, 8, 9]))
    assert len(sealed) == 3
    assert repr(sealed) == str(sealed) == "SealedLabels(3 hidden)"
    assert not hasattr(sealed, "__dict__")
    for name in ("__getitem__", "__iter__", "labels", "tolist"):
        assert not hasattr(sealed, name)


def test_sealed_labels_are_copies_in_and_out() -> None:
    labels = torch.tensor([1, 2])
    sealed = SealedLabels(labels)
    labels[0] = 5
    sealed.open_for_evaluation()[1] = 5
    assert sealed.open_for_evaluation().tolist() == [1, 2]


def test_unlabeled_counts_its_sealed_labels() -> None:
    with pytest.raises(ValueError, match="3 inputs but 2 sealed"):
        Unlabeled(torch.zeros(3, 1), SealedLabels(torch.tensor([0, 1])))


def test_split_refuses_labels_without_class() -> None:
    good = Labeled(torch.zeros(2, 1), torch.tensor([0, 1]))
    bad = Labeled(torch.zeros(1, 1), torch.tensor([2]))
    unlabeled = Unlabeled(torch.zeros(1, 1))
    assert Split(("a", "b"), good, good, unlabeled).n_classes == 2
    with pytest.raises(ValueError, match="validation has label 2 but there are only 2"):
        Split(("a", "b"), good, good, unlabeled, bad)


def test_a_part_is_printed_in_a_line() -> None:
    files = image_files([f"folder/{number}.png" for number in range(5000)])
    assert repr(files) == "ImageFiles(5000 files, first 'folder/0.png')"
    assert repr(ImageFiles(())) == "ImageFiles(0 files)"
    assert repr(Labeled(files, torch.zeros(5000).long())) == "Labeled(5000 image files, 5000 labels)"
    sealed = SealedLabels(torch.zeros(5000).long())
    assert repr(Unlabeled(files, sealed)) == "Unlabeled(5000 image files, SealedLabels(5000 hidden))"
    assert repr(Unlabeled(torch.zeros(2, 3))) == "Unlabeled(a tensor (2, 3) of float32, no labels)"
