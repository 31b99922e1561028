"""Run the cells that are not finished, keep what comes of each, and write the tables as they grow."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from concurrent.futures.process import BrokenProcessPool
from typing import Protocol

from qurate.benchmark.cells import Cell, CellResult
from qurate.benchmark.folder import BenchmarkFolder
from qurate.benchmark.lanes import Lane
from qurate.runtime.cluster import RETRIES


class CellListener(Protocol):
    """Who follows a benchmark."""

    def started(self, cell: Cell) -> None:
        """A cell runs."""
        ...

    def ended(self, cell: Cell, result: CellResult) -> None:
        """A cell is done, or has failed."""
        ...


def run_cells(
    cells: Sequence[Cell], lanes: Sequence[Lane], folder: BenchmarkFolder, audience: CellListener
) -> list[Cell]:
    """Run all cells that are not finished.

    A lane keeps the pre-training it has: cells that differ in selection alone follow each other in it.

    Args:
        cells: In the order of the tables.
        lanes: Where they run.
        folder: Where results go.
        audience: Told of each cell.

    Returns:
        The cells that failed.
    """
    folder.write_tables(cells)
    return _Schedule(cells, lanes, folder, audience).run()


class _Schedule:
    """Cells that wait, cells that run, and what each lane has in its memory."""

    def __init__(
        self, cells: Sequence[Cell], lanes: Sequence[Lane], folder: BenchmarkFolder, audience: CellListener
    ) -> None:
        self._cells, self._lanes, self._folder, self._audience = cells, lanes, folder, audience
        self._pending = [cell for cell in cells if not folder.is_finished(cell)]
        self._running: dict[Future[CellResult], tuple[int, Cell]] = {}
        self._held: dict[int, str] = {}  # the pre-training that each lane has
        self._lost: Counter[str] = Counter()  # how often a cell's worker was lost

    def run(self) -> list[Cell]:
        order = {cell.name: i for i, cell in enumerate(self._cells)}
        failed: list[Cell] = []
        while self._pending or self._running:
            self._fill_lanes()
            done = wait(self._running, return_when=FIRST_COMPLETED).done
            for future in sorted(done, key=lambda future: order[self._running[future][1].name]):
                number, cell = self._running.pop(future)
                if self._failed(number, cell, _result(future)):
                    failed.append(cell)
        return sorted(failed, key=lambda cell: order[cell.name])

    def _fill_lanes(self) -> None:
        busy = {number for number, _ in self._running.values()}
        for number, lane in enumerate(self._lanes):
            if number in busy or not self._pending:
                continue
            others = {key for other, key in self._held.items() if other != number}
            cell = next_cell(self._pending, self._held.get(number), others)
            self._pending.remove(cell)
            self._held[number] = cell.pretraining
            self._running[lane.submit(cell)] = number, cell
            self._audience.started(cell)

    def _failed(self, number: int, cell: Cell, result: CellResult | None) -> bool:
        """Keep what came of a cell, and say whether that is an error; if its worker was lost, it waits again."""
        if result is None and self._lost[cell.name] < RETRIES:
            self._lost[cell.name] += 1
            self._pending.insert(0, cell)
            del self._held[number]
            return False
        result = result or CellResult(error=f"The worker process was lost {RETRIES + 1} times. Out of memory?\n")
        self._folder.keep(cell, result)
        self._folder.write_tables(self._cells)
        self._audience.ended(cell, result)
        return bool(result.error)


def next_cell(pending: Sequence[Cell], mine: str | None, others: set[str]) -> Cell:
    """The first cell on the lane's own pre-training, else the first on one that no other lane has, else the first."""
    own = (cell for cell in pending if cell.pretraining == mine)
    new = (cell for cell in pending if cell.pretraining not in others)
    return next(own, None) or next(new, None) or pending[0]


def _result(future: Future[CellResult]) -> CellResult | None:
    """What came of a cell; None if its process was lost, an error if the cluster gave up."""
    try:
        return future.result()
    except BrokenProcessPool:
        return None
    except Exception as error:  # Ray has tried again as often as it may
        return CellResult(error=f"{type(error).__name__}: {error}\n")
