"""Domains from folders: one folder for each class, or any folder without labels."""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterator
from pathlib import Path

import torch
from PIL import Image

from qurate.data.domains import HIDDEN, NO_IMAGE, DataWarning, Domain, Skipped, compose_name, list_some
from qurate.data.images import ImageFiles
from qurate.data.places import IMAGE_SUFFIXES, as_path, is_file, is_folder, shorten
from qurate.data.samples import DataError


def read_folder(path: Path | str, name: str | None = None) -> Domain:
    """A domain from a folder of class folders, `path/<class>/.../<image>`.

    The order is that of the class names, then of the paths below them, on every machine. Hidden files,
    files that are no images and broken images are listed in `skipped`; broken images also warn.

    Args:
        path: The folder. Images at any depth below a class folder belong to that class.
        name: What messages call the domain; the folder's name if None.

    Raises:
        DataError: If the folder is missing, has no class folders or no readable image.
    """
    root = _existing_folder(path)
    images, skipped = _scan(root, in_class_folders=True)
    folders = [child.name for child in root.iterdir() if child.is_dir()]
    classes = sorted({compose_name(folder) for folder in folders if not folder.startswith(".")})
    if not classes:
        raise DataError(
            f"{root} must hold one folder for each class, got none. Sort the images into class folders, or give the "
            "folder that holds those."
        )
    if not images:
        raise _no_images(root, skipped)
    labels = [classes.index(compose_name(image.relative_to(root).parts[0])) for image in images]
    return Domain(name or root.resolve().name, ImageFiles(tuple(images)), torch.tensor(labels), tuple(classes), skipped)


def read_unlabeled_folder(path: Path | str, name: str | None = None) -> Domain:
    """A domain without labels from every image in or below a folder, ordered by path.

    Args:
        path: The folder; folders inside it mean nothing.
        name: What messages call the domain; the folder's name if None.

    Raises:
        DataError: If the folder is missing or has no readable image.
    """
    root = _existing_folder(path)
    images, skipped = _scan(root, in_class_folders=False)
    if not images:
        raise _no_images(root, skipped)
    labels = torch.full((len(images),), -1, dtype=torch.int64)
    return Domain(name or root.resolve().name, ImageFiles(tuple(images)), labels, (), skipped)


def _existing_folder(path: Path | str) -> Path:
    folder = as_path(path, "path", "a folder")
    if not is_folder(folder):
        came = "a file" if is_file(folder) else "does not exist"
        raise DataError(f"path must be an existing folder, got {shorten(folder)} ({came}). Check the path.")
    return folder


def _no_images(root: Path, skipped: tuple[Skipped, ...]) -> DataError:
    reasons = f": {list_some((f'{s.path.name}: {s.reason}' for s in skipped), 3)}" if skipped else ""
    return DataError(
        f"{root} must hold at least one readable image "
        f"({', '.join(sorted(IMAGE_SUFFIXES))}), got none among {len(skipped)} files{reasons}."
    )


def _scan(root: Path, *, in_class_folders: bool) -> tuple[list[Path], tuple[Skipped, ...]]:
    images, skipped, broken = [], [], []
    for file in _sorted_files(root):
        parts = file.relative_to(root).parts
        if any(part.startswith(".") for part in parts):
            skipped.append(Skipped(file, HIDDEN))
        elif file.suffix.lower() not in IMAGE_SUFFIXES:
            skipped.append(Skipped(file, NO_IMAGE))
        elif in_class_folders and len(parts) == 1:
            skipped.append(Skipped(file, "image outside the class folders"))
        elif reason := _why_broken(file):
            broken.append(Skipped(file, reason))
        else:
            images.append(file)
    if broken and images:
        warnings.warn(
            f"{root}: {len(broken)} of {len(broken) + len(images)} images are broken and left out: "
            f"{list_some(b.path.relative_to(root) for b in broken)}. Replace or remove them.",
            DataWarning,
            stacklevel=3,
        )
    return images, (*skipped, *broken)


def _sorted_files(root: Path) -> list[Path]:
    try:
        files = list(_walk(root, ()))
    except OSError as error:
        raise DataError(f"{root} cannot be listed ({error}). Check who may read it.") from error
    return sorted(files, key=lambda file: [compose_name(part) for part in file.relative_to(root).parts])


def _walk(folder: Path, above: tuple[str, ...]) -> Iterator[Path]:
    """Every file below, through links to folders too, but not round in a circle."""
    here = os.path.realpath(folder)
    if here in above:
        return
    for child in folder.iterdir():
        if child.is_dir():
            yield from _walk(child, (*above, here))
        else:
            yield child


def _why_broken(file: Path) -> str | None:
    """The reason if the file's head is no image's; damage deeper inside shows on decoding."""
    if not file.is_file():
        return "broken link or no regular file"
    try:
        with Image.open(file):
            return None
    except Exception as error:  # PIL's format readers raise whatever their parsers meet
        return f"cannot be opened as an image ({type(error).__name__})"
