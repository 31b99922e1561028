"""Numbers as a page or a table says them."""

from __future__ import annotations

import math

_SPACE = "\u00a0"  # keeps a number and its unit on one line
DASH = "\u2013"
_MINUS = "\u2212"


def percent(share: float, digits: int = 0) -> str:
    """0.934 as '93 %'; what is nearly none or nearly all is not rounded to it.

    Example:
        >>> [percent(share).replace("\u00a0", " ") for share in (0.934, 0.001, 0.999, 1.0)]
        ['93 %', 'under 1 %', 'over 99 %', '100 %']
    """
    if not math.isfinite(share):
        return "unknown"
    text, step = f"{share * 100:.{digits}f}", 10.0**-digits
    if 0 < share < 1 and float(text) in (0, 100):
        text = f"under {step:g}" if share < 0.5 else f"over {100 - step:g}"
    return f"{text}{_SPACE}%"


def signed(number: float, digits: int) -> str:
    """With its sign, and a minus that is as wide as a plus."""
    if not math.isfinite(number):
        return DASH
    text = f"{number:+.{digits}f}"
    return text[1:] if float(text) == 0 else text.replace("-", _MINUS)


def count(number: int, noun: str) -> str:
    """'1 image', '2,817 images', 'no images'."""
    plural = noun + ("es" if noun.endswith("s") else "s")
    return f"{number or 'no':{',' if number else ''}} {noun if number == 1 else plural}"
