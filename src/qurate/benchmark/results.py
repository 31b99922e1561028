"""One row a run, one CSV for all of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path

import pandas as pd

from qurate.files import write_atomically


@dataclass(frozen=True)
class Row:
    """The outcome of one run; None where a column does not apply."""

    scenario: str
    method: str
    selector: str
    shots: int
    seed: int
    accuracy: float
    balanced_accuracy: float
    positives: int | None
    positives_accuracy: float | None
    seconds: float


COLUMNS = tuple(field.name for field in fields(Row))


def write_results(rows: Sequence[Row], path: Path) -> None:
    """Write the rows as CSV, replacing the file in one move."""
    table = pd.DataFrame([asdict(row) for row in rows], columns=list(COLUMNS))
    table["positives"] = table["positives"].astype("Int64")
    write_atomically(path, table.to_csv(index=False, float_format="%.6g"))


def read_results(path: Path) -> pd.DataFrame:
    """The table of a results file.

    Raises:
        ValueError: If a column is missing.
    """
    table = pd.read_csv(path)
    missing = [column for column in COLUMNS if column not in table.columns]
    if missing:
        raise ValueError(f"{path}: lacks the columns {', '.join(missing)}; is it a results file of qurate?")
    return table
