"""The folder of a benchmark: a folder for each cell, named by its fingerprint, and the tables made of them."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from qurate.benchmark.cells import Cell, CellResult
from qurate.benchmark.results import COLUMNS, ROUND_COLUMNS, BenchmarkError, read_results, rounds_to_csv, rows_to_csv
from qurate.runtime.files import write_atomically

RESULTS, ROUNDS, FACTS, CELLS = "results.csv", "rounds.csv", "benchmark.json", "cells"
"""What the folder holds."""
ROWS, CONFIG, ERROR = "rows.csv", "config.json", "error.txt"
"""What the folder of a cell holds, beside its own `ROUNDS`."""


class BenchmarkFolder:
    """Where cells are kept: a cell is finished if its rows are there, and they are written last.

    Args:
        path: The folder; made when something is written.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._texts: dict[str, tuple[str, str]] = {}  # rows and rounds of finished cells, without headers

    def is_finished(self, cell: Cell) -> bool:
        """Whether there is a result."""
        return cell.name in self._texts or (self._of(cell) / ROWS).is_file()

    def error(self, cell: Cell) -> str:
        """The traceback of a failed cell, else empty."""
        path = self._of(cell) / ERROR
        return path.read_text(encoding="utf-8") if path.is_file() else ""

    def keep(self, cell: Cell, result: CellResult) -> None:
        """Write what came of a cell."""
        folder = self._of(cell)
        write_atomically(folder / CONFIG, json.dumps(dataclasses.asdict(cell), indent=1, sort_keys=True) + "\n")
        if result.error:
            write_atomically(folder / ERROR, result.error)
            return
        write_atomically(folder / ROUNDS, rounds_to_csv(result.rounds))
        write_atomically(folder / ROWS, rows_to_csv(result.rows))
        (folder / ERROR).unlink(missing_ok=True)

    def write_tables(self, cells: Sequence[Cell]) -> None:
        """results.csv and rounds.csv of the finished ones, in their order: the text of their own files."""
        rows, rounds = [",".join(COLUMNS) + "\n"], [",".join(ROUND_COLUMNS) + "\n"]
        for cell in cells:
            if self.is_finished(cell):
                if cell.name not in self._texts:
                    self._texts[cell.name] = _body(self._of(cell) / ROWS), _body(self._of(cell) / ROUNDS)
                rows.append(self._texts[cell.name][0])
                rounds.append(self._texts[cell.name][1])
        write_atomically(self.path / RESULTS, "".join(rows))
        write_atomically(self.path / ROUNDS, "".join(rounds))

    def check_own(self) -> None:
        """Make sure that no one else's results are overwritten.

        Raises:
            BenchmarkError: If there is a results.csv that no benchmark wrote.
        """
        if (self.path / RESULTS).exists() and not (self.path / FACTS).is_file():
            raise BenchmarkError(f"{self.path / RESULTS} was not written by `qurate benchmark`. Choose another --out.")

    def write_facts(self, facts: Mapping[str, object]) -> None:
        """benchmark.json: what is compared."""
        write_atomically(self.path / FACTS, json.dumps(facts, indent=1) + "\n")

    def seconds(self, cells: Sequence[Cell]) -> Iterator[tuple[Cell, float]]:
        """The finished ones of some cells, and how long each took."""
        for cell in cells:
            if self.is_finished(cell):
                yield cell, float(read_results(self._of(cell) / ROWS)["seconds"].iloc[0])

    def _of(self, cell: Cell) -> Path:
        return self.path / CELLS / cell.name


def _body(path: Path) -> str:
    return path.read_text(encoding="utf-8").partition("\n")[2]
