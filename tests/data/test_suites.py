from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tests.data.files import image_files
from tests.data.tiny_suite import LISTED, make_listed, make_own
from torch import Tensor

from qurate.data.images import ImageFiles
from qurate.data.samples import UNKNOWN, DataError, Labeled, SealedLabels, Split, Unlabeled
from qurate.data.suite_checks import check_suite
from qurate.data.suites import hide_classes, load_suite, read_suite_split, suite_names, thin_to_tail


def paths(inputs: object, root: Path) -> list[str]:
    assert isinstance(inputs, ImageFiles)
    return [path.relative_to(root).as_posix() for path in inputs.paths]


def test_the_suites_of_the_paper_have_its_scenarios_in_its_order() -> None:
    assert suite_names() == ["digits", "domainnet126", "office31", "office_home"]
    domainnet, home = load_suite("domainnet126"), load_suite("office_home")
    letters = [f"{pair[0].upper()}{pair.partition(':')[2][0].upper()}" for pair in domainnet.scenarios]
    assert letters == ["RC", "RP", "PC", "CS", "SP", "RS", "PR"]
    letters = [f"{pair[0]}{pair.partition(':')[2][0]}" for pair in home.scenarios]
    assert letters == ["RC", "RP", "RA", "PR", "PC", "PA", "AP", "AC", "AR", "CR", "CA", "CP"]
    assert (domainnet.classes, home.classes, load_suite("office31").classes) == (126, 65, 31)
    assert sum(domain.images or 0 for domain in home.domains.values()) == 15588


@pytest.mark.parametrize("folder", ["Real World", "Real"])
def test_a_folder_called_otherwise_than_in_the_lists_is_found(tmp_path: Path, folder: str) -> None:
    suite = make_listed(tmp_path, real_folder=folder)
    split = read_suite_split(suite, tmp_path, "Art:Real", shots=1, seed=0, protocol="mme")
    assert paths(split.target_labeled.inputs, tmp_path) == [f"{folder}/cup/0.png", f"{folder}/pen/0.png"]
    assert split.classes == ("cup", "pen")


def test_protocol_drawn_takes_only_listed_images_and_any_number_of_shots(tmp_path: Path) -> None:
    suite = make_listed(tmp_path)
    (tmp_path / "Art" / "cup" / "extra.png").touch()
    split = read_suite_split(suite, tmp_path, "Art:Real", shots=2, seed=5, protocol="drawn", validation=True)
    assert len(split.source) == 2 * LISTED
    assert len(split.target_labeled) == 4
    assert split.validation is not None
    again = read_suite_split(suite, tmp_path, "Art:Real", shots=2, seed=6, protocol="drawn")
    assert again.validation is None
    assert paths(again.target_labeled.inputs, tmp_path) != paths(split.target_labeled.inputs, tmp_path)


def test_ones_own_suite_is_folders_and_a_small_file(tmp_path: Path) -> None:
    suite = make_own(tmp_path)
    assert suite.protocols == ("drawn",)
    split = read_suite_split(suite, tmp_path, "studio:phone", shots=1, seed=0, protocol="drawn")
    assert split.classes == ("cup", "pen")
    assert check_suite(suite, tmp_path).ok


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"domains": {}}, "lacks 'domains': at least two tables [domains.NAME], got 0"),
        ({"domains": 5}, "Suite.domains must be tables [domains.NAME], got 5"),
        ({"domains": {"a": 1, "b": 2}}, "Suite.domains must be tables [domains.NAME]"),
        ({"domains": {"a": {"image": 3}, "b": {}}}, "SuiteDomain has no 'image'. Did you mean 'images'?"),
        ({"domains": {"a": {"images": -3}, "b": {}}}, "SuiteDomain.images must be positive"),
        ({"domains": {"a": {"folders": "x"}, "b": {}}}, "SuiteDomain.folders must be a tuple, got 'x'"),
        ({"domains": {"=a": {}, "b": {}}}, "SuiteDomain.name must be letters, digits"),
        ({"title": None}, "Suite lacks 'title'"),
        ({"title": 5}, "Suite.title must be text, got 5"),
        ({"title": " "}, "Suite.title must be text that is not empty"),
        ({"classes": 1}, "Suite.classes must be at least 2, got 1"),
        ({"classes": "2"}, "Suite.classes must be an integer, got '2'"),
        ({"steps": -5}, "Suite.steps must be 0 or more, got -5"),
        ({"steps": 1.5}, "Suite.steps must be an integer, got 1.5"),
        ({"generated": "foo"}, "Suite.generated must be one of '', 'digits', got 'foo'"),
        ({"generated": "digits"}, "Suite.classes must be 10 where generated is 'digits'"),
        ({"bottleneck": "foo"}, "Suite.bottleneck must be one of 'none', 'linear', 'normalized', got 'foo'"),
        ({"backbone": "vgg16"}, "There is no backbone 'vgg16'. Allowed: 'timm/NAME.TAG'"),
        ({"scenarios": []}, "Suite.scenarios must have at least one 'source:target', got none"),
        ({"scenarios": "a:b"}, "Suite.scenarios must be a tuple, got 'a:b'"),
        ({"scenarios": [1]}, "Suite.scenarios must be a tuple in which each is text"),
        ({"scenarios": ["a:c"]}, "two different domains of 'a', 'b', got 'a:c'"),
        ({"colour": 1}, "Suite has no 'colour'"),
        ({"scenario": 1}, "Suite has no 'scenario'. Did you mean 'scenarios'?"),
        ({"name": "x"}, "Suite has no 'name'"),
    ],
)
def test_a_wrong_file_says_what_a_suite_needs(tmp_path: Path, change: dict[str, Any], said: str) -> None:
    sound: dict[str, Any] = {"title": "T", "classes": 2, "backbone": "timm/test_resnet", "scenarios": ["a:b"]}
    path = tmp_path / "s.toml"
    path.write_text(to_toml(sound | {"domains": {"a": {}, "b": {}}}))
    assert load_suite(str(path)).domains["a"].folders == ("a",)
    path.write_text(to_toml({**sound, "domains": {"a": {}, "b": {}}, **change}))
    with pytest.raises(DataError, match=re.escape(said)) as caught:
        load_suite(str(path))
    assert str(caught.value).startswith(f"{path}: ")
    assert str(caught.value).endswith("see docs/benchmark.md.")


