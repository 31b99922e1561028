"""Tables as files: CSV that reads back exactly, and in which no name is a spreadsheet's formula.

UTF-8, fields quoted where they must be. A text that begins with = + - @, a tab or a carriage return gets an apostrophe
in front, and one that begins with an apostrophe gets one more; reading takes it away again. Numbers stay as they are.
"""

from __future__ import annotations

import codecs
import csv
import io
import math
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

from qurate.errors import QurateError
from qurate.runtime.paths import shorten

if TYPE_CHECKING:
    import pandas as pd

_FORMULA = re.compile(r"[=+\-@\t\r']")
_GUARDED = re.compile(r"'[=+\-@\t\r']")
_QUOTED = re.compile('[",\r\n]|^\ufeff')  # a mark of the byte order at the beginning of a file would be dropped


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
    import pandas as pd

    try:
        text = decode_text(path, Path(path).read_bytes())
        split_header(path, text)
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


_MARKS = {
    codecs.BOM_UTF32_LE: "UTF-32",  # begins as UTF-16 does
    codecs.BOM_UTF32_BE: "UTF-32",
    codecs.BOM_UTF16_LE: "UTF-16",
    codecs.BOM_UTF16_BE: "UTF-16",
}
_ARCHIVES = (b"PK\3\4", b"\x1f\x8b", b"7z\xbc\xaf", b"Rar!")


def decode_text(path: Path | str, content: bytes) -> str:
    """The text of a UTF-8 file; bytes that are no UTF-8 stay, for files are called so.

    Raises:
        TableError: If it is of another encoding, or no text.
    """
    if content.startswith(_ARCHIVES):
        raise TableError(
            f"{path}: must be a UTF-8 text file, got an archive or a spreadsheet. Unpack it, or save it as CSV."
        )
    named = next((name for mark, name in _MARKS.items() if content.startswith(mark)), "")
    if not named and b"\0" in content.partition(b"\n")[0]:
        named = "UTF-16 or no text at all"
    if named:
        raise TableError(f"{path}: must be a UTF-8 text file, got {named}. Save it as UTF-8.")
    return content.decode("utf-8-sig", errors="surrogateescape")


def split_header(path: Path | str, text: str) -> list[str]:
    """The names of the columns, in the first line of a CSV table.

    Raises:
        TableError: If they are separated by something else than commas.
    """
    line = text.lstrip("\r\n").partition("\n")[0].rstrip("\r")
    try:
        names = next(csv.reader([line]), [])
    except csv.Error as error:
        raise TableError(f"{path}: not a CSV table ({error}).") from error
    separators = {";": "semicolons", "\t": "tabs", "|": "bars"}
    if len(names) == 1 and (found := [mark for mark in separators if mark in names[0]]):
        raise TableError(
            f"{path}: columns must be separated by commas, got {separators[found[0]]} in '{shorten(line)}'. Save it "
            "with commas."
        )
    return names


def read_head(path: Path) -> str:
    """The beginning of a text file, to judge it by before anything heavy is loaded.

    Raises:
        TableError: If its encoding is another, or it cannot be read.
    """
    try:
        with path.open("rb") as file:
            head = file.read(2**16)
    except OSError as error:
        raise TableError(f"{path}: cannot be read ({error.strerror}).") from error
    return decode_text(path, head)


def is_text(name: str) -> bool:
    """Whether a name is valid text: bytes that are no UTF-8 stand in Python's names as lone surrogates."""
    return not any("\ud800" <= letter <= "\udfff" for letter in name)


def _write(value: Any, float_format: str | None, *, alone: bool) -> str:
    if value is None or type(value).__name__ == "NAType" or (isinstance(value, float) and math.isnan(value)):
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
