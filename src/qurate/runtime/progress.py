"""A run as a person follows it: a bar for each phase on a terminal, a line for each elsewhere."""

from __future__ import annotations

import time
from types import TracebackType
from typing import Self

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeRemainingColumn

from qurate.runtime.display import RateColumn


class PhaseBars:
    """The audience of `qurate.adapt` on the command line.

    Args:
        console: Where to write.
    """

    def __init__(self, console: Console) -> None:
        self._console = console
        columns = (
            TextColumn("{task.description}", markup=False),
            BarColumn(bar_width=24),
            TextColumn("{task.completed:>5.0f}/{task.total:.0f}"),
            RateColumn(),
            TimeRemainingColumn(),
        )
        self._progress = Progress(*columns, console=console, transient=True, disable=not console.is_terminal)
        self._phase = ""
        self._task: TaskID | None = None
        self._began = 0.0

    def __enter__(self) -> Self:
        self._progress.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._end(said=error is None)
        self._progress.stop()

    def say(self, line: str) -> None:
        """A sentence, on a line of its own."""
        self._end(said=True)
        self._console.print(line, markup=False, highlight=False, soft_wrap=True)

    def show(self, phase: str, done: int, total: int) -> None:
        """How far a phase is; a new phase ends the one before."""
        if phase != self._phase:
            self._end(said=True)
            self._phase, self._began = phase, time.perf_counter()
            self._task = self._progress.add_task(phase, total=total)
        if self._task is not None:
            self._progress.update(self._task, completed=done, total=total)

    def _end(self, *, said: bool) -> None:
        if self._task is None:
            return
        self._progress.remove_task(self._task)
        if said:
            seconds = time.perf_counter() - self._began
            self._console.print(f"{self._phase}: {seconds:.0f} s", markup=False, highlight=False)
        self._phase, self._task = "", None
