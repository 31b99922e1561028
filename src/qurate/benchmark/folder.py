"""The folder of a benchmark: a folder for each cell, named by its fingerprint, and the tables made of them."""

from __future__ import annotations

import dataclasses
import json
import subprocess
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

import pandas as pd

from qurate.benchmark.results import (
    COLUMNS,
    ROUND_COLUMNS,
    BenchmarkError,
    BenchmarkWarning,
    read_results,
    rows_to_csv,
    write_file,
)
from qurate.registry import PLAIN
from qurate.runtime.files import file_lock, why_not_writable
from qurate.runtime.paths import shorten
from qurate.runtime.tables import TableError, read_csv, to_csv

if TYPE_CHECKING:  # they load torch
    from qurate.benchmark.cell import Cell, CellResult

PACKAGE = Path(__file__).resolve().parents[1]


@cache
def current_commit() -> str:
    """Twelve digits of the commit of this checkout, '+dirty' if the package changed since; 'unknown' outside one."""
    try:
        _git("ls-files", "--error-unmatch", "__init__.py")  # a package installed below another repository is not of it
        commit = _git("rev-parse", "--short=12", "HEAD").strip()
        return commit + ("+dirty" if _git("status", "--porcelain", "--", ".").strip() else "")
    except (OSError, subprocess.CalledProcessError):
        return "unknown"


def _git(*words: str) -> str:
    return subprocess.run(("git", "-C", str(PACKAGE), *words), capture_output=True, text=True, check=True).stdout


SAMPLE, ASKED_AT = "sample", "asked_at"
"""Position in D_u; how many labels had been asked for when its own was there, 0 where it never was."""


def right_at(number: int) -> str:
    """The column that says whether the prediction was right, as 0 or 1, after so many labels were asked for."""
    return f"right_{number}"


def read_queries(path: Path, numbers: Sequence[int]) -> pd.DataFrame:
    """The table of a cell, by sample.

    Args:
        path: The file.
        numbers: How many labels were asked for at each row of the cell's results.

    Raises:
        BenchmarkError: If it is not whole.
    """
    try:
        table = read_csv(path)
    except TableError as error:
        raise BenchmarkError(str(error)) from error
    expected = [SAMPLE, ASKED_AT, *(right_at(number) for number in numbers)]
    if list(table.columns) != expected:
        raise BenchmarkError(f"{path}: must have the columns {', '.join(expected)}.")
    if not path.read_bytes().endswith(b"\n"):
        raise BenchmarkError(f"{path}: is cut off: its last row has no end.")
    try:
        found = table.astype("int64").set_index(SAMPLE)
    except ValueError as error:
        raise BenchmarkError(f"{path}: must hold whole numbers ({error}).") from error
    allowed = found[ASKED_AT].isin(numbers).all() and found.drop(columns=ASKED_AT).isin((0, 1)).all(axis=None)
    if not allowed or found.index.has_duplicates or found.empty:
        raise BenchmarkError(f"{path}: must hold each sample once, when it was asked about, and 0 or 1.")
    return found


RESULTS, ROUNDS, FACTS, CELLS, LOCK = "results.csv", "rounds.csv", "benchmark.json", "cells", ".lock"
"""What the folder holds."""
ROWS, CONFIG, ERROR, ASKED = "rows.csv", "config.json", "error.txt", "asked.csv"
"""What the folder of a cell holds, beside its own `ROUNDS`; `ASKED` where people were asked."""


@dataclasses.dataclass(frozen=True)
class _Kept:
    """A finished cell: the text of its rows and rounds, without headers, and how long it took."""

    rows: str
    rounds: str
    seconds: float


