"""What a person sees in a terminal: a rate, a table."""

from __future__ import annotations

from collections.abc import Sequence

from rich.progress import ProgressColumn, Task
from rich.table import Table
from rich.text import Text


class RateColumn(ProgressColumn):
    """Steps per second."""

    def render(self, task: Task) -> Text:
        """The rate, once there is one."""
        rate = task.finished_speed or task.speed
        return Text("" if rate is None else f"{say_rate(rate)}/s", style="dim")


def say_rate(rate: float) -> str:
    """Whole numbers from ten on, else one digit after the point."""
    return f"{rate:.0f}" if rate >= 10 else f"{rate:.1f}"


def say_pace(done: int, left: int, seconds: float) -> str:
    """How fast something goes and how long it still takes; nothing before a second is over.

    Example:
        >>> say_pace(done=640, left=6400, seconds=10.0)
        '64 per second, 2 min left'
    """
    if seconds < 1 or done < 1:
        return ""
    rest = left * seconds / done
    time = f"{rest:.0f} s" if rest < 90 else f"{rest / 60:.0f} min" if rest < 5400 else f"{rest / 3600:.1f} h"
    return f"{say_rate(done / seconds)} per second, {time} left"


def make_table(title: str, columns: Sequence[str], rows: Sequence[Sequence[str]]) -> Table:
    """A plain table, the first column left, the others right."""
    table = Table(title=title, title_justify="left", title_style="bold")
    for i, column in enumerate(columns):
        table.add_column(column, justify="left" if i == 0 else "right")
    for row in rows:
        table.add_row(*row)
    return table
