"""Image files that a list or a table names: a text file of `path class` lines, or a CSV table. Loads no torch."""

from __future__ import annotations

import os
import re
import warnings
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path, PurePath
from typing import TYPE_CHECKING

from qurate.data.class_names import compose_name
from qurate.data.listing import REPEATED, DataWarning, Listing, Skipped, list_any_folder, list_class_folders
from qurate.errors import DataError
from qurate.runtime.paths import (
    IMAGE_SUFFIXES,
    LABELED,
    UNLABELED,
    StrPath,
    as_path,
    each_source,
    existing,
    is_file,
    list_some,
    shorten,
)
from qurate.runtime.tables import TableError, decode_text, is_text, read_csv

if TYPE_CHECKING:
    import pandas as pd

_INTEGER = re.compile(r"-?[0-9]{1,18}")
"""A class by number; a longer word of digits is a name."""


@dataclass(frozen=True)
class ListedFile:
    """One sample as a list or table names it, on 'line 3' or 'row 3'; an empty label means unlabelled."""

    position: str
    path: str
    label: str


def list_labeled(where: StrPath, argument: str) -> Listing:
    """A labelled part from a folder of class folders, a list file or a CSV table, by what is there."""
    path = existing(where, argument, LABELED)
    if path.is_dir():
        return list_class_folders(path)
    return list_table(path, path.parent) if is_table(path) else list_named(path, path.parent)


def list_sources(where: StrPath | Sequence[StrPath]) -> dict[str, Listing]:
    """One or several source domains by name: that of the folder or list, or the whole place where names repeat.

    Raises:
        DataError: If there is none, or one is given twice.
    """
    places = each_source(where)
    if twice := [place for place, times in Counter(os.path.realpath(place) for place in places).items() if times > 1]:
        raise DataError(f"`source`: {list_some(twice, 3)} is given twice. Name each source once.")
    listings = [list_labeled(place, "`source`" if len(places) > 1 else "source") for place in places]
    names = [listing.name for listing in listings]
    if len(set(names)) < len(names):
        listings = [replace(each, name=str(place)) for each, place in zip(listings, places, strict=True)]
    return {listing.name: listing for listing in listings}


def list_unlabeled(where: StrPath, argument: str) -> Listing:
    """A part without labels from any folder, list or table; labels that a list has are not read."""
    path = existing(where, argument, UNLABELED)
    return list_any_folder(path) if path.is_dir() else list_rows(parse_paths(path), path, path.parent, None)


def list_named(path: Path | str, root: Path | str, name: str | None = None) -> Listing:
    """The files that a text file names; see `qurate.read_list`."""
    rows = parse_list(path)
    listing = list_rows(rows, path, root, name)
    return replace(listing, classes=_name_classes(rows, listing.classes))


def list_table(
    path: Path | str,
    root: Path | str,
    path_column: str | None = None,
    label_column: str = "label",
    name: str | None = None,
) -> Listing:
    """The files that a CSV table names; see `qurate.read_table`."""
    return list_rows(_parse_table(path, path_column, label_column), path, root, name)


def list_frame(table: pd.DataFrame, name: str) -> Listing:
    """The files of a table in memory: column 'file' or 'path', from the current folder, and column 'label'.

    Raises:
        DataError: If a column or a file is missing.
    """
    column = next((column for column in ("file", "path") if column in table), None)
    if column is None or "label" not in table:
        raise DataError(
            f"{name}: a table must have the columns 'file' (or 'path') and 'label', got {list_some(table.columns)}."
        )
    labels = table["label"].convert_dtypes().astype("string").fillna("")  # 1, not 1.0, beside an empty cell
    rows = zip(table[column].astype(str), labels, strict=True)
    listed = [ListedFile(f"row {number}", file, label) for number, (file, label) in enumerate(rows, 1)]
    return list_rows(listed, name, Path(), name)


def is_table(path: Path | str) -> bool:
    """Whether a file is a table by its name, not a list; one with tabs is refused as such."""
    return Path(path).suffix.lower() in (".csv", ".tsv")


