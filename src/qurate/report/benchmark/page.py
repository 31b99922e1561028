"""Tables, comparisons and figures as one HTML file that needs nothing else."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from qurate.report.benchmark.comparisons import HEADINGS, LARGER, Comparisons
from qurate.report.benchmark.tables import MEAN, Table
from qurate.report.pages import data_uri, render_page


@dataclass(frozen=True)
class Drawing:
    """A figure: its file name, the PNG and what it shows."""

    name: str
    png: bytes
    caption: str

    @property
    def uri(self) -> str:
        """The picture itself as an address."""
        return data_uri(self.png, "png")


def to_html(title: str, tables: Sequence[Table], comparisons: Sequence[Comparisons], figures: Sequence[Drawing]) -> str:
    """The page; every text in it is escaped by the template."""
    return render_page(
        "benchmark.html.j2",
        title=title,
        tables=tables,
        comparisons=comparisons,
        figures=figures,
        headings=HEADINGS,
        larger=LARGER,
        mean=MEAN,
    )
