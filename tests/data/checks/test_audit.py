from __future__ import annotations

from pathlib import Path

import pytest
import torch
from tests.data.files import image_files

from qurate.data.checks.audit import audit
from qurate.data.domains import from_arrays
from qurate.data.samples import Labeled, SealedLabels, Split, Unlabeled
from qurate.data.splits import read_mme_split, split_target

# target, shots -> validation inside unlabelled, validation inside labelled
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
    found = audit(read_mme_split(office31, source, target, shots))
    counts = {(overlap.first, overlap.second): overlap.count for overlap in found.overlaps}

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
    assert not found.clean
    assert found.repeats == {}
    assert found.empty_classes == {}


@pytest.mark.parametrize(("target", "shots"), MEASURED)
def test_the_clean_protocol_is_clean(office31: Path, target: str, shots: int) -> None:
    source = "dslr" if target == "amazon" else "amazon"
    found = audit(read_mme_split(office31, source, target, shots, protocol="clean"))
    assert found.clean
    assert found.lines()[-1] == "No sample is in two parts."
    assert found.sizes["validation"] == 93 - MEASURED[target, shots][1]


def test_overlaps_are_named_in_sentences() -> None:
    found = audit(_split(("s1", "s2"), ("t1", "t2"), ("t1", "t3", "t4", "t3"), ("t3", "t2", "t4", "v")))
    assert [(o.first, o.second, o.count) for o in found.overlaps] == [
        ("target_labeled", "target_unlabeled", 1),
        ("target_labeled", "validation", 1),
        ("target_unlabeled", "validation", 2),
    ]
    assert found.overlaps[2].examples == ("t3", "t4")
    assert found.lines() == [
        "source: 2 samples, 1 to 1 in each of 2 classes.",
        "target_labeled: 2 samples, 1 to 1 in each of 2 classes.",
        "target_unlabeled: 4 samples, labels sealed.",
        "validation: 4 samples, 2 to 2 in each of 2 classes.",
        "1 of 4 samples of target_unlabeled are also in target_labeled: 't1'.",
        "1 of 4 samples of validation are also in target_labeled: 't2'.",
        "2 of 4 samples of validation are also in target_unlabeled: 't3', 't4'.",
        "target_unlabeled holds 1 samples more than once.",
    ]


def test_classes_without_sample_are_named() -> None:
    found = audit(_split(("s1", "s2"), ("t1",), ("u1",), ()))
    assert found.class_sizes == {"source": {"a": 1, "b": 1}, "target_labeled": {"a": 1, "b": 0}}
    assert found.empty_classes == {"target_labeled": ("b",)}
    assert "target_labeled has no sample of 1 classes: 'b'." in found.lines()
    assert found.clean


def test_the_same_file_by_another_way_is_the_same(tmp_path: Path) -> None:
    (tmp_path / "x.jpg").touch()
    (tmp_path / "link.jpg").symlink_to(tmp_path / "x.jpg")
    found = audit(_split((str(tmp_path / "x.jpg"),), (str(tmp_path / "link.jpg"),), (f"{tmp_path}/../u",), ()))
    assert [(o.first, o.second, o.count) for o in found.overlaps] == [("source", "target_labeled", 1)]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.uint8])
def test_tensors_are_compared_by_content(dtype: torch.dtype) -> None:
    rows = torch.arange(24).reshape(6, 2, 2).to(dtype)
    label = torch.zeros(2, dtype=torch.int64)
    split = Split(("a",), Labeled(rows[:2], label), Labeled(rows[2:4], label), Unlabeled(rows[[5, 3, 4]].flip(0)))
    found = audit(split)
    assert [(o.first, o.second, o.examples) for o in found.overlaps] == [
        ("target_labeled", "target_unlabeled", ("row 1",))
    ]


def test_an_empty_part_overlaps_nothing() -> None:
    label = torch.zeros(1, dtype=torch.int64)
    split = Split(
        ("a",), Labeled(torch.zeros(1, 3), label), Labeled(torch.ones(1, 3), label), Unlabeled(torch.zeros(0, 3))
    )
    assert audit(split).clean


def test_a_drawn_split_is_clean_and_stays_sealed(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_: SealedLabels) -> torch.Tensor:
        raise AssertionError("the audit opened the sealed labels")

    generator = torch.Generator().manual_seed(0)
    source, target = (from_arrays(torch.rand(40, 3, generator=generator), [0, 1] * 20) for _ in range(2))
    split = split_target(source, target, shots=3, seed=0, validation_shots=3)
    monkeypatch.setattr(SealedLabels, "open_for_evaluation", refuse)
    found = audit(split)
    assert found.clean
    assert found.sizes == {"source": 40, "target_labeled": 6, "target_unlabeled": 28, "validation": 6}
    assert "target_unlabeled" not in found.class_sizes
