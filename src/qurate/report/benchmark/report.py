"""The report of a benchmark: tables in three formats, figures, and which differences are larger than chance."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from qurate.benchmark.folder import check_writable
from qurate.benchmark.outcome import Outcome, ReportError, read_outcome
from qurate.benchmark.results import write_file
from qurate.report.benchmark.asking import asked_tables, compare_askers
from qurate.report.benchmark.comparisons import Comparisons, compare_rows
from qurate.report.benchmark.figures import asking_figure, rounds_figure, shots_figure
from qurate.report.benchmark.formats import Drawing, to_html, to_latex, to_markdown
from qurate.report.benchmark.tables import ACCURACY, Table, make_tables

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
        reference: Title of the row that the others are compared with, or name of an asker.
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
    tables += asked_tables(outcome)
    compared += compare_askers(outcome, reference)
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
