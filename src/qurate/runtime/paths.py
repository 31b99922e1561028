"""Paths as people write them, judged before anything is read. Needs nothing heavy."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TypeAlias

from qurate.errors import DataError

StrPath: TypeAlias = Path | str

IMAGE_SUFFIXES = frozenset({".bmp", ".gif", ".jpeg", ".jpg", ".png", ".ppm", ".tif", ".tiff", ".webp"})

LABELED = "a folder of class folders, a list file ('path class' per line) or a CSV table"
"""What a labelled part may be."""
UNLABELED = "a folder, a list file or a CSV table"
"""What an unlabelled part may be."""


def each_place(where: StrPath | Sequence[StrPath]) -> tuple[StrPath, ...]:
    """The places of a part that may be one or several."""
    return (where,) if isinstance(where, str | os.PathLike) else tuple(where)


def each_source(where: StrPath | Sequence[StrPath]) -> tuple[StrPath, ...]:
    """The places of one or several source domains.

    Raises:
        DataError: If there is none.
    """
    places = each_place(where)
    if not places:
        raise DataError(f"`source` must be one or more of {LABELED}, got none. Name them.")
    return places


def existing(where: StrPath, argument: str, allowed: str) -> Path:
    """The path, if there is something at it that may hold a part.

    Args:
        where: What was given.
        argument: Whose value it is.
        allowed: What it may be.

    Raises:
        DataError: If it is empty, is no path, or leads to nothing or to an image.
    """
    path = as_path(where, argument, allowed)
    if is_file(path) and path.suffix.lower() in IMAGE_SUFFIXES:
        raise DataError(
            f"{argument} must be {allowed}, got {path} (an image). Give the folder or the list of all images."
        )
    if not is_file(path) and not is_folder(path):
        raise DataError(f"{argument} must be {allowed}, got {shorten(path)} (does not exist). Check the path.")
    return path


def as_path(where: object, argument: str, allowed: str) -> Path:
    """A path that was given.

    Raises:
        DataError: If it is none, or is empty.
    """
    if not isinstance(where, str | os.PathLike):
        raise DataError(f"{argument} must be the path of {allowed}, got {type(where).__name__}.")
    if not os.fspath(where):
        raise DataError(f"{argument} is empty; is a variable unset? It must be {allowed}.")
    if "\0" in os.fsdecode(where):
        raise DataError(
            f"{argument} must be the path of {allowed}, got {shorten(repr(where))}, which no file can have."
        )
    return Path(where)


def is_file(path: Path) -> bool:
    """Whether there is a file; a path that no file can have, or that may not be looked at, leads to none."""
    try:
        return path.is_file()
    except OSError:
        return False


def is_folder(path: Path) -> bool:
    """Whether there is a folder, likewise."""
    try:
        return path.is_dir()
    except OSError:
        return False


def shorten(name: object) -> str:
    """A name for a message; of a very long one, the first 200 characters."""
    text = str(name)
    return text if len(text) <= 200 else f"{text[:200]}..."


def count(number: int, noun: str, plural: str = "") -> str:
    """'1 image', '3 images'; the plural has an s unless given."""
    return f"{number} {noun if number == 1 else plural or noun + 's'}"


def list_some(names: Iterable[object], limit: int = 8) -> str:
    """Names for a message: the first few quoted, the rest counted."""
    quoted = [f"'{shorten(name)}'" for name in names]
    rest = len(quoted) - limit
    return ", ".join(quoted[:limit]) + (f" and {rest} more" if rest > 0 else "")
