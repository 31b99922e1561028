from __future__ import annotations

from pathlib import Path

import pytest
import torch
from tests.data.files import image_files

from qurate.data.samples import Labeled, SealedLabels, Split, Unlabeled
from qurate.data.splits import read_mme_split
from qurate.data.suite_checks import find_overlaps

MEASURED = {
    ("amazon", 1): (93, 0),
    ("amazon", 3): (93, 0),
    ("dslr", 1): (84, 9),
    ("dslr", 3): (93, 0),
    ("webcam", 1): (91, 2),
    ("webcam", 3): (93, 0),
}


def _files(*names: str) -> Labeled:
    return Labeled(image_files(names), torch.arange(len(names)) % 2)


def _split(
    source: tuple[str, ...], labeled: tuple[str, ...], unlabeled: tuple[str, ...], validation: tuple[str, ...]
) -> Split:
    hidden = Unlabeled(image_files(unlabeled), SealedLabels(torch.zeros(len(unlabeled), dtype=torch.int64)))
    return Split(("a", "b"), _files(*source), _files(*labeled), hidden, _files(*validation) if validation else None)


def _paths_in(office31: Path, name: str) -> set[str]:
    lines = (office31 / "splits" / f"{name}.txt").read_text().splitlines()
    return {line.split(" ")[0] for line in lines}


@pytest.mark.parametrize(("target", "shots"), MEASURED)
def test_the_public_lists_overlap_as_measured(office31: Path, target: str, shots: int) -> None:
    source = "dslr" if target == "amazon" else "amazon"
    found = find_overlaps(read_mme_split(office31, source, target, shots))
    counts = {(overlap.first, overlap.second): overlap.shared for overlap in found}

    validation = _paths_in(office31, f"validation_target_images_{target}_3")
    expected = {
        ("target_labeled", "validation"): len(
            validation & _paths_in(office31, f"labeled_target_images_{target}_{shots}")
        ),
        ("target_unlabeled", "validation"): len(
            validation & _paths_in(office31, f"unlabeled_target_images_{target}_{shots}")
        ),
    }
    inside_unlabeled, inside_labeled = MEASURED[target, shots]
    assert expected == {
        ("target_labeled", "validation"): inside_labeled,
        ("target_unlabeled", "validation"): inside_unlabeled,
    }
    assert counts == {pair: count for pair, count in expected.items() if count}


@pytest.mark.parametrize(("target", "shots"), MEASURED)
def test_the_clean_protocol_is_clean(office31: Path, target: str, shots: int) -> None:
    source = "dslr" if target == "amazon" else "amazon"
    split = read_mme_split(office31, source, target, shots, protocol="clean")
    assert find_overlaps(split) == []
    assert split.validation is not None
    assert len(split.validation) == 93 - MEASURED[target, shots][1]


def test_overlaps_are_counted_for_each_pair_of_parts() -> None:
    found = find_overlaps(_split(("s1", "s2"), ("t1", "t2"), ("t1", "t3", "t4", "t3"), ("t3", "t2", "t4", "v")))
    assert [(o.first, o.second, o.shared, o.size) for o in found] == [
        ("target_labeled", "target_unlabeled", 1, 4),
        ("target_labeled", "validation", 1, 4),
        ("target_unlabeled", "validation", 2, 4),
    ]


def test_the_same_file_by_another_way_is_the_same(tmp_path: Path) -> None:
    (tmp_path / "x.jpg").touch()
    (tmp_path / "link.jpg").symlink_to(tmp_path / "x.jpg")
    found = find_overlaps(_split((str(tmp_path / "x.jpg"),), (str(tmp_path / "link.jpg"),), (f"{tmp_path}/../u",), ()))
    assert [(o.first, o.second, o.shared) for o in found] == [("source", "target_labeled", 1)]
