"""Which differences between rows are larger than chance: one row against each other, cell by cell."""

from __future__ import annotations

from dataclasses import dataclass

import pandas as pd

from qurate.benchmark.outcome import ReportError
from qurate.report.benchmark.statistics import (
    LEVEL,
    MOST_EXACT,
    correct_for_many,
    pairs_needed,
    sign_flip_interval,
    sign_flip_p_value,
    smallest_p_value,
)
from qurate.report.numbers import DASH, count, percent, signed

REFERENCE = "TML_DQNPL*"
"""The agent with our preset: the row that the others are compared with, where it is there."""
LARGER, ALONE, UNDECIDED, TOO_FEW = (
    "larger than chance",
    "before correction only",
    "not distinguishable",
    "too few pairs",
)
HEADINGS = ("points", "95 % interval", "pairs", "p", "corrected")
_PAIR = ["scenario", "imbalance", "shots", "seed"]


@dataclass(frozen=True)
class Comparison:
    """The reference row against another.

    Args:
        other: Title of the other row.
        pairs: Cells that both rows have.
        difference: Mean of reference minus other, in points of accuracy.
        interval: 95 % interval of it; None where there are too few pairs.
        p_value: Of the sign-flip test.
        corrected: The same after correction for all comparisons with this reference.
        verdict: In words.
    """

    other: str
    pairs: int
    difference: float
    interval: tuple[float, float] | None
    p_value: float
    corrected: float
    verdict: str

    def cells(self) -> tuple[str, ...]:
        """Difference, interval, pairs, p and corrected p as text, under `HEADINGS`."""
        interval = f"{signed(self.interval[0], 1)} to {signed(self.interval[1], 1)}" if self.interval else DASH
        return (signed(self.difference, 1), interval, str(self.pairs), _short(self.p_value), _short(self.corrected))


@dataclass(frozen=True)
class Comparisons:
    """All comparisons under one rule of model selection.

    Args:
        reference: Title of the row that is compared with each other.
        best: Whether it was chosen as the best row, being neither asked for nor `REFERENCE`.
        model_selection: The rule.
        rows: A comparison for each other row but oracles, in the order of the tables.
        thinned: Whether some pairs are of a target that was thinned to a long tail.
        about: What is compared, where it is not all results under the rule.
    """

    reference: str
    best: bool
    model_selection: str
    rows: tuple[Comparison, ...]
    thinned: bool = False
    about: str = ""

    @property
    def title(self) -> str:
        """The heading above it."""
        return f"Larger than chance? {self.about or f'Model selection: {self.model_selection}'}"

    @property
    def summary(self) -> str:
        """What came out, or why nothing could."""
        pairs, others = max(row.pairs for row in self.rows), len(self.rows)
        if smallest_p_value(pairs, others) > LEVEL:
            alone, corrected = smallest_p_value(pairs), smallest_p_value(pairs, others)
            return (
                f"{count(pairs, 'pair').capitalize()} cannot show that a difference is larger than chance: even if all "
                f"of them agree, {p_text(alone)}, and {p_text(corrected)} after correction for "
                f"{count(others, 'comparison')}. It takes {pairs_needed(others)} pairs or more."
            )
        larger = [row for row in self.rows if row.verdict == LARGER]
        sides = {
            "above": [row.other for row in larger if row.difference > 0],
            "below": [row.other for row in larger if row.difference < 0],
        }
        said = " and ".join(f"{side} {_listed(names)}" for side, names in sides.items() if names)
        if not said:
            return f"No other row differs from {self.reference} by more than chance ({count(pairs, 'pair')})."
        rest = [row.other for row in self.rows if row.verdict != LARGER]
        untold = f" It cannot be told from {_listed(rest)}." if rest else ""
        return f"{self.reference} is {said} by more than chance.{untold}"

    @property
    def caution(self) -> str:
        """How it was tested, and what that does not say."""
        exact = "exact" if all(row.pairs <= MOST_EXACT for row in self.rows) else "sampled"
        level = percent(LEVEL)
        named = "scenario, imbalance, shots and seed" if self.thinned else "scenario, shots and seed"
        said = [
            f"{self.reference} against each other row, paired by {named}; {exact} sign-flip test, Holm's correction, "
            f"level {level}."
        ]
        if any(row.verdict == ALONE for row in self.rows):
            said.append(f"'{ALONE}': p is at most {level} by itself, but not after the correction.")
        if self.best:
            said.append("It was chosen as the best row here, which overstates its advantage.")
        said.append(
            "Seeds of a scenario share its images, so this speaks of other seeds on these scenarios, not of other data."
        )
        return " ".join(said)


def compare_rows(results: pd.DataFrame, rule: str, reference: str | None = None) -> Comparisons | None:
    """Compare one row with each other.

    Args:
        results: Of an `Outcome`.
        rule: Model selection whose results are compared.
        reference: Title of the row; `REFERENCE` unless given, and where that is not there the best.

    Returns:
        None where there are no two rows to compare.

    Raises:
        ReportError: If no row has the title.
    """
    found = results[(results["model_selection"] == rule) & results["accuracy"].notna()]
    by_row = {
        str(title): rows.set_index(_PAIR)["accuracy"].astype(float) * 100
        for title, rows in found[found["selector"] != "oracle"].groupby("title", sort=False)
    }
    if reference is not None and reference not in by_row:
        raise ReportError(
            f"--reference {reference}: there is no such row under {rule}. Choose from {', '.join(by_row)}."
        )
    if not by_row:
        return None
    best = reference is None and REFERENCE not in by_row
    name = max(by_row, key=lambda title: _rank(by_row[title])) if best else reference or REFERENCE
    differences = {
        title: (by_row[name] - accuracies).dropna().tolist() for title, accuracies in by_row.items() if title != name
    }
    rows = _judge({title: values for title, values in differences.items() if values})
    return Comparisons(name, best, rule, rows, bool((found["imbalance"] > 1).any())) if rows else None


def _judge(differences: dict[str, list[float]]) -> tuple[Comparison, ...]:
    p_values = [sign_flip_p_value(values) for values in differences.values()]
    rows = []
    for (title, values), p_value, corrected in zip(
        differences.items(), p_values, correct_for_many(p_values), strict=True
    ):
        mean = sum(values) / len(values)
        rows.append(
            Comparison(
                title,
                len(values),
                mean,
                sign_flip_interval(values),
                p_value,
                corrected,
                _verdict(len(values), p_value, corrected),
            )
        )
    return tuple(rows)


def _verdict(pairs: int, p_value: float, corrected: float) -> str:
    if corrected <= LEVEL:
        return LARGER
    if p_value <= LEVEL:
        return ALONE
    return UNDECIDED if smallest_p_value(pairs) <= LEVEL else TOO_FEW


def p_text(p_value: float) -> str:
    """'p = 0.03' on one line, with two significant digits."""
    text = _short(p_value)
    return f"p\u00a0{text}" if text.startswith("<") else f"p\u00a0=\u00a0{text}"


def _short(p_value: float) -> str:
    if p_value < 0.0001:
        return "<\u00a00.0001"
    return f"{p_value:.2g}" if p_value < 0.1 else f"{p_value:.2f}"


def _rank(accuracies: pd.Series) -> tuple[int, float]:
    return len(accuracies), float(accuracies.mean())


def _listed(names: list[str]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"
