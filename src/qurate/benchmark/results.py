"""The tables of a benchmark as CSV: a row for each run and model-selection rule, and a row for each round."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path

import pandas as pd

from qurate.errors import QurateError
from qurate.runtime.files import write_atomically


class BenchmarkError(QurateError, ValueError):
    """A benchmark that cannot be run as asked; the message says what is allowed."""


@dataclass(frozen=True)
class Row:
    """The outcome of one run under one rule of model selection; None where a column does not apply.

    Args:
        scenario: Source and target, as 'webcam:amazon'.
        method: Name in the registry.
        selector: Name of the selector.
        shots: Labelled target samples of each class.
        seed: Of the run.
        model_selection: The rule that chose the model.
        accuracy: On the hidden labels of D_u.
        balanced_accuracy: Mean over classes.
        positives: Size of D_p of that model.
        positives_accuracy: Share of them whose pseudo-label is right.
        seconds: Of training and evaluation.
        config: Fingerprint of all that decides the result.
        commit: Of qurate, when the run was made.
    """

    scenario: str
    method: str
    selector: str
    shots: int
    seed: int
    model_selection: str
    accuracy: float
    balanced_accuracy: float
    positives: int | None
    positives_accuracy: float | None
    seconds: float
    config: str
    commit: str


@dataclass(frozen=True)
class RoundRow:
    """One round of a run with a selector; round 0 is the model after pre-training.

    Args:
        scenario: As in `Row`, like the next four.
        method: See `Row`.
        selector: See `Row`.
        shots: See `Row`.
        seed: See `Row`.
        round: Its number.
        accuracy: After the round, on the hidden labels of D_u.
        positives: Size of D_p.
        positives_accuracy: Share of them whose pseudo-label is right; None if there are none.
        coverage: Size of D_p over size of D_u.
    """

    scenario: str
    method: str
    selector: str
    shots: int
    seed: int
    round: int
    accuracy: float
    positives: int
    positives_accuracy: float | None
    coverage: float


COLUMNS = tuple(field.name for field in fields(Row))
ROUND_COLUMNS = tuple(field.name for field in fields(RoundRow))


def rows_to_csv(rows: Sequence[Row]) -> str:
    """The rows as CSV with a header."""
    return _to_csv([asdict(row) for row in rows], COLUMNS)


def rounds_to_csv(rounds: Sequence[RoundRow]) -> str:
    """The rounds as CSV with a header."""
    return _to_csv([asdict(row) for row in rounds], ROUND_COLUMNS)


def write_results(rows: Sequence[Row], path: Path) -> None:
    """Write the rows as CSV, replacing the file in one move."""
    write_atomically(path, rows_to_csv(rows))


def read_results(path: Path) -> pd.DataFrame:
    """The table of a results file.

    Raises:
        ValueError: If a column is missing.
    """
    table = pd.read_csv(path, dtype={"config": str, "commit": str})
    missing = [column for column in COLUMNS if column not in table.columns]
    if missing:
        raise ValueError(f"{path}: lacks the columns {', '.join(missing)}. Is it a results file of qurate?")
    return table[list(COLUMNS)]


def _to_csv(records: Sequence[dict[str, object]], columns: tuple[str, ...]) -> str:
    table = pd.DataFrame(records, columns=list(columns))
    table["positives"] = table["positives"].astype("Int64")
    return str(table.to_csv(index=False, float_format="%.6g"))
