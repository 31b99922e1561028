from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from tests.data.tiny_suite import LISTED, make_listed, make_own

from qurate.data.checks import check_suite
from qurate.data.images import ImageFiles
from qurate.data.samples import DataError
from qurate.data.suites import load_suite, read_suite_split, suite_names


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
