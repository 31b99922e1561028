from __future__ import annotations

from pathlib import Path

import pytest

from qurate.benchmark.results import COLUMNS, ROUND_COLUMNS, RoundRow, Row, read_results, rows_to_csv, write_file

ROW = Row("a:b", "tml", "none", 3, 0, "last", 0.91234567, 0.9, None, None, 1.5, "0123456789ab", "1e5")


def test_rows_come_back_and_inapplicable_cells_are_empty(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "results.csv"
    second = Row("a:b", "tml", "dqn", 3, 1, "snd", 0.95, 0.9, 12, 0.75, 2.5, "ba9876543210", "f", 3100, 20, 0.125)
    write_file(path, rows_to_csv([ROW, second]))
    header, *lines = path.read_text().splitlines()
    assert header == (
        "scenario,method,selector,shots,seed,model_selection,accuracy,balanced_accuracy,positives,positives_accuracy,"
        "seconds,config,commit,steps,imbalance,ece,ece_calibrated,temperature,query_strategy,asked,device,"
        "unknown,missing_classes,auroc,auroc_unknown,hos"
    )
    assert lines[0] == "a:b,tml,none,3,0,last,0.912346,0.9,,,1.5,0123456789ab,1e5,,1,,,,,0,,0,0,,,"
    assert lines[1] == "a:b,tml,dqn,3,1,snd,0.95,0.9,12,0.75,2.5,ba9876543210,f,3100,20,0.125,,,,0,,0,0,,,"
    table = read_results(path)
    assert tuple(table.columns) == COLUMNS
    assert list(table["commit"]) == ["1e5", "f"]  # no number, whatever it on_the_way like


def test_a_round_without_positives_has_no_accuracy_of_them() -> None:
    lines = (
        rows_to_csv([RoundRow("a:b", "tml", "dqn", 3, 0, 0, 0.8, 0, None, 0.0)], ROUND_COLUMNS).decode().splitlines()
    )
    assert lines[1] == "a:b,tml,dqn,3,0,0,0.8,0,,0,1,0,0"


def test_another_csv_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "other.csv"
    path.write_text("a,b\n1,2\n")
    with pytest.raises(ValueError, match="lacks the columns scenario, method"):
        read_results(path)


def test_a_table_of_another_version_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "results.csv"
    path.write_text(",".join(COLUMNS[:-1]) + "\n")
    with pytest.raises(ValueError, match=r"lacks the columns hos\. Is it a results file of this version"):
        read_results(path)
