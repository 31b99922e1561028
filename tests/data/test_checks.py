from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from qurate.data.checks import CheckReport, check_data
from qurate.data.listing import Listing, list_class_folders
from qurate.data.own_images import read_parts
from qurate.errors import DataError


def _image(path: Path, seed: int, size: tuple[int, int] = (40, 48)) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    pixels = np.random.default_rng(seed).integers(0, 256, (size[1], size[0], 3), dtype=np.uint8)
    Image.fromarray(pixels).save(path)


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """Two classes: 4 source, 3 labelled and 10 unlabelled images of each, all different and sound."""
    seed = 0
    for part, count in (("source", 4), ("labeled", 3), ("unlabeled", 10)):
        for kind in ("cat", "dog"):
            for i in range(count):
                folder = tmp_path / part / ("" if part == "unlabeled" else kind)
                _image(folder / f"{kind} {i}.png", seed)
                seed += 1
    return tmp_path


def _check(data: Path) -> CheckReport:
    return check_data(data / "source", data / "labeled", data / "unlabeled")


def _listing(root: Path) -> list[tuple[Path, int]]:
    return sorted((path, path.stat().st_mtime_ns) for path in root.rglob("*"))


def test_sound_data_pass_and_are_left_as_they_are(data: Path) -> None:
    before = _listing(data)
    report = _check(data)
    assert report.ok
    assert report.problems == report.warnings == ()
    assert report.lines() == [
        "source: 8 images, 4 in each of 2 classes, sides of 40 to 48 pixels.",
        "labeled: 6 images, 3 in each of 2 classes, sides of 40 to 48 pixels.",
        "unlabeled: 20 images, sides of 40 to 48 pixels.",
        "No problems found.",
    ]
    assert _listing(data) == before


def test_progress_is_told_image_by_image(data: Path) -> None:
    seen: list[tuple[int, int]] = []
    check_data(data / "source", data / "labeled", data / "unlabeled", on_progress=lambda *step: seen.append(step))
    assert seen == [(i, 34) for i in range(1, 35)]


def _rename_a_class(data: Path) -> None:
    (data / "labeled" / "dog").rename(data / "labeled" / "Dog_")


def _remove_a_class(data: Path) -> None:
    shutil.rmtree(data / "labeled" / "dog")


def _empty_a_class(data: Path) -> None:
    for path in (data / "labeled" / "dog").iterdir():
        path.write_text("no image")


def _one_class(data: Path) -> None:
    for part in ("source", "labeled"):
        shutil.rmtree(data / part / "dog")


def _empty_part(data: Path) -> None:
    shutil.rmtree(data / "unlabeled")
    (data / "unlabeled").mkdir()


def _one_unlabeled(data: Path) -> None:
    for path in sorted((data / "unlabeled").iterdir())[1:]:
        path.unlink()


def _no_new_images(data: Path) -> None:
    shutil.rmtree(data / "unlabeled")
    shutil.copytree(data / "labeled", data / "unlabeled")


def _all_unreadable(data: Path) -> None:
    shutil.rmtree(data / "unlabeled")
    (data / "unlabeled").mkdir()
    whole = (data / "source" / "cat" / "cat 0.png").read_bytes()
    for number in (1, 2):
        (data / "unlabeled" / f"{number}.png").write_bytes(whole[: -100 * number])


def _no_part(data: Path) -> None:
    shutil.rmtree(data / "source")


@pytest.mark.parametrize(
    ("spoil", "problem"),
    [
        (_rename_a_class, "Only source has 'dog'. Spelled differently there: 'dog' as 'Dog_'. Rename"),
        (_remove_a_class, "Only source has 'dog'. Label an image of each in labeled, rename the classes"),
        (_empty_a_class, "labeled has classes without a readable image: 'dog'. Add"),
        (_one_class, "source must have at least two classes, got 'cat'."),
        (_empty_part, "unlabeled: "),
        (_one_unlabeled, "unlabeled ('unlabeled') must hold at least two images that labeled ('labeled') does not"),
        (_no_new_images, "unlabeled ('unlabeled') must hold at least two images that labeled ('labeled') does not"),
        (_all_unreadable, "2 of 2 images of 'unlabeled' cannot be read"),
        (_no_part, "source must be a folder of class folders, a list file"),
    ],
)
def test_what_hinders_is_a_problem(data: Path, spoil: Callable[[Path], None], problem: str) -> None:
    spoil(data)
    report = _check(data)
    assert not report.ok
    assert any(text.startswith(problem) for text in report.problems), report.problems
    assert any(line.startswith(f"Problem: {problem}") for line in report.lines())


def _copy_within(data: Path) -> None:
    shutil.copy(data / "source/cat/cat 0.png", data / "source/cat/copy.png")


