"""A report as Markdown, LaTeX and HTML; tables of pandas have no second line in a cell and no rule between rows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import zip_longest

from qurate.registry import PLAIN
from qurate.report.benchmark.comparisons import HEADINGS, LARGER, Comparisons
from qurate.report.benchmark.tables import MEAN, Cell, Table, TableRow
from qurate.report.pages import data_uri, render_page

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


def _markdown_cell(cell: Cell, seeds: int) -> str:
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
