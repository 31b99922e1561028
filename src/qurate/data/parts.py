"""Images as people have them: a folder, a list or a table for each part, and what was understood of it."""

from __future__ import annotations

import glob
import hashlib
import os
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, TypeAlias

import pandas as pd
import torch

from qurate.data.domains import DataError, DataWarning, Domain, list_some, match_classes, verify_images
from qurate.data.embedding.contents import read_contents
from qurate.data.embedding.embed import default_cache
from qurate.data.folders import read_folder, read_unlabeled_folder
from qurate.data.images import IMAGE_SUFFIXES, ImageFiles
from qurate.data.lists import read_list, read_table
from qurate.data.samples import Labeled, Split
from qurate.data.splits import split_parts

Place: TypeAlias = Path | str


@dataclass(frozen=True, eq=False)
class Parts:
    """The three parts of a run, read and checked.

    Args:
        name: Source and target, by their folders' names.
        split: Image files; nothing is sealed, for no one knows the hidden labels.
        digest: Of all contents and labels: equal data, equal digest, wherever it lies.
        notes: Sentences on what was left out.
    """

    name: str
    split: Split
    digest: str
    notes: tuple[str, ...]

    def lines(self) -> list[str]:
        """What was understood, one sentence each."""
        split = self.split
        shots = torch.bincount(split.target_labeled.labels, minlength=split.n_classes)
        few = f"{int(shots.min())}" if shots.min() == shots.max() else f"{int(shots.min())} to {int(shots.max())}"
        return [
            f"{split.n_classes} classes: {list_some(split.classes, 5)}.",
            f"Source: {len(split.source)} labelled images.",
            f"Target: {len(split.target_labeled)} labelled images ({few} a class), "
            f"{len(split.target_unlabeled)} unlabelled.",
            *self.notes,
        ]


def read_parts(
    source: Place,
    labeled: Place,
    unlabeled: Place,
    *,
    missing: Literal["error", "drop"] = "error",
    cache: Path | None = None,
) -> Parts:
    """Read the parts of a run; every file is decoded once, so that a broken one is found now.

    Args:
        source: Labelled source: class folders, a list file (`path class` a line) or a CSV table.
        labeled: Labelled target, likewise, of the same classes.
        unlabeled: Unlabelled target: any folder, nested or flat, a list or a table. Images that are also in `labeled`,
            by content, are left out.
        missing: What to do with a class that one side lacks: `error` raises, `drop` leaves it out.
        cache: Where digests of files are remembered.

    Raises:
        DataError: If a part is missing or empty, or the classes do not match.
    """
    notes: list[str] = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DataWarning)  # what was skipped is said below, once
        read = {
            "source": verify_images(read_labeled(source, "source"), "skip"),
            "labeled": verify_images(read_labeled(labeled, "labeled"), "skip"),
            "unlabeled": verify_images(read_unlabeled(unlabeled, "unlabeled"), "skip"),
        }
    for name, domain in read.items():
        notes += _skipped(name, domain)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", DataWarning)
        first, second = match_classes(read["source"], read["labeled"], missing=missing)
    notes += [str(warning.message) for warning in caught]
    third, left_out = _without_labeled(read["unlabeled"], second, cache)
    if left_out:
        notes.append(f"unlabeled: {left_out} images are also in labeled, by content, and are left out.")
    split = split_parts(first, second, third)
    name = f"{read['source'].name} to {read['unlabeled'].name}"
    return Parts(name, split, _digest(split, cache), tuple(notes))


def read_labeled(where: Place, argument: str) -> Domain:
    """A labelled domain from a folder of class folders, a list file or a CSV table, by what is there."""
    path = _existing(where, argument, "a folder of class folders, a list file ('path class' a line) or a CSV table")
    if path.is_dir():
        return read_folder(path)
    if path.suffix.lower() == ".csv":
        return read_table(path, path.parent, path_column=_path_column(path))
    return read_list(path, path.parent)


def read_unlabeled(where: Place, argument: str) -> Domain:
    """A domain without labels from any folder, list or table; labels that a list has are not read."""
    path = _existing(where, argument, "a folder, a list file or a CSV table")
    if path.is_dir():
        return read_unlabeled_folder(path)
    files = _listed(path)
    if lost := [file for file in files if not file.is_file()]:
        raise DataError(
            f"{argument}: {len(lost)} of {len(files)} files that {path} lists do not exist: {list_some(lost, 3)}. "
            f"Listed paths are relative to {path.parent}."
        )
    if not files:
        raise DataError(f"{argument}: {path} names no images; at least one is needed.")
    labels = torch.full((len(files),), -1, dtype=torch.int64)
    return Domain(path.stem, ImageFiles(tuple(files)), labels, ())


