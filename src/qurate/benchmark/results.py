"""The tables of a benchmark as CSV: a row for each run and model-selection rule, and a row for each round."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

import pandas as pd

from qurate.errors import QurateError
from qurate.runtime.files import write_atomically
from qurate.runtime.tables import TableError, read_csv, to_csv
from qurate.runtime.validation import show


class BenchmarkError(QurateError, ValueError):
    """A benchmark that cannot be run as asked; the message says what is allowed."""


class BenchmarkWarning(UserWarning):
    """A result that was kept but cannot be used; the message says which, and what is done about it."""


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
        steps: Training steps of lines 1 and 20 together.
        imbalance: Ratio that the unlabelled target was thinned to; 1 where it is as it is.
        ece: Expected calibration error of the network on the hidden labels of D_u.
        ece_calibrated: That of what `adapt` gives; None where the run was not calibrated.
        temperature: Of the adapted network, found on held-out labelled samples; None likewise.
        query_strategy: Who chose the images that people labelled; empty where nobody was asked.
        asked: How many labels were asked for by then; of 'none', how many the others had. Accuracy counts the
            images that were labelled as right, and so do all measures of D_u.
        device: That trained the run: 'cpu', 'cuda' or 'mps'.
        unknown: How many classes were hidden. Accuracy, balanced accuracy and calibration errors are those on images of
            known classes.
        missing_classes: How many known classes D_u lacks.
        auroc: Of right against wrong predictions by their probability, on images of known classes; None where all are
            right or wrong.
        auroc_unknown: Of images of known classes against those of unknown ones; None without unknown classes.
        hos: Harmonic mean of the accuracy on known classes, where a flagged image is wrong, and the share of images of
            unknown classes that are flagged; None where nothing flags images, and without unknown classes.
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
    steps: int | None = None
    imbalance: int = 1
    ece: float | None = None
    ece_calibrated: float | None = None
    temperature: float | None = None
    query_strategy: str = ""
    asked: int = 0
    device: str = ""
    unknown: int = 0
    missing_classes: int = 0
    auroc: float | None = None
    auroc_unknown: float | None = None
    hos: float | None = None


@dataclass(frozen=True)
class RoundRow:
    """One round of a run with a selector; round 0 is the model after pre-training. Other columns are as in `Row`.

    Args:
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
    imbalance: int = 1
    unknown: int = 0
    missing_classes: int = 0


COLUMNS = tuple(field.name for field in fields(Row))
ROUND_COLUMNS = tuple(field.name for field in fields(RoundRow))


def rows_to_csv(rows: Sequence[Row] | Sequence[RoundRow], columns: tuple[str, ...] = COLUMNS) -> bytes:
    """Rows as CSV with a header; of rounds, the columns are `ROUND_COLUMNS`."""
    table = pd.DataFrame([asdict(row) for row in rows], columns=list(columns))
    for column in {"positives", "steps"} & set(columns):
        table[column] = table[column].astype("Int64")
    return to_csv(table, "%.6g")


def write_file(path: Path, content: str | bytes) -> None:
    """Write a file of a benchmark or its report in one move.

    Raises:
        BenchmarkError: If it cannot be written, as on a full disk; what was there before stays.
    """
    try:
        write_atomically(path, content)
    except OSError as error:
        raise BenchmarkError(
            f"{path}: cannot be written ({error.strerror or error}). Make room, or allow writing there, then re-run "
            "the command: what is finished is kept."
        ) from error


def read_results(path: Path, columns: tuple[str, ...] = COLUMNS) -> pd.DataFrame:
    """A table of a benchmark, each column of its own type; of rounds, the columns are `ROUND_COLUMNS`.

    Args:
        path: The file.
        columns: That it must have; others are left out.

    Raises:
        BenchmarkError: If the file is cut off or is no such table; the message names the row and the value.
    """
    try:
        content = path.read_bytes()
        content.decode()
        if content and not content.endswith((b"\n", b"\r")):
            raise BenchmarkError(f"{path}: is cut off: its last row has no end.")
        texts = read_csv(path)
    except (OSError, UnicodeDecodeError) as error:
        raise BenchmarkError(f"{path}: cannot be read as a UTF-8 text file ({error}).") from error
    except TableError as error:
        raise BenchmarkError(str(error)) from error
    if missing := [column for column in columns if column not in texts.columns]:
        hint = "Is it a results file of this version of qurate?"
        raise BenchmarkError(f"{path}: lacks the columns {', '.join(missing)}. {hint}")
    return pd.DataFrame({column: _read_column(texts[column], path) for column in columns})


def _read_column(texts: pd.Series, path: Path) -> pd.Series:
    column = str(texts.name)
    kind, values = _KINDS[column], []
    for number, text in enumerate(texts, 1):
        try:
            values.append(kind.read(text))
        except ValueError:
            raise BenchmarkError(f"{path}: {column} in row {number} must be {kind.words}, got {show(text)}.") from None
    return pd.Series(values, dtype=kind.dtype)


@dataclass(frozen=True)
class _Kind:
    """What a column may hold: in words, its type, its bounds, and what an empty field means (`...`: is refused)."""

    words: str
    dtype: str
    least: float = 0
    most: float = 2**53
    empty: Any = ...

    def read(self, text: str) -> Any:
        if text == "" and self.empty is not ...:
            return self.empty
        if self.dtype == "str":
            if not text.strip():
                raise ValueError
            return text
        value = float(text) if self.dtype == "float64" else int(text)
        if not self.least <= value <= self.most:  # nor is NaN
            raise ValueError
        return value


_TEXT, _TEXT_OR_EMPTY = _Kind("text", "str"), _Kind("text, or empty", "str", empty="")
_SHARE = _Kind("a number from 0 to 1, or empty", "float64", most=1, empty=None)
_COUNT = _Kind("a whole number from 0 on", "int64")
_COUNT_OR_EMPTY = _Kind("a whole number from 0 on, or empty", "Int64", empty=None)
_NUMBER = _Kind("a number from 0 on, or empty", "float64", most=sys.float_info.max, empty=None)
_KINDS = {
    **dict.fromkeys(("scenario", "method", "selector", "model_selection", "config", "commit"), _TEXT),
    **dict.fromkeys(("query_strategy", "device"), _TEXT_OR_EMPTY),
    **dict.fromkeys(("accuracy", "balanced_accuracy", "positives_accuracy", "coverage"), _SHARE),
    **dict.fromkeys(("ece", "ece_calibrated", "auroc", "auroc_unknown", "hos"), _SHARE),
    **dict.fromkeys(("seed", "round", "asked", "unknown", "missing_classes"), _COUNT),
    **dict.fromkeys(("positives", "steps"), _COUNT_OR_EMPTY),
    **dict.fromkeys(("seconds", "temperature"), _NUMBER),
    **dict.fromkeys(("shots", "imbalance"), _Kind("a whole number from 1 on", "int64", least=1)),
}


def label_counts(ask: int, rounds: int) -> tuple[int, ...]:
    """How many labels were asked for before the first round and after each; 0 alone where there are no rounds."""
    return (0, *(ask * done // rounds for done in range(1, rounds + 1)))
