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
        return Text("" if rate is None else f"{rate:.0f}/s", style="dim")


def make_table(title: str, columns: Sequence[str], rows: Sequence[Sequence[str]]) -> Table:
    """A plain table, the first column left, the others right."""
    table = Table(title=title, title_justify="left", title_style="bold")
    for i, column in enumerate(columns):
        table.add_column(column, justify="left" if i == 0 else "right")
    for row in rows:
        table.add_row(*row)
    return table