def _copy_across(data: Path) -> None:
    shutil.copy(data / "labeled/cat/cat 0.png", data / "unlabeled/same.png")


def _copy_pixels_in_another_format(data: Path) -> None:
    Image.open(data / "labeled/cat/cat 0.png").save(data / "unlabeled/same.bmp")


def _two_classes_for_one(data: Path) -> None:
    shutil.copy(data / "source/cat/cat 0.png", data / "labeled/dog/x.png")


def _text_named_jpg(data: Path) -> None:
    (data / "source/cat/größe 1.jpg").write_text("no image")


def _truncated(data: Path) -> None:
    path = data / "unlabeled/cat 0.png"
    path.write_bytes(path.read_bytes()[:2000])


def _outside(data: Path) -> None:
    _image(data / "labeled/lost.png", 99)


def _few_labels(data: Path) -> None:
    (data / "labeled/dog/dog 0.png").unlink()


def _few_unlabeled(data: Path) -> None:
    (data / "unlabeled/dog 0.png").unlink()


def _uneven(data: Path) -> None:
    for i in range(36):
        _image(data / f"source/cat/more {i}.png", 1000 + i)


def _one_pixel(data: Path) -> None:
    _image(data / "unlabeled/dot.png", 99, (1, 1))


def _long(data: Path) -> None:
    _image(data / "unlabeled/strip.png", 99, (40, 400))


@pytest.mark.parametrize(
    ("spoil", "part", "rest"),
    [
        (_copy_within, "source holds 1 image more than once", "copy.png"),
        (_copy_across, "1 image both in labeled and in unlabeled", "same.png"),
        (_copy_pixels_in_another_format, "1 image both in labeled and in unlabeled", "same.bmp"),
        (_two_classes_for_one, "1 image with more than one class", "x.png (dog)"),
        (_text_named_jpg, "source has 1 file to be left out", "größe 1.jpg"),
        (_truncated, "unlabeled has 1 file to be left out", "cat 0.png"),
        (_outside, "labeled has 1 file to be left out", "lost.png: image outside the class folders"),
        (_few_labels, "labeled has fewer than 3 images of 'dog'", ""),
        (_few_unlabeled, "unlabeled has 19 images for 2 classes", "20 or more"),
        (_uneven, "source is uneven: 40 of 'cat' but 4 of 'dog'", ""),
        (_one_pixel, "unlabeled has 1 image with a side under 32 pixels", "dot.png (1 x 1)"),
        (_long, "unlabeled has 1 image over 4 times as long as wide", "strip.png (40 x 400)"),
    ],
)
def test_what_deserves_a_look_is_a_warning(data: Path, spoil: Callable[[Path], None], part: str, rest: str) -> None:
    spoil(data)
    report = _check(data)
    assert report.ok, report.problems
    matching = [text for text in report.warnings if text.startswith(part)]
    assert len(matching) == 1, report.warnings
    assert rest in matching[0]


def test_other_files_are_counted_and_labels_of_the_unlabelled_not_read(data: Path) -> None:
    (data / "source/cat/notes.txt").write_text("hello")
    (data / "unlabeled/unknown kind").mkdir()
    (data / "unlabeled/cat 1.png").rename(data / "unlabeled/unknown kind/cat 1.png")
    report = _check(data)
    assert report.problems == report.warnings == ()
    assert report.summary[0].endswith("; 1 hidden or other files skipped.")


def test_lists_and_tables_are_read_too(data: Path) -> None:
    paths = sorted((data / "source").rglob("*.png"))
    listed = [f"{path.relative_to(data).as_posix()} {path.parent.name}" for path in paths]
    (data / "source.txt").write_text("\n".join(listed))
    rows = [f"{p.relative_to(data).as_posix()},{p.parent.name}" for p in sorted((data / "labeled").rglob("*.png"))]
    (data / "labeled.csv").write_text("\n".join(["path,label", *rows]))
    (data / "unlabeled.txt").write_text("\n".join(path.relative_to(data).as_posix() for path in paths))
    report = check_data(data / "source.txt", data / "labeled.csv", data / "unlabeled.txt")
    assert report.ok
    assert report.warnings[0].startswith("8 images both in source and in unlabeled")


def test_images_without_class_are_a_problem(data: Path) -> None:
    rows = [f"{p.relative_to(data).as_posix()}," for p in sorted((data / "labeled").rglob("*.png"))]
    (data / "labeled.csv").write_text("\n".join(["path,label", *rows]))
    report = check_data(data / "source", data / "labeled.csv", data / "unlabeled")
    assert report.problems == ("labeled must have labels, but no image has a class. Fill in the column label.",)
    with pytest.raises(DataError, match=r"'labeled' must have labels, but no image has a class\. Fill in the column"):
        read_parts(data / "source", data / "labeled.csv", data / "unlabeled", missing="drop")


