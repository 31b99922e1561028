from __future__ import annotations

import pytest

from qurate.report.page import count, percent, signed


@pytest.mark.parametrize(
    ("share", "digits", "text"),
    [
        (0.934, 0, "93 %"), (0.9342, 1, "93.4 %"), (0.0, 0, "0 %"), (1.0, 1, "100.0 %"), (0.004, 0, "under 1 %"),
        (0.996, 0, "over 99 %"), (0.99996, 1, "over 99.9 %"), (float("nan"), 0, "unknown"),
    ],
)  # fmt: skip
def test_a_share_is_never_rounded_to_none_or_all(share: float, digits: int, text: str) -> None:
    assert percent(share, digits).replace("\u00a0", " ") == text


def test_a_sign_is_always_there_but_at_zero() -> None:
    assert [signed(number, 1) for number in (1.25, -0.5, -0.01, float("inf"))] == ["+1.2", "\u22120.5", "0.0", "\u2013"]


def test_things_are_counted_in_words() -> None:
    assert [count(number, "image") for number in (0, 1, 2817)] == ["no images", "1 image", "2,817 images"]
    assert count(2, "class") == "2 classes"
