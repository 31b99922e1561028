from __future__ import annotations

import warnings
from itertools import chain
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tests.data.files import image_files

from qurate.data.domains import DataWarning, Domain, from_arrays
from qurate.data.images import ImageFiles
from qurate.data.samples import DataError, Inputs, Labeled, Split
from qurate.data.splits import read_mme_split, split_parts, split_target

DOMAINS = ("amazon", "dslr", "webcam")

sizes_of_classes = st.lists(st.integers(1, 12), min_size=2, max_size=5)
small = st.integers(0, 6)


def _domain(name: str, sizes: list[int], unlabeled: int = 0) -> Domain:
    """Each sample's only number is its position, so that a part says which samples it holds."""
    labels = [label for label, size in enumerate(sizes) for _ in range(size)] + [-1] * unlabeled
    inputs = np.arange(len(labels))[:, None]
    return from_arrays(inputs, labels, [f"class {label}" for label in range(len(sizes))], name)


def _ids(inputs: Inputs) -> list[int]:
    return [int(row) for row in torch.as_tensor(inputs).flatten()]


def _drawn(sizes: list[int], shots: int, seed: int, validation_shots: int = 0, unlabeled: int = 0) -> Split:
    source, target = _domain("source", [1] * len(sizes)), _domain("target", sizes, unlabeled)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DataWarning)
        return split_target(source, target, shots=shots, seed=seed, validation_shots=validation_shots)


def _parts(split: Split) -> list[list[int]]:
    validation = [] if split.validation is None else _ids(split.validation.inputs)
    return [_ids(split.target_labeled.inputs), _ids(split.target_unlabeled.inputs), validation]


@given(sizes_of_classes, st.integers(1, 6), small, small, st.integers(0, 2**40))
def test_every_target_sample_is_in_exactly_one_part(
    sizes: list[int], shots: int, validation_shots: int, unlabeled: int, seed: int
) -> None:
    parts = _parts(_drawn(sizes, shots, seed, validation_shots, unlabeled))
    assert sorted(chain(*parts)) == list(range(sum(sizes) + unlabeled))


@given(sizes_of_classes, st.integers(1, 6), small, st.integers(0, 2**40))
def test_fewer_shots_lie_inside_more_and_validation_stays(
    sizes: list[int], shots: int, validation_shots: int, seed: int
) -> None:
    fewer, _, before = _parts(_drawn(sizes, shots, seed, validation_shots))
    more, _, after = _parts(_drawn(sizes, shots + 1, seed, validation_shots))
    assert set(fewer) <= set(more)
    assert before == after


@given(sizes_of_classes, st.integers(1, 6), small, st.integers(0, 100))
def test_each_class_gets_its_share(sizes: list[int], shots: int, validation_shots: int, seed: int) -> None:
    split = _drawn(sizes, shots, seed, validation_shots)
    truth = _domain("target", sizes).labels
    labeled, unlabeled, validation = (np.bincount(truth[part], minlength=len(sizes)) for part in _parts(split))
    for label, size in enumerate(sizes):
        assert 1 <= labeled[label] <= shots
        assert validation[label] <= validation_shots
        assert unlabeled[label] >= (size > 1)
        if size > 2 * max(shots, validation_shots):
            assert (labeled[label], validation[label]) == (shots, validation_shots)


@given(sizes_of_classes, st.integers(1, 3), small, st.integers(0, 100))
def test_labels_follow_their_samples(sizes: list[int], shots: int, unlabeled: int, seed: int) -> None:
    split = _drawn(sizes, shots, seed, 2, unlabeled)
    truth = _domain("target", sizes, unlabeled).labels
    labeled, rest, validation = _parts(split)
    assert split.target_labeled.labels.tolist() == truth[labeled].tolist()
    if split.target_unlabeled.sealed is None:
        assert bool((truth[rest] == -1).all())
    else:
        assert split.target_unlabeled.sealed.open_for_evaluation().tolist() == truth[rest].tolist()
    if split.validation is not None:
        assert split.validation.labels.tolist() == truth[validation].tolist()


def test_same_seed_same_split_and_another_seed_another() -> None:
    assert _parts(_drawn([9, 9, 9], 3, seed=1)) == _parts(_drawn([9, 9, 9], 3, seed=1))
    assert _parts(_drawn([9, 9, 9], 3, seed=1)) != _parts(_drawn([9, 9, 9], 3, seed=2))


def test_every_sample_is_drawn_as_often_as_any_other() -> None:
    counts = np.zeros(10)
    for seed in range(600):
        counts[_parts(_drawn([5, 5], 1, seed))[0]] += 1
    # 120 expected each, standard deviation 10
    assert counts.min() > 75
    assert counts.max() < 165


