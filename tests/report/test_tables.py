from __future__ import annotations

from pathlib import Path

import pytest
from tests.report.grids import D, W, outcome_of, row, rows, write_failed, write_grid

from qurate.benchmark.outcome import read_outcome
from qurate.report.page import DASH
from qurate.report.tables import Entry, Table, make_tables


def table_of(folder: Path, results: list[dict[str, object]], **facts: str) -> Table:
    (table,) = make_tables(outcome_of(folder, results, None, **facts))
    return table


def texts(table: Table) -> dict[str, list[str]]:
    """Cells as printed, with what is missing behind a semicolon."""
    seeds = len(table.seeds)
    return {row.title: [f"{c.text()}; {c.gap(seeds)}".removesuffix("; ") for c in row.cells] for row in table.rows}


def marked(table: Table, mark: str) -> list[set[str]]:
    """Titles marked in each column."""
    return [{row.title for row in table.rows if getattr(row.cells[i], mark)} for i in range(len(table.columns))]


FULL = [
    *rows(D, "tml", "oracle", 0.90, 0.92, 0.94),
    *rows(D, "tml", "dqn", 0.80, 0.82, 0.81),
    *rows(W, "tml", "dqn", 0.70, 0.72, 0.74),
    *rows(W, "tml", "oracle", 0.95, 0.95, 0.95),
    *rows(W, "source_target", "none", 0.60, 0.62, 0.64),
    *rows(D, "source_target", "none", 0.71, 0.70, 0.72),
    *rows(W, "mme", "none", 0.65, 0.65, 0.65),
    *rows(D, "mme", "none", 0.60, 0.66, 0.63),
]


def test_rows_and_columns_are_those_of_the_paper_with_means_and_spreads_by_hand(tmp_path: Path) -> None:
    table = table_of(tmp_path, FULL)
    assert table.columns == ("W to A", "D to A", "mean")
    assert texts(table) == {
        "S+T": ["62.0 ± 2.0", "71.0 ± 1.0", "66.5 ± 1.3"],  # seeds: 65.5, 66.0, 68.0
        "MME": ["65.0 ± 0.0", "63.0 ± 3.0", "64.0 ± 1.5"],
        "TML_DQNPL*": ["72.0 ± 2.0", "81.0 ± 1.0", "76.5 ± 1.3"],
        "TML + oracle": ["95.0 ± 0.0", "92.0 ± 2.0", "93.5 ± 1.0"],
    }


def test_the_best_is_bold_the_best_without_pseudo_labels_underlined_and_an_oracle_neither(tmp_path: Path) -> None:
    table = table_of(tmp_path, FULL)
    assert marked(table, "best") == [{"TML_DQNPL*"}] * 3
    assert marked(table, "best_plain") == [{"MME"}, {"S+T"}, {"S+T"}]


def test_controls_of_equal_length_are_rows_of_their_own_and_the_table_says_who_trained_how_long(tmp_path: Path) -> None:
    results = [{**result, "steps": 3100 if result["selector"] == "dqn" else 1500} for result in FULL[3:]]
    results += [{**result, "steps": 3100} for result in rows(W, "tml", "long", 0.71, 0.71, 0.71)]
    write_grid(tmp_path, results)
    config = {"method": {"name": "tml"}, "seed": 0, "training": {"steps": 3100}}
    write_failed(tmp_path, D, "tml", "long", 0, config=config)
    (table,) = make_tables(read_outcome(tmp_path))
    assert [row.title for row in table.rows][:3] == ["S+T", "MME", "TML (3,100 steps)"]
    assert texts(table)["TML (3,100 steps)"][:2] == ["71.0 ± 0.0", "failed"]
    assert "TML (3,100 steps)" in marked(table, "best_plain")[0]  # it has no pseudo-labels
    (note,) = [note for note in table.notes if note.startswith("Total training steps: ")]
    assert "1,500 for S+T, MME" in note
    assert "3,100 for TML (3,100 steps)" in note
    assert "controls: no pseudo-labels" in note
    assert not any("Total training steps" in note for note in table_of(tmp_path / "old", FULL).notes)