def parse_paths(path: Path | str) -> list[ListedFile]:
    """The files that a list or a CSV table names, unchecked against the disk, all unlabelled."""
    rows = _parse_table(path, None, None) if is_table(path) else parse_list(path, need_class=False)
    return [replace(row, label="") for row in rows]


def _parse_table(path: Path | str, path_column: str | None, label_column: str | None) -> list[ListedFile]:
    """The rows of a CSV table, unchecked against the disk; without a label column all are unlabelled."""
    try:
        table = read_csv(as_path(path, "path", "a CSV table"))
    except TableError as error:
        raise DataError(str(error)) from error
    columns = set(table.columns)
    files = path_column or ("file" if "file" in columns and "path" not in columns else "path")
    for column, holds in ((files, "the paths"), (label_column, "the classes")):
        if column is not None and column not in columns:
            raise DataError(
                f"{path} must have a column '{column}' with {holds}, got {list_some(table.columns)}. Rename one."
            )
    labels = [""] * len(table) if label_column is None else table[label_column].tolist()
    cells = zip(table[files].tolist(), labels, strict=True)
    rows = [ListedFile(f"row {i}", file, label.strip()) for i, (file, label) in enumerate(cells, 1)]
    if nameless := [row.position for row in rows if not row.path.strip()]:
        raise DataError(f"{path} has no path in {list_some(nameless)}. Fill in or remove the rows.")
    _check_text(rows, path)
    return rows


def parse_list(path: Path | str, *, need_class: bool = True) -> list[ListedFile]:
    """The lines of a list file, unchecked against the disk.

    Args:
        path: The list.
        need_class: Whether every line must have a class after its path.

    Raises:
        DataError: If the list is missing, is not UTF-8, or has a line without the class that it needs.
    """
    file = as_path(path, "path", "a list file")
    try:
        lines = decode_text(path, file.read_bytes()).split("\n")
    except TableError as error:
        raise DataError(str(error)) from error
    except OSError as error:
        raise DataError(f"{shorten(file)}: cannot be read ({error.strerror}).") from error
    rows = []
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        words = line.rsplit(maxsplit=1)
        if len(words) < 2 or PurePath(words[1]).suffix.lower() in IMAGE_SUFFIXES:
            if need_class:
                raise DataError(
                    f"{path}, line {number}: a line must be 'path class' with an integer or a name as class, got "
                    f"'{shorten(line.strip())}'. Append the class, or -1 if it is unknown."
                )
            words = [line, ""]
        rows.append(ListedFile(f"line {number}", words[0].strip(), words[1]))
    _check_text(rows, path)
    return rows


def _check_text(rows: Sequence[ListedFile], path: Path | str) -> None:
    """A path may be any bytes, for files are called so; another encoding shows by the classes, or finds no file."""
    if strange := [row.position for row in rows if not is_text(row.label) or "\0" in row.path + row.label]:
        raise DataError(f"{path}: not a UTF-8 text file, as {strange[0]} shows. Save it as UTF-8.")


def _index_classes(rows: Sequence[ListedFile], where: str) -> tuple[tuple[int, ...], tuple[str, ...]]:
    """Labels, and the classes they point into: sorted, by value if all are integers."""
    words = [compose_name(row.label) for row in rows]
    known = set(words) - {""}
    if all(_INTEGER.fullmatch(word) for word in known):
        order = sorted(known - {"-1"}, key=lambda word: (int(word), word))
        if order and int(order[0]) < 0:
            raise DataError(f"{where}: an integer class must be -1 (unlabelled) or at least 0, got {order[0]}.")
    else:
        order = sorted(known)
    position = {word: i for i, word in enumerate(order)}
    return tuple(position.get(word, -1) for word in words), tuple(order)


