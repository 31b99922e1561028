"""Tables, comparisons and figures as one HTML file that needs nothing else."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from dataclasses import dataclass

from jinja2 import ChoiceLoader, Environment, PackageLoader, StrictUndefined

from qurate.report.benchmark.comparisons import HEADINGS, LARGER, Comparisons
from qurate.report.benchmark.formats import small_lines
from qurate.report.benchmark.tables import MEAN, Table
from qurate.report.run.page import breakable


@dataclass(frozen=True)
class Drawing:
    """A figure: its file name, the PNG and what it shows."""

    name: str
    png: bytes
    caption: str

    @property
    def uri(self) -> str:
        """The picture itself as an address."""
        return "data:image/png;base64," + base64.b64encode(self.png).decode()


def to_html(title: str, tables: Sequence[Table], comparisons: Sequence[Comparisons], figures: Sequence[Drawing]) -> str:
    """The page; every text in it is escaped by the template."""
    environment = Environment(
        loader=ChoiceLoader(
            [PackageLoader("qurate.report.benchmark"), PackageLoader("qurate.report.run")]
        ),  # one style for both
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters.update(breakable=breakable, small_lines=small_lines)
    return environment.get_template("tables.html.j2").render(
        title=title,
        tables=tables,
        comparisons=comparisons,
        figures=figures,
        headings=HEADINGS,
        larger=LARGER,
        mean=MEAN,
    )
