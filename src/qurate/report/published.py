"""Published numbers to stand beside ours, with their source. They are data: `published.toml`."""

from __future__ import annotations

import tomllib
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any


def scenario_title(scenario: str) -> str:
    """'webcam:amazon' as the paper writes it: 'W to A'. What is no pair of domains stays as it is."""
    domains = [domain.strip() for domain in scenario.split(":")]
    return " to ".join(domain[0].upper() for domain in domains) if len(domains) == 2 and all(domains) else scenario


def scenario_titles(scenarios: Iterable[str]) -> dict[str, str]:
    """A title for each scenario: the paper's short form, or whole names where two would read the same.

    Example:
        >>> scenario_titles(["webcam:amazon", "dslr:amazon"])
        {'webcam:amazon': 'W to A', 'dslr:amazon': 'D to A'}
        >>> scenario_titles(["real:clipart", "rainy:clipart"])
        {'real:clipart': 'real to clipart', 'rainy:clipart': 'rainy to clipart'}
    """
    names = list(scenarios)
    domains = {domain.strip() for name in names for domain in name.split(":")}
    clear = len({domain[:1].upper() for domain in domains}) == len(domains)
    return {name: scenario_title(name) if clear else " to ".join(name.split(":")) for name in names}


TRAINING = "all layers trained"
"""How the published networks were trained."""


@dataclass(frozen=True)
class PublishedTable:
    """One table of a paper.

    Args:
        paper: Title, authors and year.
        number: Of the table in the paper.
        suite: Data it is about.
        backbone: Network it was made with.
        shots: Labelled target samples per class.
        scenarios: Columns, as 'W to A'.
        rows: Accuracies in percent by title, and last the printed mean.
        notes: What a reader must know about a number: (title, scenario, sentence).
    """

    paper: str
    number: int
    suite: str
    backbone: str
    shots: int
    scenarios: tuple[str, ...]
    rows: dict[str, tuple[float, ...]]
    notes: tuple[tuple[str, str, str], ...] = ()

    @property
    def source(self) -> str:
        """Where the numbers are from, in words."""
        return f"Table {self.number} of {self.paper}, {self.backbone}, {TRAINING}"


@dataclass(frozen=True)
class LaterWork:
    """The mean over all scenarios that a later method reports, in percent."""

    name: str
    paper: str
    suite: str
    backbone: str
    shots: int
    mean: float
    scenarios: int


@dataclass(frozen=True)
class ActiveTable:
    """What active adaptation reports on a suite: means over all scenarios, in percent.

    Args:
        source: Where the numbers are from.
        suite: Data they are about.
        backbone: Network they were made with.
        scenarios: How many scenarios a mean is of.
        percent: Share of the target's images that people labelled; no other is labelled.
        rows: Means by the name of the method.
    """

    source: str
    suite: str
    backbone: str
    scenarios: int
    percent: int
    rows: dict[str, float]


class Published:
    """The published numbers of one suite.

    Args:
        suite: Name of a suite; case and punctuation do not matter.
        shots: Labelled target samples per class; any if None.
    """

    def __init__(self, suite: str, shots: int | None = None) -> None:
        key = _key(suite)
        self.tables = [one for one in published_tables() if _key(one.suite) == key and shots in (one.shots, None)]
        self.later = [one for one in later_work() if _key(one.suite) == key and shots in (one.shots, None)]
        self.active = [one for one in active_tables() if _key(one.suite) == key]

    def accuracy(self, title: str, scenario: str) -> float | None:
        """Percent of a row on a scenario ('webcam:amazon' or 'W to A'); None where nothing is published."""
        short = scenario_title(scenario)
        for table in self.tables:
            if title in table.rows and short in table.scenarios:
                return table.rows[title][table.scenarios.index(short)]
        return None

    def mean(self, title: str, scenarios: list[str]) -> float | None:
        """The printed mean of a row; None unless these are all the scenarios that it is the mean of."""
        for table in self.tables:
            if title in table.rows and {scenario_title(name) for name in scenarios} == set(table.scenarios):
                return table.rows[title][-1]
        return None

    def sources(self, titles: list[str]) -> list[PublishedTable]:
        """The tables that some of the rows are in, each row in the first that has it."""
        first = [next((table for table in self.tables if title in table.rows), None) for title in titles]
        return [table for table in self.tables if table in first]

    def notes(self, titles: list[str], scenarios: list[str]) -> list[str]:
        """What must be said about the numbers shown."""
        short = {scenario_title(name) for name in scenarios}
        return [
            text
            for table in self.tables
            for title, scenario, text in table.notes
            if title in titles and scenario in short
        ]


def same_backbone(published: str, ours: str) -> bool:
    """Whether 'ResNet-34' is the network of 'timm/resnet34.tv_in1k'."""
    return _key(published) == _key(ours.rpartition("/")[2].partition(".")[0])


@cache
def published_tables() -> tuple[PublishedTable, ...]:
    """All tables, in the order of the paper."""
    return tuple(
        PublishedTable(
            paper=table["paper"],
            number=table["table"],
            suite=table["suite"],
            backbone=table["backbone"],
            shots=table["shots"],
            scenarios=tuple(table["scenarios"]),
            rows={title: tuple(numbers) for title, numbers in table["rows"].items()},
            notes=tuple((note["row"], note["scenario"], note["text"]) for note in table.get("notes", ())),
        )
        for table in _data()["tables"]
    )


@cache
def later_work() -> tuple[LaterWork, ...]:
    """Means that other methods report on the same protocol."""
    return tuple(
        LaterWork(name, row["paper"], later["suite"], later["backbone"], shots, row[str(shots)], later["scenarios"])
        for later in _data()["later"]
        for name, row in later["rows"].items()
        for shots in (1, 3)
        if str(shots) in row
    )


@cache
def active_tables() -> tuple[ActiveTable, ...]:
    """What active adaptation reports."""
    return tuple(ActiveTable(**table) for table in _data()["active"])


def _data() -> dict[str, Any]:
    return tomllib.loads(files("qurate.report").joinpath("published.toml").read_text(encoding="utf-8"))


def _key(name: str) -> str:
    return "".join(letter for letter in name.lower() if letter.isalnum())
