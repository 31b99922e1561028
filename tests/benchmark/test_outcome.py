from __future__ import annotations

from pathlib import Path

import pytest
from tests.report.benchmark.grids import D, W, row, rows, write_failed, write_grid

from qurate.benchmark.outcome import ReportError, read_outcome
from qurate.report.benchmark.tables import make_tables


def test_a_cell_that_left_an_error_is_a_failed_result_under_each_of_its_rules(tmp_path: Path) -> None:
    write_grid(tmp_path, [row(W, "tml", "none", seed, 0.7, 3, rule) for seed in (0, 1) for rule in ("last", "oracle")])
    write_failed(tmp_path, W, "mme", "none", 0, rules=["last", "oracle"])
    results = read_outcome(tmp_path).results
    assert list(results["title"]) == ["MME"] * 2 + ["TML"] * 4
    assert list(results["accuracy"].isna()) == [True] * 2 + [False] * 4
    last, oracle = make_tables(read_outcome(tmp_path))
    for table in (last, oracle):
        assert table.rows[0].cells[0].text() == "failed"
    assert "Of 4 runs 1 failed, 1 not run" in last.notes[2]


def test_an_error_that_was_made_good_or_is_of_an_earlier_command_does_not_count(tmp_path: Path) -> None:
    write_grid(tmp_path, rows(W, "tml", "none", 0.7))
    write_failed(tmp_path, W, "tml", "none", 0)
    write_failed(tmp_path, W, "mme", "none", 0, asked=False)
    assert list(read_outcome(tmp_path).results["title"]) == ["TML"]


def test_all_failed_is_a_table_too(tmp_path: Path) -> None:
    write_grid(tmp_path, [])
    for scenario in (W, D):
        write_failed(tmp_path, scenario, "tml", "dqn", 0)
    (table,) = make_tables(read_outcome(tmp_path))
    assert [cell.text() for cell in table.rows[0].cells][:2] == ["failed", "failed"]


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
    with pytest.raises(ReportError, match="cannot be read"):
        read_outcome(tmp_path)
