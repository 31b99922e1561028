"""Is a difference between paired results larger than chance? Sign flips, exact where there are few pairs.

If two rows were equally good, each paired difference might as well have had the other sign. The p-value is the share
of all 2^n ways to choose the signs whose mean is at least as far from zero as the one seen (Fisher 1935). The
interval holds every shift that this test would not reject, and its ends are means of subsets of the differences
(Hartigan, "Using subsample values as typical values", 1969). Neither assumes a normal distribution. scipy has the
test, but not the interval, which needs the same sums, nor Holm's correction.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

LEVEL = 0.05
"""A difference is called larger than chance from this p-value down."""
MOST_EXACT = 20
"""Pairs up to which all sign flips are counted; above, a random sample of them."""
_DRAWS = 20_000
_SEED = 0

Numbers = NDArray[np.float64]


def sign_flip_p_value(differences: Sequence[float]) -> float:
    """Two-sided p-value of the mean of paired differences; exact for up to 20 pairs, else from a fixed sample of flips.

    p = #{signs s : |sum_i s_i d_i| >= |sum_i d_i|} / 2^n

    Example:
        >>> sign_flip_p_value([1.0, 2.0, 1.5, 0.5, 1.0, 3.0])  # all six agree: 2 of 64 flips
        0.03125
    """
    values = _checked(differences)
    total, tolerance = values.sum(), _tolerance(values)
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


def _tolerance(values: Numbers) -> float:
    """Sums that differ by rounding alone are equal."""
    return 1e-9 * float(np.abs(values).sum())