def test_equal_as_printed_is_equally_good(tmp_path: Path) -> None:
    table = table_of(tmp_path, [row(W, "ent", "none", 0, 0.70004), row(W, "mme", "none", 0, 0.69996)])
    assert marked(table, "best") == marked(table, "best_plain") == [{"ENT", "MME"}]


def test_the_published_number_stands_beside_with_its_difference(tmp_path: Path) -> None:
    printed = [*rows(W, "tml", "dqn_paper", 0.72, 0.72, 0.72), *rows(D, "tml", "dqn_paper", 0.81, 0.81, 0.81)]
    table = table_of(tmp_path, [*FULL, *printed])
    cells = {row.title: [(cell.published, cell.difference()) for cell in row.cells] for row in table.rows}
    assert cells["TML_DQNPL"] == [(77.5, "\u22125.5"), (78.8, "+2.2"), (78.2, "\u22121.7")]
    assert cells["TML_DQNPL*"] == [(None, "")] * 3  # ours is not the algorithm that was published
    assert any(note.startswith("TML_DQNPL* (selector dqn) is the agent with our preset") for note in table.notes)
    assert any(note.startswith("TML_DQNPL (selector dqn_paper) is Algorithm 1 as printed") for note in table.notes)
    assert cells["TML + oracle"] == [(None, "")] * 3
    assert table.has_published
    (note,) = [note for note in table.notes if note.startswith("Published")]
    assert "Table 4 of Selective Pseudo-Labeling" in note
    assert "VGG-16" in note
    assert "another backbone and all layers trained instead of a frozen backbone" in note


def test_the_two_rows_of_spl_are_told_apart_and_the_published_number_stands_beside_the_first(tmp_path: Path) -> None:
    ours = rows(W, "tml", "confidence", 0.78, 0.78)
    table = table_of(tmp_path / "both", [*ours, *rows(W, "tml", "confidence_paper", 0.77, 0.77)])
    assert {row.title: row.cells[0].published for row in table.rows} == {"TML_SPL": 75.7, "TML_SPL (one set)": None}
    (note,) = [note for note in table.notes if note.startswith("TML_SPL")]
    assert "half of each target batch from the positives" in note
    assert "as the paper may have meant it (decision 31)" in note
    assert not any("one set" in note for note in table_of(tmp_path / "ours", ours).notes)


def test_a_comparison_of_like_with_like_needs_no_caution(tmp_path: Path) -> None:
    table = table_of(tmp_path, FULL, backbone="torchvision/vgg16", train="full")
    (note,) = [note for note in table.notes if note.startswith("Published")]
    assert "compare differences" not in note


def test_nothing_is_published_for_other_shots_or_other_data(tmp_path: Path) -> None:
    one_shot = [dict(result, shots=1) for result in FULL]
    for number, (results, suite) in enumerate([(one_shot, "office31"), (FULL, "digits")]):
        table = table_of(tmp_path / str(number), results, suite=suite)
        assert not table.has_published
        assert not any("Published" in note for note in table.notes)


def test_a_missing_cell_is_a_dash_and_leaves_its_row_without_a_mean(tmp_path: Path) -> None:
    results = [*rows(W, "tml", "none", 0.7, 0.7), *rows(D, "tml", "none", 0.7, 0.7), *rows(W, "ent", "none", 0.9, 0.9)]
    table = table_of(tmp_path, results)
    assert texts(table)["ENT"] == ["90.0 ± 0.0", DASH, DASH]
    assert marked(table, "best") == [{"ENT"}, {"TML"}, {"TML"}]
    assert "Of 8 runs, 2 not run; a mean is given only where every scenario has the same seeds." in table.notes


def test_a_failed_run_is_shown_as_failed_and_never_averaged_away(tmp_path: Path) -> None:
    results = [
        *rows(W, "tml", "none", 0.70, 0.72, 0.74), *rows(D, "tml", "none", 0.70, 0.72, None),
        *rows(W, "ent", "none", None, None, None), *rows(D, "ent", "none", 0.5, 0.5, 0.5),
    ]  # fmt: skip
    table = table_of(tmp_path, results)
    assert texts(table) == {
        "ENT": ["failed", "50.0 ± 0.0", DASH],
        "TML": ["72.0 ± 2.0", "71.0 ± 1.4; 2 of 3 seeds, 1 failed", DASH],
    }
    assert any("Of 12 runs, 4 failed" in note for note in table.notes)


