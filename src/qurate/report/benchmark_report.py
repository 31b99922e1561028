"""The report of a benchmark: tables as Markdown, LaTeX, HTML and on the terminal, figures, comparisons."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path

from rich.console import Console
from rich.markup import escape
from rich.table import Table as RichTable
from rich.text import Text

from qurate.benchmark.folder import check_writable
from qurate.benchmark.outcome import Outcome, ReportError, read_outcome
from qurate.benchmark.results import write_file
from qurate.registry import PLAIN
from qurate.report.figures import asking_figure, rounds_figure, shots_figure
from qurate.report.page import data_uri, render_page
from qurate.report.statistics import HEADINGS, LARGER, Comparisons, compare_rows
from qurate.report.tables import (
    ACCURACY,
    MEAN,
    Entry,
    Table,
    TableRow,
    compare_query_strategies,
    make_tables,
    query_strategy_tables,
)
from qurate.runtime.progress import make_table

_MARKDOWN = str.maketrans(
    {"&": "&amp;", "<": "&lt;", ">": "&gt;", "|": "\\|", "*": "\\*", "`": "\\`", "[": "\\[", "]": "\\]", "\n": " "}
)
_LATEX = str.maketrans(
    {
        "\\": r"\textbackslash{}", "{": r"\{", "}": r"\}", "$": r"\$", "&": r"\&", "#": r"\#", "%": r"\%", "_": r"\_",
        "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "±": r"$\pm$", "\u2212": "$-$", "\u2013": "--",
        "\u00a0": "~", "<": "$<$", ">": "$>$", "|": "$|$",
    }
)  # fmt: skip


@dataclass(frozen=True)
class Drawing:
    """A figure: its file name, the PNG and what it shows."""

    name: str
    png: bytes
    caption: str

    @property
    def uri(self) -> str:
        """The picture itself as an address."""
        return data_uri(self.png, "png")


def to_markdown(
    title: str, tables: Sequence[Table], comparisons: Sequence[Comparisons], figures: Sequence[Drawing]
) -> str:
    """All tables, comparisons and figures as one page.

    Args:
        title: Heading.
        tables: In order.
        comparisons: In order.
        figures: Files beside the page.
    """
    parts = [f"# {title.translate(_MARKDOWN)}"]
    for table in tables:
        parts += [f"## {table.title.translate(_MARKDOWN)}", _markdown_table(table)]
        parts.append("\n".join(f"- {note.translate(_MARKDOWN)}" for note in table.notes))
    for found in comparisons:
        parts += [f"## {found.title.translate(_MARKDOWN)}", found.summary]
        parts += [_markdown_comparisons(found), found.caution.translate(_MARKDOWN)]
    for figure in figures:
        caption = figure.caption.translate(_MARKDOWN)
        parts.append(f"![{caption}]({figure.name})\n\n{caption}")
    return "\n\n".join(parts) + "\n"


def _markdown_table(table: Table) -> str:
    head = " | ".join(name.translate(_MARKDOWN) for name in table.columns)
    lines = [f"| | {head} |", "|---" + "|---:" * len(table.columns) + "|"]
    for row in table.rows:
        cells = " | ".join(_markdown_cell(cell, len(table.seeds)) for cell in row.cells)
        lines.append(f"| {row.title.translate(_MARKDOWN)} | {cells} |")
    return "\n".join(lines)


def _markdown_cell(cell: Entry, seeds: int) -> str:
    text = f"<ins>{cell.text()}</ins>" if cell.best_plain else cell.text()
    text = f"**{text}**" if cell.best else text
    return text + "".join(f"<br><sub>{line}</sub>" for line in cell.small_lines(seeds))


def _markdown_comparisons(found: Comparisons) -> str:
    head = " | ".join([f"{found.reference} against".translate(_MARKDOWN), *HEADINGS, "verdict"])
    lines = [f"| {head} |", "|---" + "|---:" * len(HEADINGS) + "|---|"]
    lines += [f"| {' | '.join([row.other.translate(_MARKDOWN), *row.cells(), row.verdict])} |" for row in found.rows]
    return "\n".join(lines)


def to_latex(tables: Sequence[Table]) -> str:
    r"""All tables as LaTeX floats; they need \usepackage{booktabs,graphicx}."""
    return "% Needs \\usepackage{booktabs,graphicx}. Made by `qurate report`.\n\n" + "\n".join(
        map(_latex_table, tables)
    )


def _latex_table(table: Table) -> str:
    selected = [i for i, row in enumerate(table.rows) if row.selector not in PLAIN]
    rows = []
    for i, row in enumerate(table.rows):
        rows += ["\\midrule"] if i in selected[:1] and i else []
        rows += _latex_row(row, table)
    head = " & ".join([table.heading.capitalize(), *(_latex(name.replace("mean", "Mean")) for name in table.columns)])
    return "\n".join(
        [
            "\\begin{table*}[htb]",
            "\\centering",
            f"\\caption{{{_latex(table.title)}. {' '.join(_latex(note) for note in table.notes)}}}",
            "\\resizebox{\\ifdim\\width>\\textwidth\\textwidth\\else\\width\\fi}{!}{%",
            f"\\begin{{tabular}}{{l{'c' * (len(table.columns) - 1)}{'|' if len(table.columns) > 1 else ''}c}}",
            "\\toprule",
            f"{head} \\\\",
            "\\midrule",
            *rows,
            "\\bottomrule",
            "\\end{tabular}}",
            "\\end{table*}",
            "",
        ]
    )


def _latex_row(row: TableRow, table: Table) -> list[str]:
    texts = []
    for cell in row.cells:
        text = f"\\underline{{{_latex(cell.text())}}}" if cell.best_plain else _latex(cell.text())
        texts.append(f"\\textbf{{{text}}}" if cell.best else text)
    lines = [[_latex(row.title), *texts]]
    small = [cell.small_lines(len(table.seeds)) for cell in row.cells]
    for under in zip_longest(*small, fillvalue=""):
        lines.append(["", *(f"\\scriptsize {_latex(line)}" if line else "" for line in under)])
    return [" & ".join(line) + " \\\\" for line in lines]


def _latex(text: str) -> str:
    return text.translate(_LATEX)


def to_html(title: str, tables: Sequence[Table], comparisons: Sequence[Comparisons], figures: Sequence[Drawing]) -> str:
    """The page; every text in it is escaped by the template."""
    return render_page(
        "benchmark.html.j2",
        title=title,
        tables=tables,
        comparisons=comparisons,
        figures=figures,
        headings=HEADINGS,
        larger=LARGER,
        mean=MEAN,
    )


FOLDER = "report"
"""Within the folder of the benchmark, unless another is asked for."""
PAGE, SHOTS, ROUNDS, ASKING = "tables.html", "shots.png", "rounds.png", "asking.png"
CAPTIONS = {
    SHOTS: "Accuracy against labels per class; the band is one standard deviation over seeds.",
    ROUNDS: "Accuracy by round, and below it the share of the unlabelled images whose pseudo-label is trusted (the "
    "positives). Round 0 is before selection.",
    ASKING: "Accuracy on all unlabelled images against labels that people were asked for, where labelled images count "
    "as right; the band is one standard deviation over seeds.",
}


@dataclass(frozen=True)
class Report:
    """All that a report says."""

    title: str
    tables: tuple[Table, ...]
    comparisons: tuple[Comparisons, ...]
    figures: tuple[Drawing, ...]


def make_report(outcome: Outcome, *, reference: str | None = None) -> Report:
    """Tables, comparisons and figures of a benchmark.

    Args:
        outcome: What it left.
        reference: Title of the row that the others are compared with, or name of a query strategy.
    """
    tables = make_tables(outcome)
    rules = list(dict.fromkeys(table.model_selection for table in tables))
    compared = [compare_rows(outcome.results, rule, reference) for rule in rules]
    plain = [table for table in tables if table.measure == ACCURACY]
    drawn = {
        SHOTS: shots_figure([table for table in plain if table.model_selection == rules[0]]),
        ROUNDS: rounds_figure(outcome.rounds),
        ASKING: asking_figure(outcome.asked),
    }
    tables += query_strategy_tables(outcome)
    compared += compare_query_strategies(outcome, reference)
    return Report(
        title=f"Benchmark: {outcome.facts.suite_title or outcome.facts.suite}",
        tables=tuple(tables),
        comparisons=tuple(found for found in compared if found is not None),
        figures=tuple(Drawing(name, png, CAPTIONS[name]) for name, png in drawn.items() if png is not None),
    )


def write_report(folder: Path, out: Path | None = None, *, reference: str | None = None) -> tuple[Report, list[Path]]:
    """Write tables.md, tables.tex, tables.html and the figures, replacing those of an earlier report.

    Args:
        folder: The --out folder of `qurate benchmark`.
        out: Where to; `folder/report` unless given.
        reference: Title of the row that the others are compared with.

    Returns:
        The report and the files.

    Raises:
        ReportError: If there is nothing to report on, or `out` holds files that no report left.
        BenchmarkError: If `out` cannot be written.
    """
    out = folder / FOLDER if out is None else out
    outcome = read_outcome(folder)
    _check_out(out)
    report = make_report(outcome, reference=reference)
    files: dict[str, str | bytes] = {
        "tables.md": to_markdown(report.title, report.tables, report.comparisons, report.figures),
        "tables.tex": to_latex(report.tables),
        PAGE: to_html(report.title, report.tables, report.comparisons, report.figures),
        **{figure.name: figure.png for figure in report.figures},
    }
    for name in sorted(files, key=lambda name: name != PAGE):  # the page first: it marks the folder as a report's
        write_file(out / name, files[name])
    for name in CAPTIONS:
        if name not in files and (out / name).is_file():
            (out / name).unlink()  # of an earlier report, and no longer true
    return report, [out / name for name in files]


def _check_out(out: Path) -> None:
    """A folder that can be written, with nothing of these names in it but the files of an earlier report."""
    check_writable(out)
    there = [name for name in (PAGE, "tables.md", "tables.tex", *CAPTIONS) if (out / name).exists()]
    if there and not _is_ours(out / PAGE):
        raise ReportError(f"{out / there[0]} was not written by `qurate report`. Choose another `out`.")


def _is_ours(page: Path) -> bool:
    try:
        with page.open("rb") as file:
            return b'<meta name="generator" content="qurate">' in file.read(4096)
    except OSError:
        return False


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


def _cell(cell: Entry, table: Table) -> Text:
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