def test_rows_that_nobody_has_labelled_yet_are_left_out_of_the_labelled_part_alone(data: Path) -> None:
    for part in ("source", "labeled"):
        files = [p.relative_to(data).as_posix() for p in sorted((data / part).rglob("*.png"))]
        rows = [f"{file}," if file.endswith(" 2.png") else f"{file},{file.split('/')[1]}" for file in files]
        (data / f"{part}.csv").write_text("\n".join(["path,label", *rows]))
    report = check_data(data / "source", data / "labeled.csv", data / "unlabeled")
    assert report.ok
    assert report.summary[1].startswith("labeled: 4 images, 2 in each of 2 classes")
    assert report.warnings[0].startswith("labeled has 2 files to be left out: ")
    assert "cat 2.png: no class is given" in report.warnings[0]
    parts = read_parts(data / "source", data / "labeled.csv", data / "unlabeled")
    assert len(parts.split.target_labeled) == 4
    report = check_data(data / "source.csv", data / "labeled", data / "unlabeled")
    assert report.problems[0].startswith("source has 2 images without class:")
    with pytest.raises(DataError, match="must be labelled, but 2 of 8 are not"):
        read_parts(data / "source.csv", data / "labeled", data / "unlabeled")


def test_office31(office31: Path) -> None:
    webcam, dslr = (list_class_folders(office31 / name / "images") for name in ("webcam", "dslr"))
    report = check_data(webcam, _keep(webcam, slice(0, None, 5)), _keep(dslr, slice(40)))
    assert report.ok
    assert report.summary[0].startswith("source: 795 images, 11 to 43 in each of 31 classes")
    assert any(text.startswith("159 images both in source and in labeled") for text in report.warnings)


def _keep(listing: Listing, which: slice) -> Listing:
    return replace(listing, paths=listing.paths[which], labels=listing.labels[which])


def test_ctrl_c_does_not_wait_for_the_rest(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    looked: list[object] = []

    def slow(entry: object) -> str:
        looked.append(entry)
        time.sleep(0.05)
        return "unreadable"

    def interrupt(done: int, total: int) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("qurate.data.checks._look", slow)
    with pytest.raises(KeyboardInterrupt):
        check_data(data / "source", data / "labeled", data / "unlabeled", on_progress=interrupt)
    assert len(looked) < 34


# target, shots -> validation inside unlabelled, validation inside labelled


def _rename(data: Path, name: bytes) -> None:
    for part in ("source", "labeled"):
        (data / part / "cat").rename(data / part / os.fsdecode(name))


@pytest.mark.skipif(sys.platform != "linux", reason="names of files are valid text elsewhere")
def test_class_folders_that_are_no_text_are_a_problem_and_adapt_refuses_them(data: Path) -> None:
    _rename(data, b"caf\xe9")
    report = _check(data)
    assert len(report.problems) == 2
    for part, problem in zip(("source", "labeled"), report.problems, strict=True):
        assert f"{data / part}: class folders must have names in UTF-8, got ''caf\\udce9''. Rename them." in problem
    with pytest.raises(DataError, match="class folders must have names in UTF-8"):
        read_parts(data / "source", data / "labeled", data / "unlabeled")


def test_adapt_counts_the_copies_that_check_would_list(data: Path) -> None:
    def copies() -> list[str]:
        parts = read_parts(data / "source", data / "labeled", data / "unlabeled")
        return [note for note in parts.notes if "'qurate check' lists them" in note]

    assert copies() == []
    shutil.copy(data / "unlabeled" / "cat 0.png", data / "unlabeled" / "again.png")
    assert copies() == ["1 image is a copy of another, by content. 'qurate check' lists them and says what to do."]
    shutil.copy(data / "source" / "cat" / "cat 0.png", data / "labeled" / "dog" / "again.png")
    shutil.copy(data / "labeled" / "cat" / "cat 0.png", data / "unlabeled" / "left out.png")
    assert copies() == [
        "2 images are copies of others, by content; 1 has more than one class. 'qurate check' lists them and says what "
        "to do."
    ]


READ = "import sys; from qurate.data.listing import list_class_folders; list_class_folders(sys.argv[1])"


@pytest.mark.skipif(sys.platform != "linux", reason="names of files are valid text elsewhere")
def test_a_locale_that_cannot_read_the_classes_is_named_with_the_way_out(data: Path) -> None:
    _rename(data, "café".encode())
    done = subprocess.run(
        [sys.executable, "-c", READ, str(data / "source")],
        env={**os.environ, "LC_ALL": "C", "PYTHONUTF8": "0"},
        capture_output=True,
        text=True,
    )
    said = done.stderr.splitlines()[-1]
    assert said.startswith("qurate.errors.DataError: ")
    assert "read as ascii because of the locale; set PYTHONUTF8=1, or a locale such as C.UTF-8" in said
