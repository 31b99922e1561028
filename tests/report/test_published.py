"""The published numbers were typed by hand: their printed means tell whether rightly."""

from __future__ import annotations

from decimal import ROUND_HALF_UP, Decimal

import pytest

from qurate.data.suites import load_suite
from qurate.registry import METHODS, row_title
from qurate.registry import SELECTOR_ORDER as SELECTORS
from qurate.report.published import (
    Published,
    PublishedTable,
    later_work,
    published_tables,
    same_backbone,
    scenario_title,
)

CUT_OFF = {(3, "ADR"): "the mean is 63.05 and 63.0 is printed"}
"""Rows whose printed mean is not their mean rounded half up."""
ROWS = [(table.number, title) for table in published_tables() for title in table.rows]


@pytest.mark.parametrize(("number", "title"), ROWS)
def test_the_printed_mean_is_the_mean_of_its_row(number: int, title: str) -> None:
    row = published_tables()[number - 1].rows[title]
    *cells, printed = (Decimal(str(accuracy)) for accuracy in row)
    mean = sum(cells, Decimal(0)) / len(cells)
    if (number, title) in CUT_OFF:
        assert mean - printed == Decimal("0.05"), "no longer an exception"
    else:
        assert mean.quantize(Decimal("0.1"), ROUND_HALF_UP) == printed


def test_the_tables_have_the_papers_shape() -> None:
    shapes = {table.number: (len(table.rows), len(table.scenarios)) for table in published_tables()}
    assert shapes == {1: (2, 7), 2: (9, 7), 3: (9, 12), 4: (9, 2)}
    known = {row_title(method, selector) for method in METHODS for selector in SELECTORS}
    for table in published_tables():
        assert set(table.rows) <= known
        assert len(set(table.scenarios)) == len(table.scenarios)
        assert all(len(row) == len(table.scenarios) + 1 and 40 < min(row) < 90 for row in table.rows.values())
        assert table.source.startswith(f"Table {table.number} of Selective Pseudo-Labeling")


@pytest.mark.parametrize("number", [2, 3, 4])
def test_the_papers_method_is_best_in_each_column_and_its_margin_without_pseudo_labels_but_once(number: int) -> None:
    """As the paper prints in bold and underlines; a digit that slipped would likely break it."""
    rows = published_tables()[number - 1].rows
    plain = [row for title, row in rows.items() if title not in ("TML_SPL", "TML_DQNPL")]
    assert all(best == column for best, column in zip(map(max, *rows.values()), rows["TML_DQNPL"], strict=True))
    beaten = [i for i, best in enumerate(map(max, *plain)) if best > rows["TML"][i]]
    assert beaten == ([3] if number == 2 else [])


def test_a_number_is_found_by_suite_shots_row_and_scenario() -> None:
    office = Published("office31", 3)
    assert office.accuracy("TML_DQNPL", "webcam:amazon") == 77.5
    assert office.accuracy("S+T", "D to A") == 73.3
    assert office.accuracy("CML", "webcam:amazon") is None
    assert office.accuracy("S+T", "amazon:webcam") is None
    assert office.mean("MME", ["dslr:amazon", "webcam:amazon"]) == 77.0
    assert office.mean("MME", ["webcam:amazon"]) is None
    assert Published("Office-31", 3).accuracy("ENT", "webcam:amazon") == 75.4
    assert Published("office31", 1).accuracy("ENT", "webcam:amazon") is None
    assert Published("digits", 3).accuracy("ENT", "typeset:handwritten") is None
    assert Published("office_home", 3).accuracy("TML", "Real World:Clipart") == 56.9


def test_the_doubtful_number_is_the_one_that_its_mean_needs_and_comes_with_a_note() -> None:
    domainnet = Published("domainnet126", 3)
    assert domainnet.accuracy("TML", "clipart:sketch") == 61.7
    assert ["61.0" in note for note in domainnet.notes(["TML"], ["clipart:sketch"])] == [True]
    assert domainnet.notes(["TML"], ["real:clipart"]) == []
    assert [table.number for table in domainnet.sources(["CML", "S+T"])] == [1, 2]
    assert [table.number for table in domainnet.sources(["S+T"])] == [2]


@pytest.mark.parametrize("table", published_tables(), ids=lambda table: f"Table {table.number}")
def test_the_suites_of_the_catalogue_have_the_scenarios_of_the_paper(table: PublishedTable) -> None:
    suite = load_suite({"office-home": "office_home"}.get(table.suite, table.suite))
    assert tuple(scenario_title(name) for name in suite.scenarios) == table.scenarios
    assert all(Published(suite.name, 3).accuracy(title, name) for title in table.rows for name in suite.scenarios)
    assert same_backbone(table.backbone, suite.backbone)


def test_later_work_is_there_for_one_and_three_shots() -> None:
    assert {work.name: work.mean for work in Published("domainnet126", 1).later}["ProML"] == 76.1
    three = {work.name: work.mean for work in Published("domainnet126", 3).later}
    assert list(three.values()) == [71.7, 75.3, 75.6, 76.0, 76.4, 76.5, 77.4]
    assert len(later_work()) == 14 + 9
    home = Published("office_home", 3).later
    assert [work.mean for work in home] == [66.2, 71.9, 73.1, 74.0, 74.2, 75.5, 75.7, 77.1, 77.8]
    assert {(work.backbone, work.scenarios) for work in home} == {("ResNet-34", 12)}
    assert Published("office_home", 1).later == []
    assert Published("office31", 3).later == []


def test_active_adaptation_is_there_for_office_home_with_its_network() -> None:
    (table,) = Published("office_home").active
    assert (table.backbone, table.percent, table.scenarios) == ("ResNet-50", 5, 12)
    assert list(table.rows.values()) == [58.3, 65.8, 68.3, 70.5, 70.6, 73.1, 75.8, 76.7, 77.7]
    assert Published("office31").active == []


@pytest.mark.parametrize(
    ("published", "ours", "same"),
    [
        ("ResNet-34", "timm/resnet34.tv_in1k", True),
        ("VGG-16", "torchvision/vgg16", True),
        ("VGG-16", "timm/tf_efficientnet_lite0.in1k", False),
        ("ResNet-34", "timm/resnet34d.ra2_in1k", False),
        ("VGG-16", "digits", False),
    ],
)
def test_the_same_backbone_is_known_by_its_name(published: str, ours: str, same: bool) -> None:
    assert same_backbone(published, ours) is same
