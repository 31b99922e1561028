"""Which differences between rows of a benchmark are larger than chance."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from qurate.benchmark.outcome import DATA, NATURAL, ReportError
from qurate.report.page import DASH, count, percent, signed

LEVEL = 0.05
"""A difference is called larger than chance from this p-value down."""
MOST_EXACT = 20
"""Pairs up to which all sign flips are counted; above, a random sample of them."""
_DRAWS = 20_000
_SEED = 0

Numbers = NDArray[np.float64]


def sign_flip_p_value(differences: Sequence[float]) -> float:
    """Two-sided p-value of the mean of paired differences; exact for up to 20 pairs, else from a fixed sample of flips.

    `scipy.stats.permutation_test` gives the same exact values; the interval below needs the subsets themselves, and the
    two must agree on what is larger than chance in a sample, too.

    p = #{signs s : |sum_i s_i d_i| >= |sum_i d_i|} / 2^n

    Example:
        >>> sign_flip_p_value([1.0, 2.0, 1.5, 0.5, 1.0, 3.0])  # all six agree: 2 of 64 flips
        0.03125
    """
    values = _checked(differences)
    total, tolerance = values.sum(), 1e-9 * float(np.abs(values).sum())  # sums that differ by rounding are equal
    if abs(total) <= tolerance:
        return 1.0
    sums, _ = _subsets(values * np.sign(total))
    # Flipping a subset turns S into S - 2 S_A: as far from zero where S_A <= 0, and so for the complement.
    return float(2 * (1 + np.count_nonzero(sums <= tolerance)) / (len(sums) + 2))


def sign_flip_interval(differences: Sequence[float]) -> tuple[float, float] | None:
    """Interval of the mean difference with confidence 1 - LEVEL; it excludes zero just where p <= LEVEL.

    Returns:
        None where there are too few pairs to bound it: five or fewer, at 95 %.
    """
    values = _checked(differences)
    sums, sizes = _subsets(values)
    rank = math.floor(LEVEL / 2 * (len(sums) + 2))
    if rank == 0:
        return None
    means = np.append(sums / sizes, values.mean())
    ordered = np.partition(means, (rank - 1, len(means) - rank))
    return float(ordered[rank - 1]), float(ordered[len(means) - rank])


def correct_for_many(p_values: Sequence[float]) -> list[float]:
    """Holm's correction: the chance that any of the comparisons called larger than chance is not stays below the level.

    With p sorted upwards, the k-th of m becomes max_{j <= k} min(1, (m - j + 1) p_j). Holm, "A simple sequentially
    rejective multiple test procedure", 1979.
    """
    order = np.argsort(p_values, kind="stable")
    raised = np.arange(len(p_values), 0, -1) * np.asarray(p_values, dtype=np.float64)[order]
    corrected = np.empty(len(p_values))
    corrected[order] = np.maximum.accumulate(np.minimum(1.0, raised))
    return [float(p) for p in corrected]


def smallest_p_value(pairs: int, comparisons: int = 1) -> float:
    """The p-value if all pairs agree, after correction for the number of comparisons: nothing smaller can come out."""
    floor = 2.0 ** (1 - pairs) if pairs <= MOST_EXACT else 2.0 / (_DRAWS + 2)
    return min(1.0, comparisons * floor)


def pairs_needed(comparisons: int) -> int:
    """Fewest pairs with which a difference can be called larger than chance at all."""
    return 1 + max(0, math.ceil(math.log2(comparisons / LEVEL)))


def _subsets(values: Numbers) -> tuple[Numbers, Numbers]:
    """Sum and size of every subset but the empty and the whole one; of more than 20 values, of a sample of them."""
    if len(values) > MOST_EXACT:
        half = np.random.default_rng(_SEED).integers(0, 2, (_DRAWS // 2, len(values))).astype(np.float64)
        half = half[(half.sum(axis=1) > 0) & (half.sum(axis=1) < len(values))]
        chosen = np.concatenate([half, 1 - half])  # each with its complement, as among all subsets
        return chosen @ values, chosen.sum(axis=1)
    sums, sizes = np.zeros(1), np.zeros(1)
    for value in values:
        sums, sizes = np.concatenate([sums, sums + value]), np.concatenate([sizes, sizes + 1])
    return sums[1:-1], sizes[1:-1]


def _checked(differences: Sequence[float]) -> Numbers:
    values = np.asarray(differences, dtype=np.float64)
    if values.ndim != 1 or len(values) == 0 or not np.isfinite(values).all():
        raise ValueError(f"differences must be a list of one or more finite numbers, got {differences!r}.")
    return values


REFERENCE = "TML_DQNPL*"
"""The agent with our preset: the row that the others are compared with, where it is there."""
LARGER, ALONE, UNDECIDED, TOO_FEW = (
    "larger than chance",
    "before correction only",
    "not distinguishable",
    "too few pairs",
)
HEADINGS = ("points", "95 % interval", "pairs", "p", "corrected")
_PAIR = [*DATA, "shots", "seed"]


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
        changed: Names of `NATURAL` of which some pairs have another value.
        about: What is compared, where it is not all results under the rule.
    """

    reference: str
    best: bool
    model_selection: str
    rows: tuple[Comparison, ...]
    changed: tuple[str, ...] = ()
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
        changed = [name.replace("_", " ") for name in self.changed]
        named = f"{', '.join(['scenario', *changed, 'shots'])} and seed"
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
    name = reference or REFERENCE
    if best:
        name = max(by_row, key=lambda title: (len(by_row[title]), float(by_row[title].mean())))
    differences = {
        title: (by_row[name] - accuracies).dropna().tolist() for title, accuracies in by_row.items() if title != name
    }
    rows = _judge({title: values for title, values in differences.items() if values})
    changed = tuple(name for name, natural in NATURAL.items() if (found[name] != natural).any())
    return Comparisons(name, best, rule, rows, changed) if rows else None


def _judge(differences: dict[str, list[float]]) -> tuple[Comparison, ...]:
    p_values = [sign_flip_p_value(values) for values in differences.values()]
    judged = zip(differences.items(), p_values, correct_for_many(p_values), strict=True)
    return tuple(
        Comparison(
            other=title,
            pairs=len(values),
            difference=sum(values) / len(values),
            interval=sign_flip_interval(values),
            p_value=p_value,
            corrected=corrected,
            verdict=_verdict(len(values), p_value, corrected),
        )
        for (title, values), p_value, corrected in judged
    )


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


def _listed(names: list[str]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"
