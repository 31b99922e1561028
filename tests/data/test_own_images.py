from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from tests.test_distributed import pictures

from qurate.config import TrainingConfig
from qurate.data.batches import Batch, TrainingData, stream_batches
from qurate.data.domains import DataWarning
from qurate.data.images import ImageFiles, Transform, UnreadableImageError, read_image
from qurate.data.own_images import find_images, prepare_images, read_prepared, read_unlabeled
from qurate.data.samples import DataError, Labeled, Split, Unlabeled


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


def test_images_to_predict_are_those_that_a_run_would_read(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    elsewhere = folder.with_name(f"{folder.name} elsewhere")
    elsewhere.mkdir()
    (folder / "deep/ü.png").rename(elsewhere / "ü.png")
    (folder / "link").symlink_to(elsewhere)
    (folder / "circle").symlink_to(folder)
    assert find_images(folder) == [folder / "a.jpg", folder / "deep/b c.png", folder / "link/ü.png"]

    def refuse(path: Path, list_it: Callable[[Path], Iterator[Path]] = Path.iterdir) -> Iterator[Path]:
        if path.name == "deep":
            raise PermissionError(13, "Permission denied", str(path))
        return list_it(path)

    monkeypatch.setattr(Path, "iterdir", refuse)
    with pytest.raises(DataError, match=r"cannot be listed \(.*Permission denied: '.*deep'\). Check who may read it"):
        find_images(folder)


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


SMALL = Transform(resize=24, crop=16)


def make_split(folder: Path) -> Split:
    source, labeled = (Labeled(*pictures(folder, count, seed)) for seed, count in ((0, 5), (1, 3)))
    return Split(tuple("abc"), source, labeled, Unlabeled(pictures(folder, 4, 2)[0]))


def batches(split: Split, workers: int = 0, first: int = 0) -> list[Batch]:
    config = TrainingConfig(batch_source=2, batch_target=3, batch_unlabeled=4)
    data = TrainingData.of(split)
    chosen = data.with_positives(torch.tensor([1, 3]), torch.tensor([0, 2]))
    return list(stream_batches(chosen, config, steps=4, seed=7, transform=SMALL, first=first, workers=workers))


def assert_equal(one: list[Batch], other: list[Batch]) -> None:
    assert len(one) == len(other)
    for first, second in zip(one, other, strict=True):
        assert all(torch.equal(a, b) for a, b in zip(first[:5], second[:5], strict=True))


def test_stored_images_give_the_same_batches_and_are_stored_once(tmp_path: Path) -> None:
    split, place = make_split(tmp_path), tmp_path / "stored"
    every = [p for part in (split.source, split.target_labeled, split.target_unlabeled) for p in part.inputs.paths]  # type: ignore[union-attr]
    stored, unreadable = prepare_images(every, SMALL, place)
    assert (len(stored), unreadable) == (12, {})
    before = {path: path.stat().st_mtime_ns for path in place.rglob("*.npy")}
    assert np.load(next(iter(before))).shape == (24, 24, 3)
    assert_equal(batches(split), batches(read_prepared(split, stored)))
    assert prepare_images(every, SMALL, place)[0] == stored
    assert {path: path.stat().st_mtime_ns for path in place.rglob("*.npy")} == before
    assert set(prepare_images(every, replace(SMALL, resize=20), place)[0].values()).isdisjoint(before)


def test_an_image_that_cannot_be_read_is_named_and_one_that_changed_is_stored_again(tmp_path: Path) -> None:
    (tmp_path / "bad.png").write_bytes(b"no image")
    stored, unreadable = prepare_images([tmp_path / "bad.png"], SMALL, tmp_path / "stored")
    assert stored == {}
    assert "cannot be decoded" in unreadable[tmp_path / "bad.png"]
    pictures(tmp_path, 1, 5)
    (tmp_path / "bad.png").write_bytes((tmp_path / "5-0.png").read_bytes())
    assert len(prepare_images([tmp_path / "bad.png"], SMALL, tmp_path / "stored")[0]) == 1


def test_a_damaged_array_is_named(tmp_path: Path) -> None:
    (tmp_path / "a.npy").write_bytes(b"\x93NUMPY what")
    with pytest.raises(UnreadableImageError, match=r"a\.npy"):
        read_image(tmp_path / "a.npy")


def test_one_stream_by_any_number_of_workers_and_from_any_batch_on(tmp_path: Path) -> None:
    split = make_split(tmp_path)
    whole = batches(split)
    assert [tuple(part.shape[0] for part in batch[:5]) for batch in whole] == [(2, 2, 3, 3, 4)] * 4
    assert_equal(whole, batches(split, workers=2))
    assert_equal(whole[3:], batches(split, first=3))


def test_tensors_beside_files_are_refused(tmp_path: Path) -> None:
    split = make_split(tmp_path)
    mixed = replace(split, source=Labeled(torch.zeros(5, 3, 16, 16), split.source.labels))
    assert isinstance(mixed.target_labeled.inputs, ImageFiles)
    with pytest.raises(DataError, match="some of both"):
        batches(mixed)
