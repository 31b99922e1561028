from __future__ import annotations

import pytest

from qurate.registry import METHODS, row_rank, row_title
from qurate.registry import SELECTOR_ORDER as SELECTORS
from qurate.report.benchmark.titles import scenario_title, scenario_titles


@pytest.mark.parametrize(
    ("method", "selector", "title"),
    [
        ("source_target", "none", "S+T"),
        ("cdan", "none", "CDAN"),
        ("tml", "none", "TML"),
        ("tml", "confidence", "TML_SPL"),
        ("tml", "dqn", "TML_DQNPL*"),
        ("tml", "dqn_paper", "TML_DQNPL"),
        ("tml", "confidence_paper", "TML_SPL (one set)"),
        ("mme", "dqn_paper", "MME + dqn_paper"),
        ("mme", "confidence", "MME + confidence"),
        ("tml", "oracle", "TML + oracle"),
        ("mine", "none", "mine"),
    ],
)
def test_rows_have_the_papers_names_where_it_has_them(method: str, selector: str, title: str) -> None:
    assert row_title(method, selector) == title


def test_no_two_rows_share_a_title() -> None:
    titles = [row_title(method, selector) for method in METHODS for selector in SELECTORS]
    assert len(set(titles)) == len(titles)


def test_rows_come_in_the_order_of_the_paper_and_the_oracle_last() -> None:
    rows = [("tml", "oracle"), ("tml", "dqn"), ("cml", "none"), ("tml", "confidence"), ("source_target", "none")]
    rows += [("own", "none"), ("tml", "own")]
    assert [row_title(*row) for row in sorted(rows, key=lambda row: row_rank(*row))] == [
        "S+T", "CML", "own", "TML_SPL", "TML_DQNPL*", "TML + oracle", "TML + own",
    ]  # fmt: skip


def test_scenarios_are_shortened_where_that_is_clear() -> None:
    assert scenario_title("webcam:amazon") == "W to A"
    assert scenario_title("typeset to handwritten") == "typeset to handwritten"
    assert scenario_titles(["a:b", "a:c"]) == {"a:b": "A to B", "a:c": "A to C"}
    assert scenario_titles(["camera:cloud"]) == {"camera:cloud": "camera to cloud"}
    assert scenario_titles(["left:"]) == {"left:": "left:"}
