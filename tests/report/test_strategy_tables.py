"""Query strategies beside each other: on all images, on those that nobody asked about, and against random ones."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from tests.report.grids import D, W, row, rows, write_failed, write_grid

from qurate.benchmark.outcome import ReportError, read_outcome
from qurate.report.benchmark_report import make_report, write_report
from qurate.report.figures import asking_figure, asking_lines
from qurate.report.tables import compare_query_strategies, make_tables, numbers_to_show, query_strategy_tables

QUERY_STRATEGIES = {"density": 0.04, "none": 0.0, "random": 0.01}


def asking(
    scenario: str, strategy: str, seed: int, *accuracies: float, selector: str = "adaptive", size: int = 2
) -> list[dict[str, Any]]:
    """Rows of one cell, from before anybody was asked on."""
    name = f"{scenario}-{strategy}-{seed}-{selector}".replace(":", "-")
    return [
        {**row(scenario, "tml", selector, seed, a), "config": name, "query_strategy": strategy, "asked": size * i}
        for i, a in enumerate(accuracies)
    ]


def benchmark(*, rounds: int = 3, seeds: int = 7) -> list[dict[str, Any]]:
    """Two scenarios: with each round a query strategy gains what `QUERY_STRATEGIES` says, and a little by seed."""
    return [
        found
        for scenario, start in ((W, 0.7), (D, 0.6))
        for strategy, gain in QUERY_STRATEGIES.items()
        for seed in range(seeds)
        for found in asking(scenario, strategy, seed, *(start + 0.001 * seed + gain * i for i in range(rounds + 1)))
    ]


def write_samples(folder: Path, name: str, table: Sequence[tuple[int, ...]], size: int = 2) -> None:
    """The table of samples that a cell left: sample, asked_at, and whether it was right at each number."""
    place = folder / "cells" / name
    place.mkdir(parents=True)
    columns = ["sample", "asked_at", *(f"right_{size * i}" for i in range(len(table[0]) - 2))]
    pd.DataFrame(table, columns=columns).to_csv(place / "asked.csv", index=False)


def test_a_table_at_the_second_round_and_one_at_the_last_with_the_control_first(tmp_path: Path) -> None:
    outcome = read_outcome(write_grid(tmp_path, benchmark()))
    second, last = query_strategy_tables(outcome)
    assert second.title == "Office-31: TML + adaptive, 3 labels per class, 4 labels asked"
    assert last.title.endswith("6 labels asked")
    assert [title.title for title in second.rows] == ["none", "random", "density"]
    assert second.columns == ("W to A", "D to A", "mean")
    by_name = {found.title: [cell.mean for cell in found.cells] for found in last.rows}
    assert by_name["none"] == pytest.approx([70.3, 60.3, 65.3])
    assert by_name["density"] == pytest.approx([82.3, 72.3, 77.3])
    assert [any(cell.best for cell in found.cells) for found in last.rows] == [False, False, True]
    assert not any(cell.best_plain for found in last.rows for cell in found.cells)
    assert any("asked for 6 labels" in note and "count as right" in note for note in last.notes)
    assert any("'none' is the control" in note for note in last.notes)
    assert make_tables(outcome) == []


@pytest.mark.parametrize(("rounds", "shown"), [(1, [2]), (2, [4]), (6, [4, 12])])
def test_which_numbers_have_a_table(tmp_path: Path, rounds: int, shown: list[int]) -> None:
    assert numbers_to_show(read_outcome(write_grid(tmp_path, benchmark(rounds=rounds))).asked) == shown


def test_every_query_strategy_is_compared_with_random_ones(tmp_path: Path) -> None:
    second, last = compare_query_strategies(read_outcome(write_grid(tmp_path, benchmark())))
    assert (second.reference, second.title) == (
        "random",
        "Larger than chance? TML + adaptive after 4 labels, all unlabelled images",
    )
    assert [(found.other, found.pairs) for found in last.rows] == [("none", 14), ("density", 14)]
    assert [found.difference for found in last.rows] == pytest.approx([3.0, -9.0])
    assert "above none and below density by more than chance" in last.summary
    assert "chosen as the best" not in last.caution


def test_another_query_strategy_can_be_the_reference(tmp_path: Path) -> None:
    outcome = read_outcome(write_grid(tmp_path, benchmark()))
    assert {found.reference for found in compare_query_strategies(outcome, "density")} == {"density"}
    with pytest.raises(ReportError, match=r"there is no such query strategy\. Choose from none, random, density"):
        compare_query_strategies(outcome, "nobody")


def test_without_random_ones_nothing_is_compared(tmp_path: Path) -> None:
    kept = [found for found in benchmark() if found["query_strategy"] != "random"]
    assert compare_query_strategies(read_outcome(write_grid(tmp_path, kept))) == []


def test_images_that_nobody_asked_about_are_those_of_no_query_strategy_up_to_then(tmp_path: Path) -> None:
    """Five images; random asks about 0, then 1; density about 4, then 0."""
    results = [
        *asking(W, "none", 0, 0.4, 0.4, 0.4, size=1),
        *asking(W, "random", 0, 0.4, 0.6, 0.8, size=1),
        *asking(W, "density", 0, 0.4, 0.6, 0.8, size=1),
    ]
    write_grid(tmp_path, results)
    rights = {
        "none": [(0, 0, 1, 1, 1), (1, 0, 1, 1, 1), (2, 0, 0, 0, 0), (3, 0, 0, 0, 0), (4, 0, 0, 0, 0)],
        "random": [(0, 1, 1, 1, 1), (1, 2, 1, 1, 1), (2, 0, 0, 1, 1), (3, 0, 0, 0, 1), (4, 0, 0, 0, 0)],
        "density": [(0, 2, 1, 1, 1), (1, 0, 1, 0, 1), (2, 0, 0, 0, 0), (3, 0, 0, 1, 1), (4, 1, 0, 0, 0)],
    }
    for strategy, table in rights.items():
        write_samples(tmp_path, f"webcam-amazon-{strategy}-0-adaptive", table, size=1)
    asked = read_outcome(tmp_path).asked
    found = {(one.query_strategy, one.asked): one.unasked for one in asked.itertuples()}
    expected = {}
    for strategy, table in rights.items():
        for number in (0, 1, 2):
            gone = {one[0] for others in rights.values() for one in others if 1 <= one[1] <= number}
            left = [one[2 + number] for one in table if one[0] not in gone]
            expected[strategy, number] = sum(left) / len(left)
    assert found == pytest.approx(expected)
    assert expected["random", 2] == 1.0  # of 2 and 3
    tables = query_strategy_tables(read_outcome(tmp_path))
    assert [table.measure for table in tables] == ["accuracy", "unasked"]
    assert [one.cells[0].mean for one in tables[1].rows] == pytest.approx([0.0, 100.0, 50.0])
    assert tables[1].title.endswith("2 labels asked, on images that nobody asked about")


def test_a_damaged_table_of_samples_is_named(tmp_path: Path) -> None:
    write_grid(tmp_path, asking(W, "random", 0, 0.4, 0.6))
    write_samples(tmp_path, "webcam-amazon-random-0-adaptive", [(0, 7, 1, 1)])
    with pytest.raises(ReportError, match=r"asked\.csv: must hold each sample once.*Re-run"):
        read_outcome(tmp_path)


def test_lines_are_means_over_scenarios_and_bands_over_seeds(tmp_path: Path) -> None:
    lines = asking_lines(read_outcome(write_grid(tmp_path, benchmark(seeds=3))).asked)
    density = lines["density"]
    assert density["x"].tolist() == [0, 2, 4, 6]
    assert density["mean"].tolist() == pytest.approx([65.1, 69.1, 73.1, 77.1])
    assert density["spread"].tolist() == pytest.approx([0.1] * 4)


def test_a_report_of_query_strategies_is_whole_and_one_without_them_has_nothing_of_it(tmp_path: Path) -> None:
    both = [*benchmark(seeds=2), *asking(W, "random", 0, 0.5, 0.6, 0.6, 0.6, selector="none")]
    report, files = write_report(write_grid(tmp_path / "asked", both), tmp_path / "out")
    assert {file.name for file in files} == {"tables.md", "tables.tex", "tables.html", "asking.png"}
    assert (tmp_path / "out" / "asking.png").read_bytes().startswith(b"\x89PNG")
    assert len(report.tables) == 4  # two rows of the benchmark
    text = (tmp_path / "out" / "tables.md").read_text()
    assert re.search(r"\| density \| \*\*78\.[01] ± 0\.1", text)
    assert "Query strategy &" in (tmp_path / "out" / "tables.tex").read_text()
    page = (tmp_path / "out" / "tables.html").read_text()
    assert '<th scope="col">query strategy</th>' in page
    plain = read_outcome(write_grid(tmp_path / "plain", rows(W, "tml", "none", 0.7, 0.8)))
    assert asking_figure(plain.asked) is None
    assert [table.heading for table in make_report(plain).tables] == ["method"]


def test_failed_cells_are_counted_and_leave_the_others_as_they_are(tmp_path: Path) -> None:
    write_grid(
        tmp_path, [found for found in benchmark(seeds=2) if (found["query_strategy"], found["seed"]) != ("density", 1)]
    )
    for scenario in (W, D):
        write_failed(tmp_path, scenario, "tml", "adaptive", 1, query_strategy="density", ask=6, ask_rounds=3)
    _, last = query_strategy_tables(read_outcome(tmp_path))
    density = last.rows[-1].cells[0]
    assert (density.seeds, density.failed) == (1, 1)
    assert any(note.startswith("Of 12 runs, 2 failed") for note in last.notes)