def test_the_global_generators_are_left_alone() -> None:
    before = torch.get_rng_state(), str(np.random.get_state())
    _drawn([9, 9], 3, seed=0)
    assert torch.equal(torch.get_rng_state(), before[0])
    assert str(np.random.get_state()) == before[1]


@given(st.permutations(range(12)), st.integers(0, 50))
def test_the_order_of_files_does_not_matter(order: list[int], seed: int) -> None:
    paths = [f"{'ab'[i // 6]}/{i % 6}.jpg" for i in range(12)]
    source = Domain("source", image_files(["s/1.jpg", "s/2.jpg"]), torch.tensor([0, 1]), ("a", "b"))
    sorted_target = Domain("target", image_files(paths), torch.arange(12) // 6, ("a", "b"))
    splits = [
        split_target(source, target, shots=2, seed=seed, validation_shots=1)
        for target in (sorted_target, sorted_target.keep(torch.tensor(order)))
    ]
    first, second = ([_paths(part) for part in (s.target_labeled, s.validation)] for s in splits)
    assert first == second


def _paths(part: Labeled | None) -> list[str]:
    assert part is not None
    assert isinstance(part.inputs, ImageFiles)
    return [path.as_posix() for path in part.inputs.paths]


def test_small_classes_are_cut_short_with_a_warning() -> None:
    source, target = _domain("source", [1, 1, 1]), _domain("target", [20, 4, 1])
    with pytest.warns(DataWarning) as caught:
        split = split_target(source, target, shots=5, seed=0, validation_shots=3)
    assert len(caught) == 1
    message = str(caught[0].message)
    assert "2 of 3 classes of 'target'" in message
    assert "'class 1 (4 samples: 2 labelled, 1 for validation)'" in message
    assert "'class 2 (1 samples: 1 labelled, 0 for validation)'" in message
    assert [len(part) for part in _parts(split)] == [5 + 2 + 1, 12 + 1 + 0, 3 + 1 + 0]


@pytest.mark.parametrize(
    ("argument", "value"), [("shots", 0), ("shots", True), ("shots", 1.5), ("seed", -1), ("validation_shots", -1)]
)
def test_arguments_out_of_range_are_named(argument: str, value: object) -> None:
    arguments = {"shots": 1, "seed": 0, argument: value}
    with pytest.raises(DataError, match=f"{argument} must be an integer of at least"):
        split_target(_domain("s", [1, 1]), _domain("t", [5, 5]), **arguments)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("source", "target", "message"),
    [
        (_domain("s", [3]), _domain("t", [3]), "at least two classes, got 'class 0'"),
        (_domain("s", [3, 3]), _domain("t", [3, 0]), "labelled sample in 't', but 1 have none: 'class 1'"),
        (_domain("s", [0, 3]), _domain("t", [3, 3]), "labelled sample in 's', but 1 have none: 'class 0'"),
        (_domain("s", [3, 3], 2), _domain("t", [3, 3]), "'s' must be labelled, but 2 of 8 are not"),
        (_domain("s", [3, 3]), _domain("t", [3, 3, 3]), "only 't' has 'class 2'"),
        (_domain("s", [3, 3]), from_arrays(np.zeros((4, 1)), None), "all 4 samples are unlabelled"),
        (
            _domain("s", [3, 3]),
            Domain("t", image_files(["x", "y"]), torch.tensor([0, 1]), ("class 0", "class 1")),
            r"tensors of shape \(1,\) in 's' and image files in 't'",
        ),
    ],
)
def test_domains_that_do_not_fit_are_named(source: Domain, target: Domain, message: str) -> None:
    with pytest.raises(DataError, match=message):
        split_target(source, target, shots=1, seed=0)


def test_separate_parts_are_matched_by_name() -> None:
    source = from_arrays(np.zeros((3, 2)), ["b", "a", "c"], ["c", "b", "a"])
    labeled = from_arrays(np.ones((3, 2)), ["a", "b", "c"])
    unlabeled = from_arrays(np.ones((3, 2)), ["c", "", "b"])
    validation = from_arrays(np.ones((1, 2)), ["a"])
    split = split_parts(source, labeled, unlabeled, validation)
    assert split.classes == ("c", "b", "a")
    assert split.source.labels.tolist() == [1, 2, 0]
    assert split.target_labeled.labels.tolist() == [2, 1, 0]
    assert split.target_unlabeled.sealed is not None
    assert split.target_unlabeled.sealed.open_for_evaluation().tolist() == [0, -1, 1]
    assert split.validation is not None
    assert split.validation.labels.tolist() == [2]


def test_parts_without_labels_have_nothing_sealed() -> None:
    unlabeled = from_arrays(np.zeros((4, 1)), None)
    split = split_parts(_domain("s", [1, 1]), _domain("t", [1, 1]), unlabeled)
    assert split.target_unlabeled.sealed is None
    assert split.validation is None