def find_images(images: Place | Sequence[Place]) -> list[Path]:
    """Files to predict, readable or not: those of a folder by their names, of a glob, of a list or table, or one.

    Raises:
        DataError: If there is none.
    """
    if not isinstance(images, str | Path):
        found = [Path(image) for image in images]
    elif Path(images).is_dir():
        root = Path(images)
        below = sorted(file for file in root.rglob("*") if file.suffix.lower() in IMAGE_SUFFIXES and not file.is_dir())
        found = [file for file in below if not any(part.startswith(".") for part in file.relative_to(root).parts)]
    elif Path(images).is_file():
        found = [Path(images)] if Path(images).suffix.lower() in IMAGE_SUFFIXES else _listed(Path(images))
    else:
        found = sorted(Path(name) for name in glob.glob(os.fspath(images), recursive=True))  # noqa: PTH207  # any pattern
    if not found:
        raise DataError(
            f"images must be a folder, a glob, a list file or paths with at least one image "
            f"({', '.join(sorted(IMAGE_SUFFIXES))}), got none at {images}."
        )
    return found


def _existing(where: Place, argument: str, allowed: str) -> Path:
    path = Path(where)
    if not path.exists():
        raise DataError(f"{argument} must be {allowed}, got {path} (nothing there). Check the path.")
    return path


def _path_column(path: Path) -> str:
    """The column of the files: 'path', or 'file' as in the tables that qurate writes."""
    try:
        names = set(pd.read_csv(path, nrows=0, encoding="utf-8-sig").columns)
    except (OSError, ValueError) as error:
        raise DataError(f"{path}: cannot be read as a UTF-8 CSV table ({error}).") from error
    return "file" if "file" in names and "path" not in names else "path"


def _listed(path: Path) -> list[Path]:
    """Files that a list or a table names, relative to its folder; a class after a path is not read."""
    if path.suffix.lower() == ".csv":
        column = _path_column(path)
        table = pd.read_csv(path, dtype=str, keep_default_na=False, encoding="utf-8-sig")
        if column not in table.columns:
            raise DataError(f"{path}: must have a column 'path' or 'file', got {list_some(table.columns)}.")
        return [path.parent / name for name in table[column]]
    try:
        lines = path.read_text(encoding="utf-8-sig").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"{path}: cannot be read as a UTF-8 list of files ({error}).") from error
    names = [line.strip() for line in lines if line.strip()]
    alone = [Path(name).suffix.lower() in IMAGE_SUFFIXES for name in names]  # else a class follows the path
    return [
        path.parent / (name if bare else name.rsplit(maxsplit=1)[0]) for name, bare in zip(names, alone, strict=True)
    ]


def _without_labeled(unlabeled: Domain, labeled: Domain, cache: Path | None) -> tuple[Domain, int]:
    assert isinstance(unlabeled.inputs, ImageFiles)
    assert isinstance(labeled.inputs, ImageFiles)
    memory = (cache or default_cache()) / "digests.sqlite"
    contents = read_contents([*unlabeled.inputs.paths, *labeled.inputs.paths], memory)
    known = {contents[path].digest for path in labeled.inputs.paths}
    kept = [i for i, path in enumerate(unlabeled.inputs.paths) if contents[path].digest not in known]
    if len(kept) < 2:
        raise DataError(
            f"unlabeled ('{unlabeled.name}') must hold at least two images that labeled ('{labeled.name}') does not, "
            f"got {len(kept)} among {len(unlabeled)}. Point it at the unlabelled ones; adaptation learns from many."
        )
    return unlabeled.keep(torch.tensor(kept)), len(unlabeled) - len(kept)


def _digest(split: Split, cache: Path | None) -> str:
    memory = (cache or default_cache()) / "digests.sqlite"
    whole = hashlib.sha256("\n".join(split.classes).encode())
    for part in (split.source, split.target_labeled, split.target_unlabeled):
        assert isinstance(part.inputs, ImageFiles)
        contents = read_contents(part.inputs.paths, memory)
        labels = part.labels.tolist() if isinstance(part, Labeled) else [-1] * len(part)
        for path, label in zip(part.inputs.paths, labels, strict=True):
            whole.update(contents[path].digest + int(label).to_bytes(8, "big", signed=True))
        whole.update(b"end of part")
    return whole.hexdigest()


def _skipped(name: str, domain: Domain) -> list[str]:
    """Sentences on the files of a part that are no samples, one a reason."""
    by_reason: dict[str, list[str]] = {}
    for skip in domain.skipped:
        reason = skip.reason.removeprefix(f"{skip.path}: ").removesuffix(" Replace the file or remove it.")
        by_reason.setdefault(reason.replace(str(skip.path), skip.path.name).rstrip("."), []).append(skip.path.name)
    return [
        f"{name}: {len(files)} {'file' if len(files) == 1 else 'files'} left out, {reason}: {list_some(files, 3)}."
        for reason, files in by_reason.items()
    ]
