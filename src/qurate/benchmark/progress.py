"""A benchmark as a person follows it: a line for each cell that ends, and on a terminal what runs and what is left."""

from __future__ import annotations

from collections.abc import Sequence
from types import TracebackType
from typing import Self

from rich.console import Console, Group
from rich.live import Live
from rich.progress import BarColumn, Progress, TextColumn
from rich.text import Text

from qurate.benchmark.cells import Cell, CellResult
from qurate.benchmark.estimate import estimate
from qurate.expectation import say_time


class CellDisplay:
    """The audience of `run_cells` on the command line.

    Args:
        console: Where to write.
        cells: All of the grid.
        finished: Those that are finished, and their seconds.
        lanes: How many run at once.
    """

    def __init__(
        self, console: Console, cells: Sequence[Cell], finished: Sequence[tuple[Cell, float]], lanes: int
    ) -> None:
        self._console = console
        self._cells = cells
        self._finished = list(finished)
        self._ended = {cell for cell, _ in finished}
        self._lanes = lanes
        self._running: list[Cell] = []
        self._time_left = ""
        self._bar = Progress(TextColumn("cells"), BarColumn(bar_width=24), TextColumn("{task.completed}/{task.total}"))
        self._task = self._bar.add_task("cells", total=len(cells), completed=len(self._ended))
        self._live = Live(console=console, transient=True, refresh_per_second=4, get_renderable=self._draw)

    def __enter__(self) -> Self:
        if self._console.is_terminal:
            self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._console.is_terminal:
            self._live.stop()

    def started(self, cell: Cell) -> None:
        """Show that it runs."""
        self._running.append(cell)
        self._expect()

    def ended(self, cell: Cell, result: CellResult) -> None:
        """A line for it."""
        self._running.remove(cell)
        self._ended.add(cell)
        self._bar.update(self._task, completed=len(self._ended))
        count = f"{len(self._ended):>{len(str(len(self._cells)))}}/{len(self._cells)}"
        if result.error:
            said = f"FAILED: {last_line(result.error)}"
        else:
            row = result.rows[-1 if cell.asker else 0]
            self._finished.append((cell, row.seconds))
            asked = f" after {row.asked} labels" if cell.asker else ""
            said = f"{row.accuracy:.1%}{asked} ({row.model_selection}), {row.seconds:.0f} s"
        self._console.print(f"{count}  {cell.title()}: {said}", markup=False, highlight=False, soft_wrap=True)

    def _expect(self) -> None:
        left = [cell for cell in self._cells if cell not in self._ended]
        if self._finished and self._console.is_terminal:
            self._time_left = f"{say_time(estimate(left, self._finished, None).whole(self._lanes))} left"

    def _draw(self) -> Group:
        now = [Text(f"  running: {cell.title()}", style="dim") for cell in self._running]
        return Group(self._bar, Text(f"  {self._time_left}", style="dim"), *now)


def last_line(error: str) -> str:
    """What a traceback ends with."""
    return error.strip().splitlines()[-1]
