"""A report on the terminal."""

from __future__ import annotations

import math

from rich.console import Console
from rich.table import Table as RichTable
from rich.text import Text

from qurate.benchmark.comparisons import HEADINGS, LARGER, Comparisons
from qurate.benchmark.report import Report
from qurate.benchmark.tables import Cell, Table
from qurate.display import make_table


def print_report(report: Report, console: Console) -> None:
    """Every table in as many parts as fit the width, each note once, and the comparisons."""
    said: set[str] = set()
    for table in report.tables:
        _print_table(table, console)
        for note in table.notes:
            if note not in said:
                _say(console, note)
        said |= set(table.notes)
        console.print()
    for found in report.comparisons:
        _print_comparisons(found, console)
        console.print()


def _print_table(table: Table, console: Console) -> None:
    widths = [
        max(len(name), *(_width(row.cells[i], table) for row in table.rows)) for i, name in enumerate(table.columns)
    ]
    first = max(len(row.title) for row in table.rows) + 4
    fitting = max(1, (console.width - first) // (max(widths) + 3))
    parts = math.ceil(len(widths) / fitting)
    size = math.ceil(len(widths) / parts)
    for part, start in enumerate(range(0, len(widths), size)):
        title = table.title if part == 0 else "continued"
        console.print(_part(table, title, range(start, min(start + size, len(widths)))))
    if table.has_published:
        _say(console, "Second line: the published number, and ours minus it.")


def _part(table: Table, title: str, columns: range) -> RichTable:
    shown = make_table(title, ("", *(table.columns[i] for i in columns)), [])
    for i, row in enumerate(table.rows):
        last = i + 1 == len(table.rows) or (row.selector == "none") != (table.rows[i + 1].selector == "none")
        shown.add_row(Text(row.title), *(_cell(row.cells[i], table) for i in columns), end_section=last)
    return shown


def _cell(cell: Cell, table: Table) -> Text:
    style = " ".join(["bold"] * cell.best + ["underline"] * cell.best_plain)
    text = Text(cell.text(len(table.seeds)), style=style if cell.mean is not None else "red" if cell.failed else "")
    if cell.published is not None:
        text = Text.assemble(text, ("\n" + _beside(cell), "dim"))
    return text


def _beside(cell: Cell) -> str:
    return "" if cell.published is None else f"{cell.published:.1f} {cell.difference()}".strip()


def _width(cell: Cell, table: Table) -> int:
    return max(len(cell.text(len(table.seeds))), len(_beside(cell)))


def _print_comparisons(found: Comparisons, console: Console) -> None:
    shown = make_table(
        f"Larger than chance? Model selection: {found.model_selection}", (f"{found.reference} against", *HEADINGS), []
    )
    shown.add_column("verdict")
    for row in found.rows:
        shown.add_row(Text(row.other), *row.cells(), Text(row.verdict, style="green" if row.verdict == LARGER else ""))
    console.print(shown)
    _say(console, found.summary)
    _say(console, found.caution)


def _say(console: Console, line: str) -> None:
    console.print(line, markup=False, highlight=False)
