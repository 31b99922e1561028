from __future__ import annotations

from pathlib import Path

import pytest
from PIL import Image

from qurate.data.domains import DataWarning
from qurate.data.own_images import find_images, read_unlabeled
from qurate.data.samples import DataError


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name in ("a.jpg", "deep/b c.png", "deep/ü.png"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (8, 8)).save(tmp_path / name)
    return tmp_path


@pytest.mark.parametrize(
    "text", ["a.jpg\ndeep/b c.png\n", "a.jpg mug\ndeep/b c.png mug\n", "a.jpg 0\n\ndeep/b c.png -1\n"]
)
def test_a_list_names_files_with_or_without_a_class(folder: Path, text: str) -> None:
    (folder / "list.txt").write_text(text)
    expected = [folder / "a.jpg", folder / "deep/b c.png"]
    assert find_images(folder / "list.txt") == expected
    assert list(read_unlabeled(folder / "list.txt", "unlabeled").inputs.paths) == expected  # type: ignore[union-attr]  # files


def test_images_come_from_a_folder_a_glob_or_a_file(folder: Path) -> None:
    assert len(find_images(folder)) == 3
    assert find_images(str(folder / "deep" / "*.png")) == [folder / "deep/b c.png", folder / "deep/ü.png"]
    assert find_images(folder / "a.jpg") == [folder / "a.jpg"]


def test_nothing_found_says_what_is_allowed(folder: Path) -> None:
    with pytest.raises(DataError, match="a folder, a glob, a list file or paths"):
        find_images(str(folder / "*.tiff"))
    (folder / "lost.txt").write_text("nowhere.jpg mug\n")
    with pytest.raises(DataError, match=r"1 of 1 listed files do not exist"):
        read_unlabeled(folder / "lost.txt", "unlabeled")


def test_images_of_a_kind_that_is_not_read_are_mentioned(folder: Path) -> None:
    for name in ("c.avif", "deep/d.HEIC", "notes.txt", ".hidden.avif"):
        (folder / name).write_bytes(b"content")
    with pytest.warns(DataWarning, match=r"2 images of a kind that qurate does not read .*'c.avif', 'deep/d.HEIC'"):
        assert len(find_images(folder)) == 3
