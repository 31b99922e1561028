from __future__ import annotations

import os
import unicodedata
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from tests.data.files import image_files

from qurate.data.domains import (
    DataWarning,
    Domain,
    from_arrays,
    leave_out,
    match_classes,
    read_folder,
    read_unlabeled_folder,
)
from qurate.data.images import ImageFiles, check_pixels, try_all
from qurate.data.samples import DataError


def _domain(name: str, labels: list[int], classes: tuple[str, ...]) -> Domain:
    return Domain(name, torch.arange(len(labels)).float()[:, None], torch.tensor(labels), classes)


def _names(domain: Domain) -> list[str | None]:
    return [None if label < 0 else domain.classes[label] for label in domain.labels.tolist()]


def _truncated(path: Path) -> Path:
    noise = np.random.default_rng(0).integers(0, 256, (64, 64, 3), dtype=np.uint8)
    Image.fromarray(noise).save(path)
    path.write_bytes(path.read_bytes()[:1500])
    return path


@pytest.mark.parametrize(
    ("labels", "classes", "message"),
    [
        (torch.tensor([0, 1, 0]), ("a", "b"), "2 inputs and 3 labels"),
        (torch.tensor([0, 2]), ("a", "b"), "between -1 .* got 0 to 2"),
        (torch.tensor([0, -2]), ("a", "b"), "got -2 to 0"),
        (torch.tensor([0.0, 1.0]), ("a", "b"), "must be one-dimensional int64, got torch.float32"),
        (torch.tensor([0, 1]), ("a", "a"), "class names must differ"),
    ],
)
def test_domain_refuses_labels_that_do_not_fit(labels: torch.Tensor, classes: tuple[str, ...], message: str) -> None:
    with pytest.raises(DataError, match=message):
        Domain("d", torch.zeros(2, 1), labels, classes)


def test_class_sizes_leave_out_the_unlabelled() -> None:
    assert _domain("d", [0, 2, -1, 2], ("a", "b", "c")).class_sizes().tolist() == [1, 0, 2]


@pytest.mark.parametrize(
    ("labels", "classes", "expected"),
    [
        ([5, 2, -1], None, ["5", "2", None]),
        (np.array([10, 9, 10], dtype=np.uint8), None, ["10", "9", "10"]),
        (torch.tensor([1, 0, -1]), ["x", "y"], ["y", "x", None]),
        (["dog", "", "cat"], None, ["dog", None, "cat"]),
        (np.array(["b", "a", "a"], dtype=object), ["b", "a"], ["b", "a", "a"]),
        (None, None, [None, None, None]),
        (None, ["x", "y"], [None, None, None]),
    ],
)
def test_arrays_keep_the_meaning_of_their_labels(
    labels: Any, classes: list[str] | None, expected: list[str | None]
) -> None:
    domain = from_arrays(np.zeros((3, 2)), labels, classes)
    assert _names(domain) == expected
    assert classes is None or domain.classes == tuple(classes)


def test_integer_labels_are_ordered_by_value() -> None:
    assert from_arrays(np.zeros((2, 1)), [10, 9]).classes == ("9", "10")


@pytest.mark.parametrize(
    "inputs",
    [
        np.array([[0, 255]], dtype=np.uint8),
        np.array([[0.0, 255.0]]),
        torch.tensor([[0, 255]]),
        torch.tensor([[0.0, 255.0]], dtype=torch.float64),
    ],
)
def test_arrays_become_float32_with_the_same_values(inputs: Any) -> None:
    domain = from_arrays(inputs, [0])
    assert torch.equal(torch.as_tensor(domain.inputs), torch.tensor([[0.0, 255.0]]))


def test_a_read_only_array_is_copied() -> None:
    array = np.ones((2, 2), dtype=np.float32)
    array.flags.writeable = False
    domain = from_arrays(array, [0, 1])
    assert isinstance(domain.inputs, torch.Tensor)
    domain.inputs.zero_()
    assert array.sum() == 4


@pytest.mark.parametrize(
    ("inputs", "labels", "message"),
    [
        (np.zeros((2, 1)), [0], r"labels of 'arrays' must have shape \(2,\).*got \(1,\)"),
        (np.zeros(2), [0, 1], r"must have shape \(samples, ...\).*got \(2,\)"),
        (np.zeros((0, 4)), [], "at least one sample"),
        (np.array([[np.nan], [0], [np.inf]]), [0, 1, 1], "NaN or infinity in 2 of 3"),
        (np.array([["a"], ["b"]]), [0, 1], "must be real numbers, got dtype <U1"),
        (np.zeros((2, 1)), [0.0, 1.0], "must be integers .* got dtype float64"),
        (np.zeros((2, 1)), [0, -2], "at least 0, got -2"),
    ],
)
def test_arrays_that_cannot_be_used_are_named(inputs: Any, labels: Any, message: str) -> None:
    with pytest.raises(DataError, match=message):
        from_arrays(inputs, labels)


def test_a_label_outside_the_classes_is_named() -> None:
    with pytest.raises(DataError, match=r"must be among classes \('cat'\), got 'dog'"):
        from_arrays(np.zeros((2, 1)), ["cat", "dog"], ["cat"])
    with pytest.raises(DataError, match="got 0 to 1"):
        from_arrays(np.zeros((2, 1)), [0, 1], ["cat"])


