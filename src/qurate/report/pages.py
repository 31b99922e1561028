"""What the page of a run and the page of a benchmark share: one layout, one style, nothing fetched from elsewhere."""

from __future__ import annotations

import base64
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup, escape

from qurate.report.numbers import count, percent


def render_page(template: str, **content: Any) -> str:
    """A page as HTML; every text in it is escaped by the template.

    Args:
        template: Name of a file in `templates/`.
        **content: What the template shows.
    """
    environment = Environment(
        loader=PackageLoader("qurate.report"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters.update(breakable=breakable, count=count, percent=percent)
    return environment.get_template(template).render(**content)


def breakable(name: str) -> Markup:
    """A name that may be broken into lines after its underscores."""
    return Markup("_<wbr>").join(escape(part) for part in name.split("_"))


def data_uri(content: bytes, kind: str) -> str:
    """A picture as an address that holds all of it.

    Args:
        content: The file.
        kind: 'jpeg' or 'png'.
    """
    return f"data:image/{kind};base64,{base64.b64encode(content).decode()}"
