from __future__ import annotations

import itertools

import numpy as np
import pytest
import scipy.stats
from hypothesis import given
from hypothesis import strategies as st

from qurate.report.statistics import (
    LEVEL,
    correct_for_many,
    pairs_needed,
    sign_flip_interval,
    sign_flip_p_value,
    smallest_p_value,
)

THOUSANDTHS = st.integers(-60, 60)
FEW = st.lists(THOUSANDTHS, min_size=1, max_size=9)


def by_enumeration(thousandths: list[int]) -> float:
    """The definition, in whole numbers."""
    seen = abs(sum(thousandths))
    flips = [abs(sum(s * d for s, d in zip(signs, thousandths, strict=True)))
             for signs in itertools.product((1, -1), repeat=len(thousandths))]  # fmt: skip
    return sum(flip >= seen for flip in flips) / len(flips)


@given(FEW)
def test_the_p_value_equals_the_plain_enumeration(thousandths: list[int]) -> None:
    assert sign_flip_p_value([d / 1000 for d in thousandths]) == by_enumeration(thousandths)


@given(st.lists(THOUSANDTHS, min_size=2, max_size=9))
def test_the_p_value_equals_that_of_scipy(thousandths: list[int]) -> None:
    test = scipy.stats.permutation_test(
        (np.array(thousandths),), np.sum, permutation_type="samples", vectorized=True, n_resamples=2**9
    )
    assert sign_flip_p_value([d / 1000 for d in thousandths]) == pytest.approx(float(test.pvalue))


@given(FEW, st.integers(0, 5))
def test_the_p_value_does_not_care_for_order_sign_or_unit(thousandths: list[int], turn: int) -> None:
    differences = [d / 1000 for d in thousandths]
    p = sign_flip_p_value(differences)
    assert sign_flip_p_value([-d for d in differences]) == p
    assert sign_flip_p_value([100 * d for d in differences]) == p
    assert sign_flip_p_value(differences[turn:] + differences[:turn]) == p
    assert smallest_p_value(len(differences)) <= p <= 1


@given(FEW)
def test_the_interval_holds_the_shifts_that_the_test_does_not_reject(thousandths: list[int]) -> None:
    interval = sign_flip_interval([float(d) for d in thousandths])
    if len(thousandths) < 6:
        assert interval is None
        return
    assert interval is not None
    low, high = interval
    assert min(thousandths) <= low <= sum(thousandths) / len(thousandths) <= high <= max(thousandths)
    for shift in range(-61, 62, 3):
        rejected = by_enumeration([d - shift for d in thousandths]) <= LEVEL
        assert rejected == (shift < low - 1e-9 or shift > high + 1e-9)


def test_six_pairs_span_from_the_least_to_the_largest() -> None:
    """With 64 flips 2.5 % is one of them, so the interval is as wide as the differences."""
    assert sign_flip_interval([1.0, 3.0, 2.0, 5.0, 4.0, 2.5]) == (1.0, 5.0)


def test_twenty_pairs_are_counted_and_more_are_sampled_with_nearly_the_same_answer() -> None:
    differences = list(np.random.default_rng(3).normal(0.4, 1.0, 20))
    exact = sign_flip_p_value(differences)
    assert 0.02 < exact < 0.5
    # A difference of zero changes no sum, so 21 pairs with one have the exact p-value of the 20.
    assert sign_flip_p_value([*differences, 0.0]) == pytest.approx(exact, abs=0.01)
    assert sign_flip_p_value([*differences, 0.0]) == sign_flip_p_value([*differences, 0.0])
    many = sign_flip_interval([*differences, 0.4])
    few = sign_flip_interval(differences)
    assert many is not None
    assert few is not None
    assert many == pytest.approx(few, abs=0.08)


def test_chance_is_called_a_difference_as_rarely_as_promised() -> None:
    rng = np.random.default_rng(0)
    p_values = [sign_flip_p_value(list(rng.normal(size=8))) for _ in range(2000)]
    assert 0.03 < np.mean(np.array(p_values) <= LEVEL) <= 0.06


@given(st.lists(st.integers(0, 997), min_size=1, max_size=8))
def test_holm_equals_its_step_down_definition(parts: list[int]) -> None:
    """Go up from the smallest and stop at the first that is too large; no multiple of 1/997 is just a level."""
    corrected = correct_for_many([part / 997 for part in parts])
    ordered = sorted(parts)
    for level in (0.01, 0.05, 0.2):
        passed = [p * (len(parts) - place) <= level * 997 for place, p in enumerate(ordered)]
        rejected = ordered[: passed.index(False) if False in passed else len(passed)]
        assert sorted(p for p, c in zip(parts, corrected, strict=True) if c <= level) == rejected


def test_holm_by_hand() -> None:
    assert correct_for_many([0.04, 0.01, 0.03]) == pytest.approx([0.06, 0.03, 0.06])
    assert correct_for_many([0.5, 0.9]) == [1.0, 1.0]
    assert correct_for_many([]) == []


@pytest.mark.parametrize(("comparisons", "needed"), [(1, 6), (2, 7), (9, 9), (13, 10)])
def test_how_many_pairs_it_takes(comparisons: int, needed: int) -> None:
    assert pairs_needed(comparisons) == needed
    assert smallest_p_value(needed, comparisons) <= LEVEL < smallest_p_value(needed - 1, comparisons)
    assert sign_flip_p_value([0.1] * needed) * comparisons <= LEVEL


@pytest.mark.parametrize("differences", [[], [float("nan")], [0.1, float("inf")]])
def test_what_cannot_be_tested_is_refused(differences: list[float]) -> None:
    with pytest.raises(ValueError, match="finite"):
        sign_flip_p_value(differences)
