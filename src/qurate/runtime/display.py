"""What a person sees while training runs: progress with loss and rate, tables."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, Progress, ProgressColumn, TaskID, TextColumn, TimeRemainingColumn
from rich.progress import Task as ProgressTask
from rich.table import Table
from rich.text import Text


class RateColumn(ProgressColumn):
    """Steps per second."""

    def render(self, task: ProgressTask) -> Text:
        """The rate, once there is one."""
        rate = task.finished_speed or task.speed
        return Text("" if rate is None else f"{rate:.0f}/s", style="dim")


class StepBar:
    """A bar for one phase of work; call it after each step."""

    def __init__(self, progress: Progress, task: TaskID) -> None:
        self._progress = progress
        self._task = task

    def __call__(self, step: int, terms: dict[str, float]) -> None:
        """Show that one more step is done and its loss."""
        self._progress.update(self._task, advance=1, note=f"loss {terms['loss']:.3f}")


@contextmanager
def step_bar(console: Console, title: str, steps: int) -> Iterator[StepBar]:
    """A progress bar that goes away when its phase is done."""
    columns = (
        TextColumn("{task.description}"),
        BarColumn(bar_width=24),
        TextColumn("{task.completed:>5.0f}/{task.total:.0f}"),
        TextColumn("{task.fields[note]}"),
        RateColumn(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress:
        yield StepBar(progress, progress.add_task(title, total=steps, note=""))


def make_table(title: str, columns: Sequence[str], rows: Sequence[Sequence[str]]) -> Table:
    """A plain table, the first column left, the others right."""
    table = Table(title=title, title_justify="left", title_style="bold")
    for i, column in enumerate(columns):
        table.add_column(column, justify="left" if i == 0 else "right")
    for row in rows:
        table.add_row(*row)
    return table