def test_parts_that_do_not_fit_are_named() -> None:
    source, good = _domain("s", [1, 1]), _domain("t", [1, 1])
    with pytest.raises(DataError, match="only 's' has 'class 1'"):
        split_parts(source, _domain("t", [1]), good)
    with pytest.raises(DataError, match=r"unlabeled \('u'\) may only have the source's classes.*got also 'class 2'"):
        split_parts(source, good, _domain("u", [1, 1, 1]))
    with pytest.raises(DataError, match="'v' must be labelled, but 1 of 3"):
        split_parts(source, good, good, _domain("v", [1, 1], 1))
    with pytest.raises(DataError, match="'t' must be labelled, but 1 of 3"):
        split_parts(source, _domain("t", [1, 1], 1), good)
    with pytest.raises(DataError, match=r"shape \(1,\) in 's' and tensors of shape \(5,\) in 'u'"):
        split_parts(source, good, from_arrays(np.zeros((1, 5)), None, name="u"))


def _lines(office31: Path, name: str) -> list[tuple[Path, int]]:
    lines = (office31 / "splits" / f"{name}.txt").read_text().splitlines()
    return [(office31 / line.rsplit(" ", 1)[0], int(line.rsplit(" ", 1)[1])) for line in lines]


def _contents(part: Labeled) -> list[tuple[Path, int]]:
    assert isinstance(part.inputs, ImageFiles)
    return list(zip(part.inputs.paths, part.labels.tolist(), strict=True))


@pytest.mark.parametrize("target", DOMAINS)
@pytest.mark.parametrize("shots", [1, 3])
def test_mme_parts_are_exactly_as_listed(office31: Path, target: str, shots: int) -> None:
    source = DOMAINS[DOMAINS.index(target) - 1]
    split = read_mme_split(office31, source, target, shots)
    hidden = split.target_unlabeled.sealed
    assert hidden is not None
    assert split.validation is not None
    unlabeled = Labeled(split.target_unlabeled.inputs, hidden.open_for_evaluation())
    assert _contents(split.source) == _lines(office31, f"labeled_source_images_{source}")
    assert _contents(split.target_labeled) == _lines(office31, f"labeled_target_images_{target}_{shots}")
    assert _contents(unlabeled) == _lines(office31, f"unlabeled_target_images_{target}_{shots}")
    assert _contents(split.validation) == _lines(office31, f"validation_target_images_{target}_3")
    assert split.n_classes == 31
    assert split.classes[:3] == ("back_pack", "bike", "bike_helmet")


@pytest.mark.parametrize("target", DOMAINS)
@pytest.mark.parametrize("shots", [1, 3])
def test_clean_parts_are_disjoint_and_lose_nothing(office31: Path, target: str, shots: int) -> None:
    source = DOMAINS[DOMAINS.index(target) - 1]
    split = read_mme_split(office31, source, target, shots, protocol="clean")
    assert split.validation is not None
    assert isinstance(split.target_unlabeled.inputs, ImageFiles)
    labeled = _lines(office31, f"labeled_target_images_{target}_{shots}")
    unlabeled = set(split.target_unlabeled.inputs.paths)
    validation = {path for path, _ in _contents(split.validation)}
    assert _contents(split.target_labeled) == labeled
    assert validation == {p for p, _ in _lines(office31, f"validation_target_images_{target}_3")} - {
        p for p, _ in labeled
    }
    everything = {path for path, _ in _lines(office31, f"labeled_source_images_{target}")}
    assert len(labeled) + len(unlabeled) + len(validation) == len(everything)
    assert {p for p, _ in labeled} | unlabeled | validation == everything


def test_missing_lists_and_files_are_named(office31: Path, tmp_path: Path) -> None:
    with pytest.raises(
        DataError, match=r"lacks 'labeled_target_images_amazon_5.txt', 'unlabeled_target_images_amazon_5"
    ):
        read_mme_split(office31, "webcam", "amazon", 5)
    with pytest.raises(DataError, match="lacks 'labeled_source_images_mars"):
        read_mme_split(office31, "mars", "amazon", 3)
    with pytest.raises(DataError, match="It has no lists"):
        read_mme_split(tmp_path, "webcam", "amazon", 3)
    with pytest.raises(DataError, match="3705 of 3705 listed files do not exist"):
        read_mme_split(tmp_path, "webcam", "amazon", 3, lists=office31 / "splits")
    with pytest.raises(DataError, match="must be 'mme' or 'clean', got 'dirty'"):
        read_mme_split(office31, "webcam", "amazon", 3, protocol="dirty")  # type: ignore[arg-type]
    with pytest.raises(DataError, match="must differ, got 'amazon' for both"):
        read_mme_split(office31, "amazon", "amazon", 3)
