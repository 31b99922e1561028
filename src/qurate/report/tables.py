"""Results in the shape of the paper's tables: methods down, scenarios across, published numbers beside ours."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass, replace
from typing import Any

import pandas as pd

from qurate.benchmark.options import QUERY_STRATEGY_ORDER
from qurate.benchmark.outcome import DATA, NATURAL, UNASKED, Outcome, ReportError
from qurate.model_selection import RULES
from qurate.registry import PLAIN
from qurate.report.page import DASH, count, signed
from qurate.report.published import Published, scenario_titles
from qurate.report.statistics import Comparisons, compare_rows
from qurate.report.table_notes import change_words, query_strategy_notes, table_notes

MEAN = "mean"
ACCURACY, BALANCED = "accuracy", "balanced_accuracy"
BEFORE, AFTER = "ece", "ece_calibrated"
AUROC, AUROC_UNKNOWN, HOS = "auroc", "auroc_unknown", "hos"
"""What a table shows, as results.csv calls it."""

_TITLES = {
    BALANCED: ", balanced accuracy",
    BEFORE: ", calibration error before calibration",
    AFTER: ", calibration error after calibration",
    AUROC: ", AUROC of right against wrong",
    AUROC_UNKNOWN: ", AUROC of known against unknown",
    HOS: ", HOS",
}


@dataclass(frozen=True)
class Entry:
    """One row on one scenario, or the mean of a row over all scenarios.

    Args:
        mean: Over seeds, in percent; None where there is nothing to average.
        spread: Standard deviation over seeds (ddof 1); None with one seed.
        seeds: How many are in the mean.
        failed: Seeds whose run ended with an error.
        published: In percent; None where nothing is published.
        best: The best of its column but for oracles.
        best_plain: The best of its column without pseudo-labels.
    """

    mean: float | None
    spread: float | None = None
    seeds: int = 0
    failed: int = 0
    published: float | None = None
    best: bool = False
    best_plain: bool = False

    def text(self) -> str:
        """'80.0 ± 0.3', 'failed' or a dash."""
        if self.mean is None:
            return "failed" if self.failed else DASH
        return f"{self.mean:.1f}" + ("" if self.spread is None else f" ± {self.spread:.1f}")

    def gap(self, seeds: int) -> str:
        """'2 of 3 seeds, 1 failed' where seeds of the table are missing from the mean; else empty."""
        if self.mean is None or self.seeds == seeds:
            return ""
        return f"{self.seeds} of {seeds} seeds" + (f", {self.failed} failed" if self.failed else "")

    def difference(self) -> str:
        """Ours as printed minus the published number, with its sign; empty where one of them is not there."""
        if self.mean is None or self.published is None:
            return ""
        return signed(round(self.mean, 1) - self.published, 1)

    def small_lines(self, seeds: int) -> list[str]:
        """What stands small under the number: '2 of 3 seeds', 'paper 77.5 (+2.5)'."""
        lines = [self.gap(seeds)] if self.gap(seeds) else []
        if self.published is not None:
            lines.append(f"paper {self.published:.1f}" + (f" ({self.difference()})" if self.difference() else ""))
        return lines


@dataclass(frozen=True)
class TableRow:
    """One method with one selector; its last cell is the mean, or its only scenario."""

    title: str
    selector: str
    cells: tuple[Entry, ...]

    @property
    def oracle(self) -> bool:
        """Whether the row knows the true labels, so that it shows what is possible and competes with nobody."""
        return self.selector == "oracle"


@dataclass(frozen=True)
class Table:
    """One table: a number of shots and a rule of model selection.

    Args:
        title: What it compares.
        shots: Labelled target samples per class.
        model_selection: Rule by which the reported model was chosen.
        columns: Titles of the scenarios, in a group for each imbalance and number of unknown and missing classes;
            'mean' last where there are several.
        rows: In the order of the paper.
        seeds: All seeds in the table.
        notes: Sentences to print below.
        measure: What its numbers are.
        heading: What its rows are.
        short: Its title in a list of tables; made of shots and rule unless given.
    """

    title: str
    shots: int
    model_selection: str
    columns: tuple[str, ...]
    rows: tuple[TableRow, ...]
    seeds: tuple[int, ...]
    notes: tuple[str, ...]
    measure: str = ACCURACY
    heading: str = "method"
    short: str = ""

    @property
    def has_published(self) -> bool:
        """Whether any cell has a published number."""
        return any(cell.published is not None for row in self.rows for cell in row.cells)


def make_tables(outcome: Outcome) -> list[Table]:
    """One table for each number of shots and each rule, the plain rule ('last') first.

    Where a target was thinned to a long tail, one of balanced accuracy follows each; where runs were calibrated, two of
    the expected calibration error, before and after; where classes are unknown, those of `AUROC`, `AUROC_UNKNOWN` and
    `HOS`.
    """
    results = outcome.results
    known = {rule: place for place, rule in enumerate(RULES)}
    rules = sorted(results["model_selection"].unique(), key=lambda rule: (known.get(rule, len(known)), rule))
    found = []
    for rule in rules:
        of_rule = results[results["model_selection"] == rule]
        for shots in sorted(of_rule["shots"].unique()):
            of_shots = of_rule[of_rule["shots"] == shots]
            measures = [ACCURACY]
            if (of_shots["imbalance"] > 1).any():
                measures.append(BALANCED)
            if of_shots[AFTER].notna().any():
                measures += [BEFORE, AFTER]
            found += [_make_table(outcome, of_shots, measure) for measure in measures]
            hidden = of_shots[of_shots["unknown"] > 0]
            if hidden[AUROC].notna().any():
                found.append(_make_table(outcome, of_shots, AUROC))
            found += [_make_table(outcome, hidden, name) for name in (AUROC_UNKNOWN, HOS) if hidden[name].notna().any()]
    return found


def _make_table(outcome: Outcome, results: pd.DataFrame, measure: str) -> Table:
    shots, rule = int(results["shots"].iloc[0]), str(results["model_selection"].iloc[0])
    published = Published(outcome.facts.suite, shots if measure == ACCURACY else 0)  # of accuracy alone
    title = f"{count(shots, 'label')} per class, model selection: {rule}{_TITLES.get(measure, '')}"
    notes = table_notes(outcome.facts, results, published, measure)
    return _fill_table(outcome, results, measure, published, PLAIN, title=title, notes=tuple(notes))


def _fill_table(
    outcome: Outcome,
    results: pd.DataFrame,
    measure: str,
    published: Published,
    plain: Collection[str],
    *,
    title: str,
    **about: Any,
) -> Table:
    """Scenarios across in the order of the paper, once per kind of target; `plain` selectors have their own best."""
    facts, titles = outcome.facts, scenario_titles(results["scenario"].unique())
    printed = next((table.scenarios for table in Published(facts.suite).tables), ())
    scenarios = sorted(
        titles, key=lambda name: printed.index(titles[name]) if titles[name] in printed else len(printed)
    )
    there = set(results[DATA].itertuples(index=False, name=None))
    changes = sorted({tuple(int(value) for value in column[1:]) for column in there})
    columns: list[tuple[Any, ...]] = [
        (name, *change) for change in changes for name in scenarios if (name, *change) in there
    ]
    names = [titles[column[0]] + change_words(column[1:], changes) for column in columns]
    rows = [
        _make_row(str(row), of_row, columns, published, measure) for row, of_row in results.groupby("title", sort=False)
    ]
    return Table(
        title=f"{facts.suite_title or facts.suite}: {title}",
        shots=int(results["shots"].iloc[0]),
        model_selection=str(results["model_selection"].iloc[0]),
        columns=(*names, *([MEAN] if len(columns) > 1 else [])),
        rows=_mark_best(rows, min if measure in (BEFORE, AFTER) else max, plain),
        seeds=tuple(sorted(int(seed) for seed in results["seed"].unique())),
        measure=measure,
        **about,
    )


def _make_row(
    title: str, results: pd.DataFrame, columns: list[tuple[Any, ...]], published: Published, measure: str
) -> TableRow:
    by_seed = results.pivot(index="seed", columns=DATA, values=measure) * 100
    failed = results[results[ACCURACY].isna()].groupby(DATA).size()
    natural = tuple(NATURAL.values())
    by_seed = by_seed.reindex(columns=pd.MultiIndex.from_tuples(columns))
    cells = [
        replace(
            _summary(by_seed[column].dropna()),
            failed=int(failed.get(column, 0)),
            published=published.accuracy(title, column[0]) if column[1:] == natural else None,
        )
        for column in columns
    ]
    if len(columns) > 1:
        by_seed = by_seed.dropna(how="all")
        complete = bool(by_seed.notna().all(axis=None))  # else the mean would be of unlike things
        mean = _summary(by_seed.mean(axis=1)) if complete else Entry(None)
        as_they_are = all(column[1:] == natural for column in columns)
        cells.append(replace(mean, published=published.mean(title, [c[0] for c in columns]) if as_they_are else None))
    return TableRow(title, str(results["selector"].iloc[0]), tuple(cells))


def _summary(percents: pd.Series) -> Entry:
    if percents.empty:
        return Entry(None)
    spread = float(percents.std(ddof=1)) if len(percents) > 1 else None
    return Entry(float(percents.mean()), spread, len(percents))


def _mark_best(
    rows: list[TableRow], choose: Callable[..., float | None], plain: Collection[str]
) -> tuple[TableRow, ...]:
    """Best means best as printed, so equal numbers are all marked."""
    columns = []
    for cells in zip(*(row.cells for row in rows), strict=True):
        printed = [None if cell.mean is None else round(cell.mean, 1) for cell in cells]
        ranked = [(row, number) for row, number in zip(rows, printed, strict=True) if number is not None]
        best = choose((number for row, number in ranked if not row.oracle), default=None)
        best_plain = choose((number for row, number in ranked if row.selector in plain), default=None)
        columns.append(
            [
                replace(
                    cell,
                    best=number is not None and not row.oracle and number == best,
                    best_plain=number is not None and row.selector in plain and number == best_plain,
                )
                for row, cell, number in zip(rows, cells, printed, strict=True)
            ]
        )
    return tuple(replace(row, cells=cells) for row, cells in zip(rows, zip(*columns, strict=True), strict=True))


REFERENCE = "random"
"""The query strategy that the others are compared with."""
_STRATEGY_TITLES = {ACCURACY: "", UNASKED: ", on images that nobody asked about"}
_ABOUT = {ACCURACY: "all unlabelled images", UNASKED: "images that nobody asked about"}


def numbers_to_show(asked: pd.DataFrame) -> list[int]:
    """After how many labels query strategies are compared: at the second round and at the last; the figure has all."""
    numbers = sorted(int(number) for number in asked.loc[asked["asked"] > 0, "asked"].unique())
    return sorted({numbers[min(1, len(numbers) - 1)], numbers[-1]})


def query_strategy_tables(outcome: Outcome) -> list[Table]:
    """For each row of the benchmark, number of shots and number of labels: accuracy on all images, then without asked.

    Args:
        outcome: Its `asked` may be empty.
    """
    found = []
    for (title, _), rows in _by_query_strategy(outcome.asked).groupby(["row", "shots"], sort=False):
        shots = int(rows["shots"].iloc[0])
        for number in numbers_to_show(rows):
            here = rows[rows["asked"] == number]
            found += [
                _strategy_table(outcome, here, measure, f"{title}, {count(shots, 'label')} per class", number)
                for measure in (ACCURACY, UNASKED)
                if here[measure].notna().any() or measure == ACCURACY
            ]
    return found


def compare_query_strategies(outcome: Outcome, reference: str | None = None) -> list[Comparisons]:
    """One query strategy against each other, for each row of the benchmark, number of labels and measure.

    Args:
        outcome: Its `asked` may be empty.
        reference: Name of the query strategy; random ones unless given. Nothing is compared where they are not there.

    Raises:
        ReportError: If the query strategy that was named is not there.
    """
    asked, found = _by_query_strategy(outcome.asked), []
    there = list(dict.fromkeys(asked["query_strategy"]))
    if reference is not None and reference not in there and outcome.results.empty:
        raise ReportError(f"--reference {reference}: there is no such query strategy. Choose from {', '.join(there)}.")
    name = reference if reference in there else REFERENCE
    for title, rows in asked.groupby("row", sort=False):
        for number in numbers_to_show(rows):
            here = rows[rows["asked"] == number]
            for measure in (ACCURACY, UNASKED):
                known = here.assign(**{ACCURACY: here[measure]}).dropna(subset=[ACCURACY])
                if name not in set(known["query_strategy"]):
                    continue
                compared = compare_rows(known, str(known["model_selection"].iloc[0]), name)
                if compared is not None:
                    found.append(replace(compared, about=f"{title} after {number} labels, {_ABOUT[measure]}"))
    return found


def _by_query_strategy(asked: pd.DataFrame) -> pd.DataFrame:
    """With query strategies as rows, in their order; `row` is the row of the benchmark."""
    order = {name: i for i, name in enumerate(QUERY_STRATEGY_ORDER)}
    named = asked.assign(row=asked["title"], title=asked["query_strategy"], selector=asked["query_strategy"])
    return named.sort_values("query_strategy", kind="stable", key=lambda names: names.map(order).fillna(len(order)))


def _strategy_table(outcome: Outcome, results: pd.DataFrame, measure: str, about: str, number: int) -> Table:
    asked = f"{number} labels asked{_STRATEGY_TITLES[measure]}"
    return _fill_table(
        outcome,
        results,
        measure,
        Published(outcome.facts.suite, 0),
        (),
        title=f"{about}, {asked}",
        notes=tuple(query_strategy_notes(outcome.facts, results, measure, number)),
        heading="query strategy",
        short=f"{about}: {asked}",
    )
