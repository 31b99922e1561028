"""Images stored once at training size, so that no step decodes or resizes them again."""

from __future__ import annotations

import hashlib
import io
from collections.abc import Iterable
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np

from qurate.data.images import ImageFiles, OnProgress, Transform, try_all
from qurate.data.samples import Inputs, Labeled, Split, Unlabeled
from qurate.runtime.files import write_atomically


def prepare_images(
    paths: Iterable[Path], transform: Transform, folder: Path, on_progress: OnProgress | None = None
) -> tuple[dict[Path, Path], dict[Path, str]]:
    """Store images as arrays of the size that they are cut from; those that are there already stay.

    An array is what `Transform` makes of the image before it crops, so a run on it is the same to the last bit. A file
    is named by the image's path, size and time of change, and by how it is resized.

    Args:
        paths: Image files.
        transform: How the backbone prepares images.
        folder: Where to store them; resize * resize * 3 bytes for each.
        on_progress: Told how many are done.

    Returns:
        The array of each image, and the reason for those that cannot be read.
    """
    return try_all(partial(_store, folder, transform), paths, on_progress)


def read_prepared(split: Split, stored: dict[Path, Path]) -> Split:
    """The split on the stored arrays."""
    source, target = split.source, split.target_labeled
    return replace(
        split,
        source=Labeled(_stored(source.inputs, stored), source.labels),
        target_labeled=Labeled(_stored(target.inputs, stored), target.labels),
        target_unlabeled=Unlabeled(_stored(split.target_unlabeled.inputs, stored), split.target_unlabeled.sealed),
    )


def _stored(inputs: Inputs, stored: dict[Path, Path]) -> Inputs:
    assert isinstance(inputs, ImageFiles)
    return ImageFiles(tuple(stored[path] for path in inputs.paths))


def _store(folder: Path, transform: Transform, path: Path) -> Path:
    about = path.stat() if path.is_file() else None
    changed = (about.st_size, about.st_mtime_ns) if about is not None else ()
    named = (transform.resize, transform.interpolation, str(path.absolute()), *changed)
    digest = hashlib.sha256(repr(named).encode(errors="surrogateescape")).hexdigest()
    place = folder / digest[:2] / f"{digest[:32]}.npy"
    if not _is_whole(place, transform.resize):
        resized = transform.resized(transform.read(path))
        content = io.BytesIO()
        np.save(content, np.asarray(resized, dtype=np.uint8), allow_pickle=False)
        write_atomically(place, content.getvalue())
    return place


def _is_whole(place: Path, side: int) -> bool:
    """Whether an array of this size is stored there."""
    try:
        return bool(np.load(place, mmap_mode="r", allow_pickle=False).shape == (side, side, 3))
    except (OSError, ValueError, EOFError):  # not there, or damaged
        return False
