"""What became of each sample of D_u where people were asked: a small table of each cell, for comparing askers."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pandas as pd

from qurate.benchmark.results import BenchmarkError
from qurate.runtime.tables import TableError, read_csv

SAMPLE, ASKED_AT = "sample", "asked_at"
"""Position in D_u; how many labels had been asked for when its own was there, 0 where it never was."""


def right_at(number: int) -> str:
    """The column that says whether the prediction was right, as 0 or 1, after so many labels were asked for."""
    return f"right_{number}"


def read_asked(path: Path, numbers: Sequence[int]) -> pd.DataFrame:
    """The table of a cell, by sample.

    Args:
        path: The file.
        numbers: How many labels were asked for at each row of the cell's results.

    Raises:
        BenchmarkError: If it is not whole.
    """
    try:
        table = read_csv(path)
        expected = [SAMPLE, ASKED_AT, *(right_at(number) for number in numbers)]
        if list(table.columns) != expected:
            raise BenchmarkError(f"{path}: must have the columns {', '.join(expected)}.")
        if not path.read_bytes().endswith(b"\n"):
            raise BenchmarkError(f"{path}: is cut off: its last row has no end.")
        found = table.astype("int64").set_index(SAMPLE)
    except TableError as error:
        raise BenchmarkError(str(error)) from error
    except ValueError as error:
        if isinstance(error, BenchmarkError):
            raise
        raise BenchmarkError(f"{path}: must hold whole numbers ({error}).") from error
    allowed = found[ASKED_AT].isin(numbers).all() and found.drop(columns=ASKED_AT).isin((0, 1)).all(axis=None)
    if not allowed or found.index.has_duplicates or found.empty:
        raise BenchmarkError(f"{path}: must hold each sample once, when it was asked about, and 0 or 1.")
    return found