class BenchmarkFolder:
    """Where cells are kept: a cell is finished if its rows are there and whole, and they are written last.

    Args:
        path: The folder; made when something is written.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._kept: dict[str, _Kept] = {}
        self._damaged: set[str] = set()

    def is_finished(self, cell: Cell) -> bool:
        """Whether there is a whole result; one that is damaged is told of in a warning, once."""
        if cell.name not in self._kept and (self._of(cell) / ROWS).exists():
            try:
                self._kept[cell.name] = self._read(cell)
            except BenchmarkError as error:
                if cell.name not in self._damaged:
                    warnings.warn(f"{error} The cell is run again.", BenchmarkWarning, stacklevel=2)
                self._damaged.add(cell.name)
        return cell.name in self._kept

    def count_others(self, cells: Sequence[Cell]) -> int:
        """How many cells of other commands have rows here, which `write_tables` leaves out."""
        names = {cell.name for cell in cells}
        return sum(path.parent.name not in names for path in (self.path / CELLS).glob(f"*/{ROWS}"))

    def error(self, cell: Cell) -> str:
        """The traceback of a failed cell, else empty."""
        path = self._of(cell) / ERROR
        return path.read_text(encoding="utf-8", errors="replace") if path.is_file() else ""

    def keep(self, cell: Cell, result: CellResult) -> None:
        """Write what came of a cell.

        Raises:
            BenchmarkError: If that cannot be written.
        """
        folder = self._of(cell)
        write_file(folder / CONFIG, json.dumps(dataclasses.asdict(cell), indent=1, sort_keys=True) + "\n")
        if result.error:
            write_file(folder / ERROR, result.error)
            return
        write_file(folder / ROUNDS, rows_to_csv(result.rounds, ROUND_COLUMNS))
        if result.asked is not None:
            write_file(folder / ASKED, to_csv(result.asked))
        write_file(folder / ROWS, rows_to_csv(result.rows))
        (folder / ERROR).unlink(missing_ok=True)

    def write_tables(self, cells: Sequence[Cell]) -> None:
        """results.csv and rounds.csv of the finished ones, in their order: the text of their own files."""
        rows, rounds = [",".join(COLUMNS) + "\n"], [",".join(ROUND_COLUMNS) + "\n"]
        for cell in cells:
            if self.is_finished(cell):
                rows.append(self._kept[cell.name].rows)
                rounds.append(self._kept[cell.name].rounds)
        write_file(self.path / RESULTS, "".join(rows))
        write_file(self.path / ROUNDS, "".join(rounds))

    @contextmanager
    def claimed(self) -> Iterator[None]:
        """For the length of the block this process alone writes here, and can.

        Raises:
            BenchmarkError: If the folder cannot be written, is another benchmark's at the moment, or has a results.csv
                that no benchmark wrote.
        """
        check_writable(self.path)
        if foreign := self._foreign():
            raise BenchmarkError(f"{foreign} was not written by `qurate benchmark`. Choose another `out`.")
        with file_lock(self.path / LOCK) as alone:
            if not alone:
                raise BenchmarkError(
                    f"{self.path} is in use by another `qurate benchmark`. Wait until it ends, or choose another `out`."
                )
            yield

    def _foreign(self) -> Path | None:
        """A file that another program wrote under the name of one of ours."""
        if not (self.path / FACTS).is_file():
            return self.path / RESULTS if (self.path / RESULTS).exists() else None
        try:
            facts = json.loads((self.path / FACTS).read_text(encoding="utf-8"))
        except (OSError, ValueError, RecursionError):
            return None  # damaged, and written again
        return None if isinstance(facts, dict) and "suite" in facts else self.path / FACTS

    def seconds(self, cells: Sequence[Cell]) -> Iterator[tuple[Cell, float]]:
        """The finished ones of some cells, and how long each took."""
        for cell in cells:
            if self.is_finished(cell):
                yield cell, self._kept[cell.name].seconds

    def _of(self, cell: Cell) -> Path:
        return self.path / CELLS / cell.name

    def _read(self, cell: Cell) -> _Kept:
        """What was kept of a cell, if it is whole and its own."""
        places = self._of(cell) / ROWS, self._of(cell) / ROUNDS
        rows, rounds = read_results(places[0]), read_results(places[1], ROUND_COLUMNS)
        expected = [(rule, cell.query_strategy, number) for rule in cell.rules for number in cell.label_counts]
        found = list(zip(rows["model_selection"], rows["query_strategy"], rows["asked"], strict=True))
        if found != expected or set(rows["config"]) != {cell.name}:
            asked = f", with {', '.join(map(str, cell.label_counts))} labels asked" if cell.query_strategy else ""
            raise BenchmarkError(f"{places[0]}: must have a row for each of {', '.join(cell.rules)}{asked}.")
        if rows[["accuracy", "seconds"]].isna().any(axis=None) or rounds["accuracy"].isna().any():
            raise BenchmarkError(f"{places[0]}: a result is missing.")
        has_none = cell.selector in PLAIN or bool(cell.query_strategy)
        if list(rounds["round"]) != list(range(len(rounds))) or has_none == (len(rounds) > 0):
            raise BenchmarkError(f"{places[1]}: must have a row for each round.")
        if cell.query_strategy:
            read_queries(self._of(cell) / ASKED, cell.label_counts)
        of_rows, of_rounds = (place.read_text(encoding="utf-8").partition("\n")[2] for place in places)
        return _Kept(of_rows, of_rounds, float(rows["seconds"].iloc[-1]))


def check_writable(path: Path) -> None:
    """Make a folder, and make sure that files can be written in it.

    Raises:
        BenchmarkError: If not.
    """
    if reason := why_not_writable(path):
        raise BenchmarkError(f"`out` must be a folder that can be written, got {shorten(path)} ({reason}).")
    path.mkdir(parents=True, exist_ok=True)