def test_a_row_of_fewer_seeds_says_so_but_has_its_mean(tmp_path: Path) -> None:
    results = [*rows(W, "tml", "none", 0.70, 0.72), *rows(D, "tml", "none", 0.70, 0.72)]
    results += [*rows(W, "tml", "dqn_paper", 0.6), *rows(D, "tml", "dqn_paper", 0.8)]
    assert texts(table_of(tmp_path, results))["TML_DQNPL"] == [
        "60.0; 1 of 2 seeds", "80.0; 1 of 2 seeds", "70.0; 1 of 2 seeds",
    ]  # fmt: skip


def test_a_mean_does_not_mix_seeds(tmp_path: Path) -> None:
    """Seed 0 on one scenario and seed 1 on the other are no mean over seeds."""
    table = table_of(tmp_path, [row(W, "tml", "none", 0, 0.7), row(D, "tml", "none", 1, 0.8)])
    assert table.rows[0].cells[-1] == Entry(None, published=77.1)


def test_one_scenario_is_its_own_mean(tmp_path: Path) -> None:
    table = table_of(tmp_path, rows(W, "tml", "none", 0.7, 0.8))
    assert table.columns == ("W to A",)
    assert texts(table) == {"TML": ["75.0 ± 7.1"]}


def test_one_seed_is_said(tmp_path: Path) -> None:
    table = table_of(tmp_path, [row(W, "tml", "none", 4, 0.7), row(D, "tml", "none", 4, 0.8)])
    assert texts(table)["TML"] == ["70.0", "80.0", "75.0"]
    assert "one seed (4), so nothing is known about the spread." in table.notes[0]


def test_each_number_of_shots_and_each_rule_has_its_table_the_oracle_last(tmp_path: Path) -> None:
    results = [
        row(W, "tml", "none", 0, 0.7, shots, rule) for rule in ("oracle", "validation", "last") for shots in (20, 3, 1)
    ]
    tables = make_tables(outcome_of(tmp_path, results))
    assert [(table.shots, table.model_selection) for table in tables] == [
        (shots, rule) for rule in ("last", "validation", "oracle") for shots in (1, 3, 20)
    ]
    assert tables[-1].title == "Office-31: 20 labels per class, model selection: oracle"
    assert any("ORACLE: the model with the best accuracy on the test labels" in note for note in tables[-1].notes)
    assert tables[0].title.startswith("Office-31: 1 label per class")


def test_what_made_the_numbers_is_under_every_table(tmp_path: Path) -> None:
    results = [
        *rows(W, "tml", "none", 0.7, 0.7),
        *[dict(r, commit="def5678") for r in rows(W, "ent", "none", 0.6, 0.6)],
    ]
    notes = " ".join(table_of(tmp_path, results).notes)
    parts = ["seeds 0, 1.", "A is amazon, W is webcam.", "Model selection last", "timm/tf_efficientnet_lite0.in1k"]
    parts += ["frozen, head trained", "weights lite0.safetensors", "Protocol mme", "commits def5678, abc1234"]
    assert [part for part in parts if part not in notes] == []
    assert "/home" not in notes


@pytest.mark.parametrize("shots", [1, 3])
def test_later_work_and_the_doubtful_number_are_under_the_domainnet_table(tmp_path: Path, shots: int) -> None:
    results = rows("clipart:sketch", "tml", "none", 0.6, 0.6, shots=shots)
    notes = " ".join(table_of(tmp_path, results, suite="domainnet126").notes)
    assert {1: "ProML 76.1", 3: "ProML 77.4"}[shots] in notes
    assert ("Table 1 prints 61.0" in notes) == (shots == 3)


