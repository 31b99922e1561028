"""What the page of a run and the page of a benchmark share.

One layout, numbers as text, nothing fetched from elsewhere.
"""

from __future__ import annotations

import base64
import math
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup, escape

_SPACE = "\u00a0"  # keeps a number and its unit on one line
DASH = "\u2013"


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
    return text[1:] if float(text) == 0 else text.replace("-", "\u2212")


def count(number: int, noun: str) -> str:
    """'1 image', '2,817 images', 'no images'."""
    plural = noun + ("es" if noun.endswith("s") else "s")
    return f"{number or 'no':{',' if number else ''}} {noun if number == 1 else plural}"


def render_page(template: str, **content: Any) -> str:
    """A file of `templates/`, filled in; every text in it is escaped."""
    environment = Environment(
        loader=PackageLoader("qurate.report"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters.update(breakable=breakable, code=code, count=count, percent=percent)
    return environment.get_template(template).render(**content)


def breakable(name: str) -> Markup:
    """A name that may be broken into lines after its underscores."""
    return Markup("_<wbr>").join(escape(part) for part in name.split("_"))


def code(text: str) -> Markup:
    """A text in which what stands between backticks is code.

    Example:
        >>> print(code("see `qurate check` < 3"))
        see <code>qurate check</code> &lt; 3
    """
    parts = enumerate(text.split("`"))
    return Markup("").join(Markup("<code>{}</code>").format(part) if i % 2 else part for i, part in parts)


def data_uri(content: bytes, kind: str) -> str:
    """A picture, 'jpeg' or 'png', as an address that holds all of it."""
    return f"data:image/{kind};base64,{base64.b64encode(content).decode()}"
