"""Run the cells that are not finished, keep what comes of each, and write the tables as they grow."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from concurrent.futures.process import BrokenProcessPool
from typing import Protocol

from qurate.benchmark.cells import Cell, CellResult
from qurate.benchmark.folder import BenchmarkFolder
from qurate.benchmark.lanes import RETRIES, Lane


class Audience(Protocol):
    """Who follows a benchmark."""

    def started(self, cell: Cell) -> None:
        """A cell runs."""
        ...

    def ended(self, cell: Cell, result: CellResult) -> None:
        """A cell is done, or has failed."""
        ...


def run_cells(cells: Sequence[Cell], lanes: Sequence[Lane], folder: BenchmarkFolder, audience: Audience) -> list[Cell]:
    """Run all cells that are not finished.

    A lane goes on with the pre-training it has: cells that differ in selection alone follow each other in it.

    Args:
        cells: In the order of the tables.
        lanes: Where they run.
        folder: Where results go.
        audience: Told of each cell.

    Returns:
        The cells that failed.
    """
    order = {cell: i for i, cell in enumerate(cells)}
    pretraining = {cell: cell.pretraining for cell in cells}
    pending = [cell for cell in cells if not folder.is_finished(cell)]
    held: dict[int, str] = {}  # the pre-training that each lane has
    tries: dict[Cell, int] = {}
    running: dict[Future[CellResult], tuple[int, Cell]] = {}
    failed: list[Cell] = []
    folder.write_tables(cells)
    while pending or running:
        busy = {number for number, _ in running.values()}
        for number in (number for number in range(len(lanes)) if number not in busy and pending):
            others = {key for lane, key in held.items() if lane != number}
            cell = next_cell(pending, pretraining, held.get(number), others)
            pending.remove(cell)
            held[number] = pretraining[cell]
            running[lanes[number].submit(cell)] = number, cell
            audience.started(cell)
        done = wait(running, return_when=FIRST_COMPLETED).done
        for future in sorted(done, key=lambda future: order[running[future][1]]):
            number, cell = running.pop(future)
            result = _result(future)
            if result is None and tries.get(cell, 0) < RETRIES:
                tries[cell] = tries.get(cell, 0) + 1
                pending.insert(0, cell)
                del held[number]
                continue
            result = result or CellResult(error=f"The worker process was lost {RETRIES + 1} times. Out of memory?\n")
            folder.keep(cell, result)
            folder.write_tables(cells)
            audience.ended(cell, result)
            if result.error:
                failed.append(cell)
    return sorted(failed, key=order.__getitem__)


def next_cell(pending: Sequence[Cell], pretraining: dict[Cell, str], mine: str | None, others: set[str]) -> Cell:
    """The first cell on the lane's own pre-training, else the first on one that no other lane has, else the first."""
    for wanted in (lambda key: key == mine, lambda key: key not in others):
        for cell in pending:
            if wanted(pretraining[cell]):
                return cell
    return pending[0]


def _result(future: Future[CellResult]) -> CellResult | None:
    """What came of a cell; None if its process was lost, an error if the cluster gave up."""
    try:
        return future.result()
    except BrokenProcessPool:
        return None
    except Exception as error:  # Ray has tried again as often as it may
        return CellResult(error=f"{type(error).__name__}: {error}\n")