def _name_classes(rows: Sequence[ListedFile], classes: tuple[str, ...]) -> tuple[str, ...]:
    """Integer classes renamed after the folders of their images, where that is one to one."""
    if not all(_INTEGER.fullmatch(name) for name in classes):
        return classes
    labeled = [row for row in rows if row.label in classes]
    pairs = {(row.label, compose_name(PurePath(row.path).parent.name)) for row in labeled}
    folders = dict(pairs)
    one_to_one = len(pairs) == len(folders) == len(set(folders.values())) == len(classes)
    return tuple(folders[name] for name in classes) if one_to_one and all(folders.values()) else classes


def move_rows(rows: Sequence[ListedFile], folders: Mapping[str, str]) -> list[ListedFile]:
    """The rows with the first folder of their path called as it is on disk."""
    moved = []
    for row in rows:
        first, slash, rest = row.path.partition("/")
        moved.append(replace(row, path=folders.get(first, first) + slash + rest))
    return moved


def path_of(row: ListedFile, root: Path) -> Path:
    """The file that a row names; blanks around the name belong to it only if there is such a file."""
    exact = root / row.path
    return exact if row.path == row.path.strip() or is_file(exact) else root / row.path.strip()


def _locate(rows: Sequence[ListedFile], root: Path, where: str) -> list[Path]:
    """The listed files below root, all of which must exist."""
    paths = [path_of(row, root) for row in rows]
    missing = [f"{shorten(path)} ({row.position})" for path, row in zip(paths, rows, strict=True) if not is_file(path)]
    if missing:
        hint = "" if all(map(is_text, missing)) else " Is it saved as UTF-8?"
        raise DataError(
            f"{where}: {len(missing)} of {len(rows)} listed files do not exist: {list_some(missing, 3)}. Listed paths "
            f"are relative to '{root}'.{hint}"
        )
    return paths


def list_repeated(rows: Sequence[ListedFile], root: Path, *, name: str, where: str) -> Listing:
    """Listed files as they are, repeated ones too, with integer classes named after their folders.

    Raises:
        DataError: If a file is missing.
    """
    paths = _locate(rows, root, where)
    labels, numbers = _index_classes(rows, where)
    return Listing(name, tuple(paths), labels, _name_classes(rows, numbers))


def list_rows(rows: Sequence[ListedFile], where: Path | str, root: Path | str, name: str | None) -> Listing:
    """The files of a list or table, which is at `where`; repeated ones are left out with a warning."""
    folder = as_path(root, "root", "a folder")
    if not rows:
        raise DataError(f"{where} names no samples; at least one is needed.")
    paths = _locate(rows, folder, str(where))
    first: dict[str, int] = {}
    repeated = []
    for i, (row, file) in enumerate(zip(rows, _resolve(paths), strict=True)):
        earlier = rows[first.setdefault(file, i)]
        if compose_name(earlier.label) != compose_name(row.label):
            raise DataError(
                f"{where}: '{shorten(row.path)}' must have one class, got '{shorten(earlier.label)}' in "
                f"{earlier.position} and '{shorten(row.label)}' in {row.position}. Remove the wrong one."
            )
        if earlier is not row:
            repeated.append((paths[i], f"{row.position} repeats {earlier.position}"))
    if repeated:
        warnings.warn(
            f"{where} names {len(repeated)} samples again, which are left out: "
            f"{list_some(f'{path} ({why})' for path, why in repeated)}.",
            DataWarning,
            stacklevel=4,
        )
    labels, classes = _index_classes([rows[i] for i in first.values()], str(where))
    files = tuple(paths[i] for i in first.values())
    skipped = tuple(Skipped(path, REPEATED) for path, _ in repeated)
    return Listing(name or Path(where).stem, files, labels, classes, skipped)


def _resolve(paths: Sequence[Path]) -> list[str]:
    """The one true path of each file, however it is spelled and whatever links lead to it."""
    folders = {folder: os.path.realpath(folder) for folder in {path.parent for path in paths}}
    plain = [os.path.join(folders[path.parent], path.name) for path in paths]  # noqa: PTH118  # faster, for long lists
    return [os.path.realpath(file) if os.path.islink(file) else file for file in plain]  # noqa: PTH114  # likewise
