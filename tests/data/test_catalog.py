from __future__ import annotations

from pathlib import Path

import pytest
from tests.data.tiny_suite import LISTED, make_listed, make_own

from qurate.data.catalog import load_suite, read_suite_split, suite_names
from qurate.data.checks.suite import check_suite
from qurate.data.images import ImageFiles
from qurate.data.samples import DataError


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
    ("text", "said"),
    [
        ("title = 'x'", "lacks 'domains'"),
        ("title = ", "Invalid value"),
        ("colour = 1\n", "unexpected keyword argument 'colour'"),
        ("scenarios = ['a:c']\n", "two different domains of 'a', 'b', got 'a:c'"),
    ],
)
def test_a_wrong_file_says_what_a_suite_needs(tmp_path: Path, text: str, said: str) -> None:
    whole = "title = 'T'\nclasses = 2\nbackbone = 'none'\n" + ("" if "scen" in text else "scenarios = []\n")
    path = tmp_path / "s.toml"
    path.write_text(text if text.startswith("title") else whole + text + "[domains.a]\n[domains.b]\n")
    with pytest.raises(DataError, match=said.replace("(", r"\(")):
        load_suite(str(path))
    with pytest.raises(DataError, match="digits, domainnet126, office31, office_home"):
        load_suite("office-31")


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
