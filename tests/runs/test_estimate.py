"""How often the model is right, by answers to a random sample."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from qurate.active.answers import Answer, count_right, estimate_accuracy, wilson_interval


def answers(**kinds: str) -> dict[str, Answer]:
    return {
        file: Answer("1", "t", file, kind if kind in ("none", "wrong") else "label", kind, "a", "random")
        for file, kind in kinds.items()
    }


def test_the_estimate_stops_at_the_first_gap_and_leaves_out_what_is_no_class() -> None:
    predicted = dict.fromkeys("vwxyz", "a")
    found = estimate_accuracy("vwxyz", answers(v="a", w="none", x="b", z="a"), predicted)
    assert (found.images, found.right, found.none) == (2, 1, 1)
    assert estimate_accuracy("vw", answers(v="wrong", w="a"), predicted)[:2] == (2, 1)
    assert estimate_accuracy("vw", {}, predicted) == (0, 0, 0, 0.0, 1.0)


@given(st.integers(1, 400), st.floats(0, 1))
def test_the_interval_holds_the_share_and_is_the_root_of_its_equation(total: int, share: float) -> None:
    right = round(share * total)
    low, high = wilson_interval(right, total)
    assert 0 <= low <= right / total <= high <= 1
    for end in (low, high):  # |p - x| = z sqrt(x (1 - x) / n), or the end of the scale
        is_root = abs(abs(right / total - end) - 1.959964 * (end * (1 - end) / total) ** 0.5) < 1e-6
        assert is_root or end in (0.0, 1.0)


def test_what_was_predicted_when_it_was_asked_is_what_counts() -> None:
    given = answers(v="a", w="none", x="b", y="wrong", z="a")
    found = count_right(given.values())
    assert (found.images, found.right, found.none) == (4, 2, 1)
    assert (found.low, found.high) == wilson_interval(2, 4)
