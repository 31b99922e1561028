from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.report.grids import D, W, in_rounds, row, rows, write_failed, write_grid

from qurate.benchmark.outcome import ReportError, read_outcome
from qurate.report.tables import make_tables


def test_a_cell_that_left_an_error_is_a_failed_result_under_each_of_its_rules(tmp_path: Path) -> None:
    write_grid(tmp_path, [row(W, "tml", "none", seed, 0.7, 3, rule) for seed in (0, 1) for rule in ("last", "oracle")])
    write_failed(tmp_path, W, "mme", "none", 0, rules=["last", "oracle"])
    results = read_outcome(tmp_path).results
    assert list(results["title"]) == ["MME"] * 2 + ["TML"] * 4
    assert list(results["accuracy"].isna()) == [True] * 2 + [False] * 4
    last, oracle = make_tables(read_outcome(tmp_path))
    for table in (last, oracle):
        assert table.rows[0].cells[0].text() == "failed"
    assert "Of 4 runs, 1 failed, 1 not run" in last.notes[2]


def test_an_error_that_was_made_good_or_is_of_an_earlier_command_does_not_count(tmp_path: Path) -> None:
    write_grid(tmp_path, rows(W, "tml", "none", 0.7))
    write_failed(tmp_path, W, "tml", "none", 0)
    write_failed(tmp_path, W, "mme", "none", 0, asked=False)
    assert list(read_outcome(tmp_path).results["title"]) == ["TML"]


def test_a_failed_cell_with_adapted_source_labels_is_a_row_of_its_own(tmp_path: Path) -> None:
    write_grid(tmp_path, rows(W, "mme", "none", 0.7))
    method = {"name": "mme", "source_labels": {"weight": 0.3}}
    write_failed(tmp_path, W, "mme", "none", 0, config={"method": method, "seed": 0})
    results = read_outcome(tmp_path).results.set_index("title")["accuracy"].isna()
    assert dict(results) == {"MME": False, "MME + SLA": True}


def test_all_failed_is_a_table_too(tmp_path: Path) -> None:
    write_grid(tmp_path, [])
    for scenario in (W, D):
        write_failed(tmp_path, scenario, "tml", "dqn", 0)
    (table,) = make_tables(read_outcome(tmp_path))
    assert [cell.text() for cell in table.rows[0].cells][:2] == ["failed", "failed"]


def test_a_failed_cell_that_asks_has_failed_after_each_number_of_labels(tmp_path: Path) -> None:
    write_grid(tmp_path, [])
    write_failed(tmp_path, W, "tml", "adaptive", 0, query_strategy="density", ask=6, ask_rounds=2)
    outcome = read_outcome(tmp_path)
    assert outcome.results.empty
    assert list(outcome.asked["query_strategy"]) == ["density"] * 3
    assert list(outcome.asked["asked"]) == [0, 3, 6]
    assert outcome.asked["accuracy"].isna().all()


def test_facts_are_read_without_machine_paths_and_old_files_without_facts_too(tmp_path: Path) -> None:
    write_grid(tmp_path, rows(W, "tml", "none", 0.7))
    facts = read_outcome(tmp_path).facts
    assert (facts.suite, facts.weights, facts.steps) == ("office31", "lite0.safetensors", "")
    (tmp_path / "benchmark.json").write_text('{"suite": "digits", "steps": 400}')
    facts = read_outcome(tmp_path).facts
    assert (facts.suite, facts.backbone, facts.steps) == ("digits", "", "400")


def test_a_cell_whose_config_is_broken_is_said(tmp_path: Path) -> None:
    write_grid(tmp_path, rows(W, "tml", "none", 0.7))
    write_failed(tmp_path, W, "mme", "none", 0, config={})
    with pytest.raises(ReportError, match=r"lacks 'method'.*Re-run `qurate benchmark`"):
        read_outcome(tmp_path)


@pytest.mark.parametrize(
    ("name", "damage", "said"),
    [
        ("results.csv", lambda text: text[:-30], r"results\.csv: is cut off: its last row has no end"),
        ("results.csv", lambda text: text[:-30] + "\n", r"results\.csv: row 2 has \d+ fields, and the header has 26"),
        ("results.csv", lambda text: text.replace("0.7", "99999"), "accuracy in row 1 must be a number from 0 to 1"),
        ("results.csv", lambda text: text.replace("0.7", "nan"), "accuracy in row 1 must be a number from 0 to 1"),
        ("results.csv", lambda text: text.replace(",3,", ",three,"), "shots in row 1 must be a whole number"),
        ("results.csv", lambda text: text.replace("tml", ""), "method in row 1 must be text, got ''"),
        ("results.csv", lambda text: "", "no header line"),
        ("results.csv", lambda text: '"' + text, "not a CSV table"),
        ("rounds.csv", lambda text: text[:-5], r"rounds\.csv: is cut off"),
        ("rounds.csv", lambda text: "a,b\n1,2\n", r"rounds\.csv: lacks the columns scenario"),
        ("rounds.csv", lambda text: text + text.splitlines()[1] + "\n", r"rounds\.csv: two results for .*round 0"),
        ("benchmark.json", lambda text: text[:-5], r"benchmark\.json: cannot be read as JSON"),
        ("benchmark.json", lambda text: "[]", r"benchmark\.json: must hold a table, got list"),
        ("benchmark.json", lambda text: "[" * 10**5, r"benchmark\.json: cannot be read as JSON"),
        ("benchmark.json", lambda text: '{"cells": 5}', "must have a list of names under 'cells'"),
        ("benchmark.json", lambda text: '{"suite": ["a"]}', "must have text under 'suite'"),
        ("benchmark.json", lambda text: '{"suite_title": "\\ud800"}', r"benchmark\.json: cannot be read as JSON"),
    ],
)
def test_a_damaged_file_is_named_with_what_to_do(
    tmp_path: Path, name: str, damage: Callable[[str], str], said: str
) -> None:
    write_grid(tmp_path, rows(W, "tml", "dqn", 0.7, 0.6), in_rounds(W, "dqn", 0, 0.5, 0.6))
    assert len(read_outcome(tmp_path).results) == 2
    (tmp_path / name).write_text(damage((tmp_path / name).read_text()))
    with pytest.raises(ReportError, match=said) as caught:
        read_outcome(tmp_path)
    assert re.search(r"Re-run `qurate benchmark` with this --out|Remove the one that is out of date", str(caught.value))
