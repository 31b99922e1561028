"""Which asker is worth its questions: tables of askers after some labels, and each against random ones."""

from __future__ import annotations

from dataclasses import replace

import pandas as pd

from qurate.benchmark.asked_outcome import UNASKED
from qurate.benchmark.grid import ASKER_ORDER
from qurate.benchmark.outcome import Outcome, ReportError
from qurate.report.benchmark.comparisons import Comparisons, compare_rows
from qurate.report.benchmark.published import Published
from qurate.report.benchmark.table_notes import asked_notes
from qurate.report.benchmark.tables import (
    ACCURACY,
    MEAN,
    Table,
    TableRow,
    make_row,
    mark_best,
    name_columns,
    order_scenarios,
)
from qurate.report.numbers import count

REFERENCE = "random"
"""The asker that the others are compared with."""
_TITLES = {ACCURACY: "", UNASKED: ", on images that nobody asked about"}
_ABOUT = {ACCURACY: "all unlabelled images", UNASKED: "images that nobody asked about"}


def numbers_to_show(asked: pd.DataFrame) -> list[int]:
    """After how many labels askers are compared: at the second round and at the last; the figure has all."""
    numbers = sorted(int(number) for number in asked.loc[asked["asked"] > 0, "asked"].unique())
    return sorted({numbers[min(1, len(numbers) - 1)], numbers[-1]})


def asked_tables(outcome: Outcome) -> list[Table]:
    """For each row of the benchmark, number of shots and number of labels: accuracy on all images, then without asked.

    Args:
        outcome: Its `asked` may be empty.
    """
    found = []
    for (title, _), rows in _by_askers(outcome.asked).groupby(["row", "shots"], sort=False):
        shots = int(rows["shots"].iloc[0])
        for number in numbers_to_show(rows):
            here = rows[rows["asked"] == number]
            found += [
                _make_table(outcome, here, measure, f"{title}, {count(shots, 'label')} per class", number)
                for measure in (ACCURACY, UNASKED)
                if here[measure].notna().any() or measure == ACCURACY
            ]
    return found


def compare_askers(outcome: Outcome, reference: str | None = None) -> list[Comparisons]:
    """One asker against each other, for each row of the benchmark, number of labels and measure.

    Args:
        outcome: Its `asked` may be empty.
        reference: Name of the asker; random ones unless given. Nothing is compared where they are not there.

    Raises:
        ReportError: If the asker that was named is not there.
    """
    asked, found = _by_askers(outcome.asked), []
    there = list(dict.fromkeys(asked["asker"]))
    if reference is not None and reference not in there and outcome.results.empty:
        raise ReportError(f"--reference {reference}: there is no such asker. Choose from {', '.join(there)}.")
    name = reference if reference in there else REFERENCE
    for title, rows in asked.groupby("row", sort=False):
        for number in numbers_to_show(rows):
            here = rows[rows["asked"] == number]
            for measure in (ACCURACY, UNASKED):
                known = here.assign(**{ACCURACY: here[measure]}).dropna(subset=[ACCURACY])
                if name not in set(known["asker"]):
                    continue
                compared = compare_rows(known, str(known["model_selection"].iloc[0]), name)
                if compared is not None:
                    about = f"{title} after {number} labels, {_ABOUT[measure]}"
                    found.append(replace(compared, about=about))
    return found


def _by_askers(asked: pd.DataFrame) -> pd.DataFrame:
    """With askers as rows, in their order; `row` is the row of the benchmark."""
    order = {name: i for i, name in enumerate(ASKER_ORDER)}
    rank = asked["asker"].map(order).fillna(len(order))
    named = asked.assign(row=asked["title"], title=asked["asker"], selector=asked["asker"], rank=rank)
    return named.sort_values("rank", kind="stable").drop(columns="rank")


def _make_table(outcome: Outcome, results: pd.DataFrame, measure: str, about: str, number: int) -> Table:
    facts, shots = outcome.facts, int(results["shots"].iloc[0])
    scenarios = order_scenarios(facts.suite, [str(name) for name in results["scenario"].unique()])
    columns, names, titles = name_columns(results, scenarios)
    rows = [
        make_row(str(title), of_title, columns, Published(facts.suite, 0), measure)
        for title, of_title in results.groupby("title", sort=False)
    ]
    asked = f"{number} labels asked{_TITLES[measure]}"
    return Table(
        title=f"{facts.suite_title or facts.suite}: {about}, {asked}",
        shots=shots,
        model_selection=str(results["model_selection"].iloc[0]),
        columns=(*names, *([MEAN] if len(columns) > 1 else [])),
        rows=tuple(_only_best(row) for row in mark_best(rows, max)),
        seeds=tuple(sorted(int(seed) for seed in results["seed"].unique())),
        notes=tuple(asked_notes(facts, results, titles, measure, number)),
        measure=measure,
        heading="asker",
        short=f"{about}: {asked}",
    )


def _only_best(row: TableRow) -> TableRow:
    """Without the mark of the best row without pseudo-labels: askers are no such rows."""
    return replace(row, cells=tuple(replace(cell, best_plain=False) for cell in row.cells))