def to_toml(values: dict[str, Any]) -> str:
    """Numbers, texts, lists and inline tables; None is left out."""
    lines = [f"{json.dumps(key)} = {_inline(value)}\n" for key, value in values.items() if value is not None]
    return "".join(lines)


def _inline(value: object) -> str:
    if isinstance(value, dict):
        return "{" + ", ".join(f"{json.dumps(key)} = {_inline(item)}" for key, item in value.items()) + "}"
    return json.dumps(value)


@pytest.mark.parametrize("content", [b"title = ", b"\xff\xfe", b"", b"[" * 5000, b"classes = " + b"9" * 5000])
def test_any_bytes_are_refused_in_one_sentence(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "s.toml").write_bytes(content)
    with pytest.raises(DataError, match="A suite needs title, classes"):
        load_suite(str(tmp_path / "s.toml"))


def test_a_suite_that_is_not_there_is_refused_with_those_that_are() -> None:
    with pytest.raises(DataError, match="digits, domainnet126, office31, office_home"):
        load_suite("office-31")
    with pytest.raises(DataError, match="or the path of a TOML file"):
        load_suite("x" * 5000 + ".toml")


def test_missing_domains_and_lists_are_named_with_where_they_are_published(tmp_path: Path) -> None:
    suite = load_suite("office_home")
    for data in (None, tmp_path / "nowhere"):
        report = check_suite(suite, data)
        assert not report.ok
        assert suite.published in report.problems[0]
    report = check_suite(suite, tmp_path)
    assert "the lists are missing" in report.problems[0]
    assert "SSDA_MME" in report.problems[0]
    assert "no folder 'Real World', 'Real'" in report.problems[-1]
    assert len(report.problems) == 5
    with pytest.raises(DataError, match="domain 'Art' is missing"):
        read_suite_split(suite, tmp_path, "Art:Real", shots=1, seed=0, protocol="mme")


def test_a_suite_that_does_not_say_where_its_lists_are_published(tmp_path: Path) -> None:
    suite = replace(load_suite("office_home"), published="", published_lists="")
    assert "The suite names no address." in check_suite(suite, tmp_path).problems[0]


def test_a_sound_copy_is_told_of_the_overlaps_of_its_lists(tmp_path: Path) -> None:
    report = check_suite(make_listed(tmp_path), tmp_path)
    assert report.ok
    assert report.warnings[0].startswith(
        "Real, 1-shot lists overlap: 2 of 2 of validation are also in target_unlabeled"
    )
    assert f"Real (Real World): {2 * LISTED} images listed, 2 classes." in report.summary


def test_missing_files_wrong_counts_and_the_whole_data_set_are_found(tmp_path: Path) -> None:
    suite = make_listed(tmp_path, classes=3, whole_classes=2, images=7)
    (tmp_path / "Art" / "cup" / "1.png").unlink()
    report = check_suite(suite, tmp_path)
    text = "\n".join(report.problems)
    assert "has 2 classes, expected 3: that is the whole data set, of which Tiny is a part" in text
    assert f"has {2 * LISTED} images, expected 7 as published" in text
    assert f"Art: 1 of {2 * LISTED} listed images are missing: 'Art/cup/1.png'" in text
    assert "Art has the 2 classes of the whole data set, not the 3 of Tiny" in "\n".join(report.warnings)
    (tmp_path / "splits" / "validation_target_images_Real_3.txt").unlink()
    sound = make_listed(tmp_path, lists=False)
    report = check_suite(sound, tmp_path)
    assert "lacks 'validation_target_images_Real_3.txt'" in "\n".join(report.problems)