def thinned(results: list[dict[str, object]], imbalance: int, less: float = 0.0) -> list[dict[str, object]]:
    """The same results on a thinned target, balanced accuracy lower by something."""
    return [{**one, "imbalance": imbalance, "balanced_accuracy": one["accuracy"] - less} for one in results]  # type: ignore[operator]


LONG_TAIL = [
    *thinned([*rows(W, "tml", "none", 0.70, 0.72), *rows(D, "tml", "none", 0.60, 0.62)], 1),
    *thinned([*rows(W, "tml", "none", 0.50, 0.52), *rows(D, "tml", "none", 0.40, 0.46)], 20, 0.1),
    *thinned([*rows(W, "tml", "adaptive", 0.80, 0.82), *rows(D, "tml", "adaptive", 0.60, 0.62)], 1),
    *thinned(rows(W, "tml", "adaptive", 0.40, 0.42), 20, 0.1),
]


def test_each_imbalance_is_a_group_of_columns_and_balanced_accuracy_a_table_of_its_own(tmp_path: Path) -> None:
    accuracy, balanced = make_tables(outcome_of(tmp_path, LONG_TAIL))
    columns = ("W to A, 1:1", "D to A, 1:1", "W to A, 20:1", "D to A, 20:1", "mean")
    assert accuracy.columns == balanced.columns == columns
    assert texts(accuracy) == {
        "TML": ["71.0 ± 1.4", "61.0 ± 1.4", "51.0 ± 1.4", "43.0 ± 4.2", "56.5 ± 2.1"],  # seeds: 55.0, 58.0
        "TML + adaptive": ["81.0 ± 1.4", "61.0 ± 1.4", "41.0 ± 1.4", DASH, DASH],
    }
    assert texts(balanced)["TML"] == ["71.0 ± 1.4", "61.0 ± 1.4", "41.0 ± 1.4", "33.0 ± 4.2", "51.5 ± 2.1"]
    assert marked(accuracy, "best")[:4] == [{"TML + adaptive"}, {"TML", "TML + adaptive"}, {"TML"}, {"TML"}]
    assert balanced.title == f"{accuracy.title}, balanced accuracy"
    assert balanced.notes[0].startswith("Mean over the classes of accuracy in percent")
    assert any(note.startswith("Of 16 runs, 2 not run") for note in accuracy.notes)
    (note,) = [note for note in accuracy.notes if note.startswith("20:1: the unlabelled target is thinned by the seed")]
    assert note.endswith("1:1 is the target as it is.")


def test_the_calibration_error_has_two_tables_where_runs_were_calibrated(tmp_path: Path) -> None:
    results = [
        {**one, "ece": before, "ece_calibrated": after, "temperature": 4.0}
        for one, before, after in zip(
            [*rows(W, "tml", "none", 0.7), *rows(W, "tml", "adaptive", 0.8)], (0.2, 0.15), (0.03, 0.05), strict=True
        )
    ]
    accuracy, before, after = make_tables(outcome_of(tmp_path, results))
    assert texts(before) == {"TML": ["20.0"], "TML + adaptive": ["15.0"]}
    assert texts(after) == {"TML": ["3.0"], "TML + adaptive": ["5.0"]}
    assert marked(before, "best") == [{"TML + adaptive"}]  # the lowest
    assert marked(after, "best") == [{"TML"}]
    assert after.title == f"{accuracy.title}, calibration error after calibration"
    assert "of what `adapt` gives, calibrated on" in after.notes[0]
    assert not before.has_published
    (alone,) = make_tables(outcome_of(tmp_path / "not", [{**one, "ece": 0.2} for one in rows(W, "tml", "none", 0.7)]))
    assert alone.measure == "accuracy"


def test_published_numbers_stand_beside_the_accuracy_on_the_target_as_it_is_and_nothing_else(tmp_path: Path) -> None:
    accuracy, balanced = make_tables(outcome_of(tmp_path / "both", LONG_TAIL))
    published = [cell.published for cell in accuracy.rows[0].cells]
    assert [number is not None for number in published] == [True, True, False, False, False]
    assert not balanced.has_published
    for table in make_tables(outcome_of(tmp_path / "thinned", [one for one in LONG_TAIL if one["imbalance"] == 20])):
        assert table.columns == ("W to A, 20:1", "D to A, 20:1", "mean")
        assert not table.has_published
        assert not any("Published" in note or "1:1 is" in note for note in table.notes)


