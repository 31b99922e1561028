"""A report on the terminal."""

from __future__ import annotations

from rich.console import Console
from rich.markup import escape
from rich.table import Table as RichTable
from rich.text import Text

from qurate.registry import PLAIN
from qurate.report.benchmark.comparisons import HEADINGS, LARGER, Comparisons
from qurate.report.benchmark.report import Report
from qurate.report.benchmark.tables import Cell, Table
from qurate.runtime.display import make_table


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
    console.print(Text(table.title, style="bold"))
    for columns in _parts(table, console.width):
        console.print(_part(table, columns))
    if table.has_published:
        _say(console, "Second line: the published number, and ours minus it.")


def _parts(table: Table, width: int) -> list[list[int]]:
    """Columns in order, in as few groups as fit the width, the groups about equally wide."""
    left = max(len(row.title) for row in table.rows) + 4
    widths = [
        3 + max([len(name), *(line.cell_len for row in table.rows for line in _cell(row.cells[i], table).split())])
        for i, name in enumerate(table.columns)
    ]
    groups = -(-sum(widths) // max(1, width - left))
    limit = max(width - left, max(widths))
    fair = min(limit, sum(widths) / max(1, groups) + max(widths) / 2)
    parts: list[list[int]] = [[]]
    for i, needed in enumerate(widths):
        if parts[-1] and sum(widths[j] for j in parts[-1]) + needed > fair:
            parts.append([])
        parts[-1].append(i)
    return parts


def _part(table: Table, columns: list[int]) -> RichTable:
    shown = make_table("", ("", *(escape(table.columns[i]) for i in columns)), [])
    shown.title = None
    for place, row in enumerate(table.rows, 1):
        last = place == len(table.rows) or (row.selector in PLAIN) != (table.rows[place].selector in PLAIN)
        shown.add_row(Text(row.title), *(_cell(row.cells[i], table) for i in columns), end_section=last)
    return shown


def _cell(cell: Cell, table: Table) -> Text:
    style = " ".join(["bold"] * cell.best + ["underline"] * cell.best_plain)
    parts = [(cell.text(), style if cell.mean is not None else "red" if cell.failed else "")]
    if gap := cell.gap(len(table.seeds)):
        parts.append((f"\n{gap}", "red"))
    if cell.published is not None:
        parts.append((f"\n{cell.published:.1f} {cell.difference()}".rstrip(), "dim"))
    return Text.assemble(*parts)


def _print_comparisons(found: Comparisons, console: Console) -> None:
    shown = make_table(
        escape(found.title),
        (escape(f"{found.reference} against"), *HEADINGS),
        [],
    )
    shown.add_column("verdict")
    for row in found.rows:
        shown.add_row(Text(row.other), *row.cells(), Text(row.verdict, style="green" if row.verdict == LARGER else ""))
    console.print(shown)
    _say(console, found.summary)
    _say(console, found.caution)


def _say(console: Console, line: str) -> None:
    console.print(line, markup=False, highlight=False)