def test_office31_is_as_published(office31: Path) -> None:
    report = check_suite(load_suite("office31"), office31)
    assert report.ok, report.problems
    assert "amazon (amazon): 2817 images listed, 31 classes." in report.summary
    assert "93 of 93 of validation are also in target_unlabeled" in report.warnings[0]


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


def labeled_split(n_classes: int) -> Split:
    """Three samples of each class in every part; the only number of a sample is its class."""
    labels = torch.arange(n_classes).repeat(3)
    part = Labeled(labels[:, None].float(), labels)
    unlabeled = Unlabeled(part.inputs, SealedLabels(labels))
    return Split(tuple(f"class {i}" for i in range(n_classes)), part, part, unlabeled, part)


@given(st.integers(3, 12), st.data(), seeds)
def test_hidden_classes_are_in_no_labelled_part_and_the_others_keep_their_names(
    n_classes: int, data: st.DataObject, seed: int
) -> None:
    unknown = data.draw(st.integers(0, n_classes - 2))
    missing = data.draw(st.integers(0, n_classes - unknown - 1))
    found = hide_classes(labeled_split(n_classes), unknown, missing, seed)
    assert found.n_classes == n_classes - unknown
    known = [int(name.removeprefix("class ")) for name in found.classes]
    assert known == sorted(set(known))
    for part in (found.source, found.target_labeled, found.validation):
        assert isinstance(part, Labeled)
        assert isinstance(part.inputs, Tensor)
        assert len(part) == 3 * len(known)  # of all known classes, the missing ones too
        assert [known[label] for label in part.labels.tolist()] == part.inputs.flatten().tolist()
    assert len(found.target_unlabeled) == 3 * (n_classes - missing)
    pairs = list(zip(positions(found), truth(found).tolist(), strict=True))
    for old, new in pairs:
        assert new == (known.index(old) if old in known else UNKNOWN)
    assert {old for old, _ in pairs if old not in known} == set(range(n_classes)) - set(known)
    assert len({new for _, new in pairs if new >= 0}) == len(known) - missing


def test_the_seed_decides_which_classes_are_hidden_and_more_include_fewer() -> None:
    whole = labeled_split(12)
    assert hide_classes(whole, 0, 0, 1) is whole
    names = [set(hide_classes(whole, n, 0, 1).classes) for n in (2, 5)]
    assert names[1] < names[0]
    assert len({hide_classes(whole, 5, 0, seed).classes for seed in range(5)}) == 5
    alone, beside = (set(positions(whole)) - set(positions(hide_classes(whole, n, 3, 1))) for n in (0, 4))
    assert alone == beside  # the missing classes are the same, however many are unknown


def test_what_no_one_knows_stays_so_when_classes_are_hidden() -> None:
    whole = labeled_split(4)
    labels = truth(whole)
    labels[0] = -1
    partly = Unlabeled(whole.target_unlabeled.inputs, SealedLabels(labels))
    assert truth(hide_classes(replace(whole, target_unlabeled=partly, validation=None), 2, 1, 0))[0] == -1


def test_image_files_are_hidden_like_tensors() -> None:
    whole = labeled_split(5)
    files = image_files([f"{number}.jpg" for number in positions(whole)])
    parts = {name: replace(part, inputs=files) for name, part in whole.parts.items()}
    found = hide_classes(replace(whole, **parts), 2, 1, 3)  # type: ignore[arg-type]
    tensors = hide_classes(whole, 2, 1, 3)
    assert isinstance(found.target_unlabeled.inputs, ImageFiles)
    assert [int(path.stem) for path in found.target_unlabeled.inputs.paths] == positions(tensors)
    assert torch.equal(found.source.labels, tensors.source.labels)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ((-1, 0, 0), "hide_classes: unknown must be an integer of at least 0"),
        ((0, True, 0), "hide_classes: missing must be an integer of at least 0"),
        ((0, 0, -1), "hide_classes: seed must be an integer of at least 0"),
        ((3, 0, 0), "of 4 classes at least two must stay known.*got 3 unknown and 0 missing"),
        ((1, 3, 0), "one of them must stay in the unlabelled target, got 1 unknown and 3 missing"),
    ],
)
def test_hiding_too_many_classes_is_refused(arguments: tuple[int, int, int], says: str) -> None:
    with pytest.raises(DataError, match=says):
        hide_classes(labeled_split(4), *arguments)


def test_classes_that_nobody_knows_cannot_be_hidden() -> None:
    whole = labeled_split(4)
    with pytest.raises(DataError, match="the true classes of the unlabelled target are not known"):
        hide_classes(replace(whole, target_unlabeled=Unlabeled(whole.target_unlabeled.inputs)), 1, 0, 0)
