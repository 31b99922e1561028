from __future__ import annotations

from pathlib import Path

import pytest

from qurate.benchmark.results import COLUMNS, Row, read_results, write_results

ROW = Row("a to b", "tml", "none", 3, 0, 0.91234567, 0.9, None, None, 1.5)


def test_rows_come_back_and_inapplicable_cells_are_empty(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "results.csv"
    write_results([ROW, Row("a to b", "tml", "dqn", 3, 1, 0.95, 0.9, 12, 0.75, 2.5)], path)
    header, first, second = path.read_text().splitlines()
    assert (
        header == "scenario,method,selector,shots,seed,accuracy,balanced_accuracy,positives,positives_accuracy,seconds"
    )
    assert first == "a to b,tml,none,3,0,0.912346,0.9,,,1.5"
    assert second == "a to b,tml,dqn,3,1,0.95,0.9,12,0.75,2.5"
    assert tuple(read_results(path).columns) == COLUMNS


def test_another_csv_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "other.csv"
    path.write_text("a,b\n1,2\n")
    with pytest.raises(ValueError, match="lacks the columns scenario, method"):
        read_results(path)