def test_a_failed_cell_of_a_thinned_target_is_shown_in_its_own_column(tmp_path: Path) -> None:
    write_grid(tmp_path, [one for one in LONG_TAIL if (one["scenario"], one["selector"]) == (W, "none")])
    write_failed(tmp_path, W, "tml", "adaptive", 0, imbalance=20)
    write_failed(tmp_path, W, "tml", "adaptive", 1)
    table = make_tables(read_outcome(tmp_path))[0]
    assert table.columns == ("W to A, 1:1", "W to A, 20:1", "mean")
    assert texts(table)["TML + adaptive"] == ["failed", "failed", DASH]


def open_set(results: list[dict[str, object]], unknown: int, **measured: object) -> list[dict[str, object]]:
    return [{**one, "unknown": unknown, "auroc": 0.8, **measured} for one in results]


def test_each_number_of_unknown_classes_is_a_group_of_columns_and_has_tables_of_its_own(tmp_path: Path) -> None:
    results = [
        *open_set(rows(W, "tml", "none", 0.7, 0.7), 0),
        *open_set(rows(W, "tml", "none", 0.5, 0.5), 16, auroc_unknown=0.6, auroc=0.75),
        *open_set(rows(W, "tml", "adaptive", 0.6, 0.6), 0),
        *open_set(rows(W, "tml", "adaptive", 0.4, 0.4), 16, auroc_unknown=0.9, hos=0.3),
    ]
    accuracy, right, unknown, hos = make_tables(outcome_of(tmp_path, results))
    assert accuracy.columns == right.columns == ("W to A, 0 unknown", "W to A, 16 unknown", "mean")
    assert unknown.columns == hos.columns == ("W to A, 16 unknown",)
    assert texts(accuracy)["TML"] == ["70.0 ± 0.0", "50.0 ± 0.0", "60.0 ± 0.0"]
    assert texts(right)["TML"] == ["80.0 ± 0.0", "75.0 ± 0.0", "77.5 ± 0.0"]
    assert texts(unknown) == {"TML": ["60.0 ± 0.0"], "TML + adaptive": ["90.0 ± 0.0"]}
    assert texts(hos) == {"TML": [DASH], "TML + adaptive": ["30.0 ± 0.0"]}
    titles = ("right against wrong", "known against unknown", "HOS")
    assert all(table.title.endswith(title) for table, title in zip((right, unknown, hos), titles, strict=True))
    assert marked(unknown, "best") == [{"TML + adaptive"}]  # the highest
    assert [cell.published is not None for cell in accuracy.rows[0].cells] == [True, False, False]
    assert any(note.startswith("16 unknown: so many classes, drawn by the seed") for note in accuracy.notes)
    assert "AUROC in percent of images of known classes against" in unknown.notes[0]


def test_changes_of_a_target_are_named_where_some_column_has_them(tmp_path: Path) -> None:
    plain = rows(W, "tml", "none", 0.7)
    results = [{**one, "missing_classes": missing} for one in plain for missing in (0, 3)]
    accuracy, *others = make_tables(outcome_of(tmp_path, results))
    assert others == []
    assert accuracy.columns == ("W to A, 0 missing", "W to A, 3 missing", "mean")
    both = [{**one, "imbalance": 5, "unknown": 16} for one in plain]
    assert make_tables(outcome_of(tmp_path / "both", both))[0].columns == ("W to A, 5:1, 16 unknown",)


def test_a_failed_cell_with_hidden_classes_is_shown_in_its_own_column(tmp_path: Path) -> None:
    write_grid(tmp_path, [one for unknown in (0, 16) for one in open_set(rows(W, "tml", "none", 0.7), unknown)])
    write_failed(tmp_path, W, "tml", "adaptive", 0, unknown=16, missing_classes=0)
    table = make_tables(read_outcome(tmp_path))[0]
    assert texts(table)["TML + adaptive"] == [DASH, "failed", DASH]
