"""Tables as files: CSV that reads back exactly, and in which no name is a spreadsheet's formula.

UTF-8, fields quoted where they must be. A text that begins with = + - @, a tab or a carriage return gets an apostrophe
in front, and one that begins with an apostrophe gets one more; reading takes it away again. Numbers stay as they are.
"""

from __future__ import annotations

import csv
import io
import math
import re
from pathlib import Path
from typing import Any

import pandas as pd

from qurate.errors import QurateError

_FORMULA = re.compile(r"[=+\-@\t\r']")
_GUARDED = re.compile(r"'[=+\-@\t\r']")
_QUOTED = re.compile(r'[",\r\n]')


class TableError(QurateError, ValueError):
    """A file that is not a CSV table; the message says where."""


def to_csv(table: pd.DataFrame, float_format: str | None = None) -> bytes:
    """A table for a file, with its column names and without its index.

    Args:
        table: Texts and numbers; what is missing is left empty. File names that are no valid text keep their bytes.
        float_format: Such as '%.6g'; every digit unless given.
    """
    rows = [list(table.columns), *table.itertuples(index=False, name=None)]
    lines = [",".join(_write(value, float_format, alone=len(row) == 1) for value in row) + "\n" for row in rows]
    return "".join(lines).encode("utf-8", errors="surrogateescape")


def read_csv(path: Path | str) -> pd.DataFrame:
    """A table from a file, all of it text, as `to_csv` was given it.

    Raises:
        TableError: If the file cannot be read, has no header line, or a row is longer or shorter than that.
    """
    try:
        text = Path(path).read_bytes().decode("utf-8-sig", errors="surrogateescape")
        if "\0" in text.partition("\n")[0]:
            raise TableError(f"{path}: not a UTF-8 text file. Save it as UTF-8.")
        header, *rows = [row for row in csv.reader(io.StringIO(text, newline=""), strict=True) if row] or [[]]
    except OSError as error:
        raise TableError(f"{path}: cannot be read ({error.strerror}).") from error
    except csv.Error as error:
        raise TableError(f"{path}: not a CSV table ({error}). Are all quotes closed?") from error
    if not any(header):
        raise TableError(f"{path}: not a CSV table, because it has no header line with the names of its columns.")
    for number, row in enumerate(rows, 1):
        if len(row) != len(header):
            raise TableError(
                f"{path}: row {number} has {len(row)} field{'' if len(row) == 1 else 's'}, and the header has "
                f"{len(header)}. Put names with commas in quotes."
            )
    names = [unguard(name) for name in header]
    if repeated := sorted({name for name in names if name and names.count(name) > 1}):
        raise TableError(f"{path}: column names must differ, got '{repeated[0]}' more than once. Rename one.")
    return pd.DataFrame([[unguard(cell) for cell in row] for row in rows], columns=names, dtype=object)


def is_text(name: str) -> bool:
    """Whether a name is valid text: bytes that are no UTF-8 stand in Python's names as lone surrogates."""
    return not any("\ud800" <= letter <= "\udfff" for letter in name)


def _write(value: Any, float_format: str | None, *, alone: bool) -> str:
    if value is None or value is pd.NA or (isinstance(value, float) and math.isnan(value)):
        text = ""
    elif isinstance(value, float):
        text = repr(float(value)) if float_format is None else float_format % value
    else:
        text = str(value)
        text = f"'{text}" if isinstance(value, str) and _FORMULA.match(text) else text
    if _QUOTED.search(text) or (alone and not text):  # an empty line would be no row
        return '"' + text.replace('"', '""') + '"'
    return text


def unguard(cell: str) -> str:
    """A text as it was before the apostrophe that keeps it from being a formula."""
    return cell[1:] if _GUARDED.match(cell) else cell
