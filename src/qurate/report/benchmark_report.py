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
class Drawing:
    """A figure: its file name, the PNG and what it shows."""

    name: str
    png: bytes
    caption: str

    @property
    def uri(self) -> str:
        """The picture itself as an address."""
        return data_uri(self.png, "png")


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
    drawn = {
        SHOTS: shots_figure([t for t in tables if t.measure == ACCURACY and t.model_selection == rules[0]]),
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
        "tables.md": to_markdown(report),
        "tables.tex": to_latex(report.tables),
        PAGE: render_page("benchmark.html.j2", **vars(report), headings=HEADINGS, larger=LARGER, mean=MEAN),
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
    if not there:
        return
    try:
        with (out / PAGE).open("rb") as file:
            ours = b'<meta name="generator" content="qurate">' in file.read(4096)
    except OSError:
        ours = False
    if not ours:
        raise ReportError(f"{out / there[0]} was not written by `qurate report`. Choose another `out`.")


def to_markdown(report: Report) -> str:
    """All tables, comparisons and figures as one page; figures are files beside it."""
    parts = [f"# {_markdown(report.title)}"]
    for table in report.tables:
        head = " | ".join(_markdown(name) for name in table.columns)
        lines = [f"| | {head} |", "|---" + "|---:" * len(table.columns) + "|"]
        for row in table.rows:
            cells = " | ".join(_markdown_cell(cell, len(table.seeds)) for cell in row.cells)
            lines.append(f"| {_markdown(row.title)} | {cells} |")
        notes = [f"- {_markdown(note)}" for note in table.notes]
        parts += [f"## {_markdown(table.title)}", "\n".join(lines), "\n".join(notes)]
    for found in report.comparisons:
        head = " | ".join([_markdown(f"{found.reference} against"), *HEADINGS, "verdict"])
        lines = [f"| {head} |", "|---" + "|---:" * len(HEADINGS) + "|---|"]
        lines += [f"| {' | '.join([_markdown(row.other), *row.cells(), row.verdict])} |" for row in found.rows]
        parts += [f"## {_markdown(found.title)}", found.summary, "\n".join(lines), _markdown(found.caution)]
    for figure in report.figures:
        caption = _markdown(figure.caption)
        parts += [f"![{caption}]({figure.name})", caption]
    return "\n\n".join(parts) + "\n"


def _markdown(text: str) -> str:
    return text.translate(_MARKDOWN)


def _markdown_cell(cell: Entry, seeds: int) -> str:
    text = f"<ins>{cell.text()}</ins>" if cell.best_plain else cell.text()
    text = f"**{text}**" if cell.best else text
    return text + "".join(f"<br><sub>{line}</sub>" for line in cell.small_lines(seeds))


def to_latex(tables: Sequence[Table]) -> str:
    r"""All tables as LaTeX floats; they need \usepackage{booktabs,graphicx}."""
    head = "% Needs \\usepackage{booktabs,graphicx}. Made by `qurate report`.\n\n"
    return head + "\n".join(map(_latex_table, tables))


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


def print_report(report: Report, console: Console) -> None:
    """Every table in as many parts as fit the width, each note once, and the comparisons."""
    printed: set[str] = set()
    for table in report.tables:
        console.print(Text(table.title, style="bold"))
        for columns in _parts(table, console.width):
            console.print(_part(table, columns))
        published = "Second line: the published number, and ours minus it."
        for note in [*([published] if table.has_published else []), *(n for n in table.notes if n not in printed)]:
            console.print(note, markup=False, highlight=False)
        printed |= set(table.notes)
        console.print()
    for found in report.comparisons:
        shown = make_table(escape(found.title), (escape(f"{found.reference} against"), *HEADINGS), [])
        shown.add_column("verdict")
        for row in found.rows:
            verdict = Text(row.verdict, style="green" if row.verdict == LARGER else "")
            shown.add_row(Text(row.other), *row.cells(), verdict)
        console.print(shown)
        console.print(f"{found.summary}\n{found.caution}\n", markup=False, highlight=False)


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