def test_unreadable_files_are_left_out_and_named(tmp_path: Path) -> None:
    paths = [_truncated(tmp_path / "0.jpg"), tmp_path / "1.png", tmp_path / "2.jpg", tmp_path / "3.png"]
    Image.new("RGB", (2, 2)).save(paths[1])
    paths[2].write_text("no image")
    Image.new("L", (1, 1)).save(paths[3])
    domain = Domain("d", image_files(paths), torch.tensor([0, 1, 0, -1]), ("a", "b"))
    calls: list[tuple[int, int]] = []
    _, unreadable = try_all(check_pixels, paths, lambda done, total: calls.append((done, total)))
    assert calls == [(1, 4), (2, 4), (3, 4), (4, 4)]
    with pytest.warns(DataWarning, match=r"2 of 4 images of 'd' cannot be read and are left out: '.*0.jpg', '.*2.jpg'"):
        rest = leave_out(domain, unreadable)
    assert rest.inputs == image_files([paths[1], paths[3]])
    assert rest.labels.tolist() == [1, -1]
    assert [skipped.path for skipped in rest.skipped] == [paths[0], paths[2]]
    assert all("cannot be decoded" in skipped.reason for skipped in rest.skipped)
    assert leave_out(rest, unreadable) is rest


def test_a_domain_is_not_left_empty(tmp_path: Path) -> None:
    domain = Domain("d", image_files([tmp_path / "gone.png"]), torch.tensor([0]), ("a",))
    with pytest.raises(DataError, match="1 of 1 images of 'd' cannot be read"):
        leave_out(domain, try_all(check_pixels, [tmp_path / "gone.png"])[1])


def test_classes_are_matched_by_name_in_the_source_order() -> None:
    source = _domain("s", [0, 1, 2], ("c", "a", "b"))
    target = _domain("t", [0, 1, 2, -1], ("a", "b", "c"))
    matched_source, matched_target = match_classes(source, target)
    assert matched_source is source
    assert matched_target.classes == ("c", "a", "b")
    assert _names(matched_target) == _names(target)
    assert torch.equal(torch.as_tensor(matched_target.inputs), torch.as_tensor(target.inputs))


def test_a_class_on_one_side_only_is_an_error() -> None:
    source = _domain("s", [0, 1], ("a", "b"))
    target = _domain("t", [0, 1, 1], ("a", "z"))
    with pytest.raises(DataError) as caught:
        match_classes(source, target)
    assert "only 's' has 'b' (1 class, 1 sample)" in str(caught.value)
    assert "only 't' has 'z' (1 class, 2 samples)" in str(caught.value)
    assert str(caught.value).endswith("samples). Rename the classes alike.")


def test_classes_of_the_source_alone_are_to_be_labelled() -> None:
    source, target = _domain("s", [0, 1, 2], ("a", "b", "c")), _domain("t", [0, 1], ("a", "b"))
    with pytest.raises(DataError, match=r"Label an image of each in 't', or rename .*, or pass `missing='drop'`"):
        match_classes(source, target)


def test_dropping_a_class_counts_its_samples() -> None:
    source = _domain("s", [0, 1, 2, 1], ("a", "b", "c"))
    target = _domain("t", [0, 1, 1, -1, 2], ("c", "z", "a"))
    with pytest.warns(DataWarning, match=r"'b' \(1 class, 2 samples\).*'z' \(1 class, 2 samples\)"):
        matched = match_classes(source, target, missing="drop")
    assert [domain.classes for domain in matched] == [("a", "c")] * 2
    assert [_names(domain) for domain in matched] == [["a", "c"], ["c", None, "a"]]
    assert torch.as_tensor(matched[1].inputs).flatten().tolist() == [0, 3, 4]


def test_no_common_class_is_an_error_even_when_dropping() -> None:
    with pytest.raises(DataError, match="must have the same class names"):
        match_classes(_domain("s", [0], ("a",)), _domain("t", [0], ("0",)), missing="drop")


def test_matching_says_nothing_when_nothing_is_wrong() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        match_classes(_domain("s", [0], ("a",)), _domain("t", [0], ("a",)), missing="drop")


def test_keep_takes_files_and_labels_together() -> None:
    domain = Domain("d", image_files(["x", "y", "z"]), torch.tensor([0, 1, -1]), ("a", "b"))
    kept = domain.keep(torch.tensor([2, 1]))
    assert kept.inputs == ImageFiles((Path("z"), Path("y")))
    assert kept.labels.tolist() == [-1, 1]


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


def test_folders_may_be_deep(tmp_path: Path) -> None:
    folders = [tmp_path / "d"]
    while len(folders) < 1100:
        folders.append(folders[-1] / "d")
    for folder in folders:
        folder.mkdir()
    _image(folders[-1] / "x.png")
    (folders[-1] / "up").symlink_to(folders[-3])
    assert read_unlabeled_folder(tmp_path).inputs == ImageFiles((folders[-1] / "x.png",))
    for path in (folders[-1] / "up", folders[-1] / "x.png"):
        path.unlink()
    for folder in reversed(folders):  # pytest cannot remove them
        folder.rmdir()


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
