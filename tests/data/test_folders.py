from __future__ import annotations

import os
import unicodedata
from collections.abc import Callable
from pathlib import Path

import pytest
from PIL import Image

from qurate.data.domains import DataWarning, Domain, read_folder, read_unlabeled_folder
from qurate.data.images import ImageFiles
from qurate.data.samples import DataError


def _image(path: Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", (2, 2)).save(path)
    return path


def _found(domain: Domain, root: Path) -> list[str]:
    assert isinstance(domain.inputs, ImageFiles)
    return [path.relative_to(root).as_posix() for path in domain.inputs.paths]


def test_class_folders_become_classes_in_order(tmp_path: Path) -> None:
    names = ["größe m/b c.PNG", "größe m/a.jpg", "apfel/deep/er/x.webp", "apfel/z.tiff", "日本/1.bmp"]
    for name in names:
        _image(tmp_path / name)
    domain = read_folder(tmp_path, name="fruit")
    assert domain.name == "fruit"
    assert domain.classes == ("apfel", "größe m", "日本")
    assert domain.labels.tolist() == [0, 0, 1, 1, 2]
    expected = ["apfel/deep/er/x.webp", "apfel/z.tiff", "größe m/a.jpg", "größe m/b c.PNG", "日本/1.bmp"]
    assert _found(domain, tmp_path) == expected
    assert domain.skipped == ()


def test_the_order_of_creation_does_not_matter(tmp_path: Path) -> None:
    names = [f"{kind}/{i}.png" for kind in "ba" for i in (10, 9, 1)]
    for name in names:
        _image(tmp_path / "one" / name)
    for name in reversed(names):
        _image(tmp_path / "two" / name)
    one, two = (read_folder(tmp_path / side) for side in ("one", "two"))
    assert _found(one, tmp_path / "one") == _found(two, tmp_path / "two") == sorted(names)
    assert one.labels.tolist() == two.labels.tolist()


def test_everything_left_out_is_listed_with_a_reason(tmp_path: Path) -> None:
    _image(tmp_path / "a" / "good.png")
    _image(tmp_path / "a" / ".hidden.png")
    _image(tmp_path / "a" / ".checkpoints" / "copy.png")
    _image(tmp_path / "loose.png")
    (tmp_path / "a" / "notes.txt").write_text("no image")
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / "text.jpg").write_text("no image")
    (tmp_path / "b" / "empty.jpg").touch()
    (tmp_path / "b" / "link.jpg").symlink_to(tmp_path / "gone.jpg")
    (tmp_path / ".git").mkdir()
    with pytest.warns(DataWarning, match="3 of 4 images are broken and left out: 'b/empty.jpg', 'b/link.jpg'"):
        domain = read_folder(tmp_path)
    assert domain.classes == ("a", "b")
    assert _found(domain, tmp_path) == ["a/good.png"]
    reasons = {skip.path.relative_to(tmp_path).as_posix(): skip.reason for skip in domain.skipped}
    assert reasons == {
        "a/.checkpoints/copy.png": "hidden",
        "a/.hidden.png": "hidden",
        "a/notes.txt": "not an image file",
        "loose.png": "image outside the class folders",
        "b/empty.jpg": "cannot be opened as an image (UnidentifiedImageError)",
        "b/text.jpg": "cannot be opened as an image (UnidentifiedImageError)",
        "b/link.jpg": "broken link or no regular file",
    }
    assert sum(len(files) for _, _, files in os.walk(tmp_path)) == len(domain) + len(domain.skipped)


def test_linked_folders_are_followed_but_not_in_circles(tmp_path: Path) -> None:
    _image(tmp_path / "store" / "x.png")
    (tmp_path / "data" / "b").mkdir(parents=True)
    (tmp_path / "data" / "a").symlink_to(tmp_path / "store")
    (tmp_path / "data" / "b" / "round").symlink_to(tmp_path / "data")
    assert _found(read_folder(tmp_path / "data"), tmp_path / "data") == ["a/x.png"]


def test_decomposed_names_are_the_same_class(tmp_path: Path) -> None:
    _image(tmp_path / unicodedata.normalize("NFD", "café") / "x.png")
    assert read_folder(tmp_path).classes == (unicodedata.normalize("NFC", "café"),)


def test_an_unlabelled_folder_may_be_flat_or_nested(tmp_path: Path) -> None:
    for name in ("z.png", "a/b/c.jpg", "a/a.jpg"):
        _image(tmp_path / name)
    (tmp_path / "Thumbs.db").touch()
    domain = read_unlabeled_folder(tmp_path)
    assert _found(domain, tmp_path) == ["a/a.jpg", "a/b/c.jpg", "z.png"]
    assert domain.labels.tolist() == [-1, -1, -1]
    assert domain.classes == ()
    assert [skip.path.name for skip in domain.skipped] == ["Thumbs.db"]


def test_the_current_folder_has_a_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _image(tmp_path / "a" / "x.png")
    monkeypatch.chdir(tmp_path)
    assert read_folder(".").name == tmp_path.name


@pytest.mark.parametrize("read", [read_folder, read_unlabeled_folder])
def test_a_missing_folder_or_a_file_is_an_error(tmp_path: Path, read: Callable[[Path], Domain]) -> None:
    with pytest.raises(DataError, match=r"must be an existing folder, got .*gone \(does not exist\)"):
        read(tmp_path / "gone")
    with pytest.raises(DataError, match="a file"):
        read(_image(tmp_path / "x.png"))


def test_a_folder_without_usable_images_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="must hold one folder for each class"):
        read_folder(tmp_path)
    with pytest.raises(DataError, match="got none among 0 files"):
        read_unlabeled_folder(tmp_path)
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "x.jpg").write_text("no image")
    with pytest.raises(DataError, match=r"got none among 1 files: 'x.jpg: cannot be opened"):
        read_folder(tmp_path)


def test_office31_folders_hold_what_the_readme_says(office31: Path) -> None:
    domains = [read_folder(office31 / name / "images", name) for name in ("amazon", "dslr", "webcam")]
    assert [len(domain) for domain in domains] == [2817, 498, 795]
    assert [len(domain.classes) for domain in domains] == [31, 31, 31]
    assert [domain.skipped for domain in domains] == [(), (), ()]
