from __future__ import annotations

from pathlib import Path

import pytest
from tests.report.grids import D, W, outcome_of, row, rows

from qurate.benchmark.outcome import ReportError
from qurate.report.page import DASH
from qurate.report.statistics import (
    ALONE,
    LARGER,
    TOO_FEW,
    UNDECIDED,
    Comparisons,
    compare_rows,
    p_text,
    sign_flip_p_value,
)

BASE = [0.70, 0.71, 0.69, 0.72, 0.70, 0.68, 0.71, 0.73]


def grid(*others: tuple[str, str, list[float]]) -> list[dict[str, object]]:
    """TML_DQNPL* by BASE and other rows by BASE plus something, half of the seeds on each scenario."""
    found = []
    for method, selector, plus in [("tml", "dqn", [0.0] * 8), *others]:
        values = [a + b for a, b in zip(BASE, plus, strict=False)]
        found += [row(W if i % 2 else D, method, selector, i // 2, value) for i, value in enumerate(values)]
    return found


def compared(folder: Path, results: list[dict[str, object]], reference: str | None = None) -> Comparisons:
    found = compare_rows(outcome_of(folder, results).results, "last", reference)
    assert found is not None
    return found


def test_pairs_are_the_cells_that_both_rows_have_whatever_their_order(tmp_path: Path) -> None:
    plus = [-0.03, -0.02, -0.01, -0.04, -0.02, 0.01, -0.03, -0.02]
    results = grid(("tml", "none", plus))
    found = compared(tmp_path, results[:8] + results[8:][::-1])
    (one,) = found.rows
    assert (found.reference, one.other, one.pairs) == ("TML_DQNPL*", "TML", 8)
    assert one.difference == pytest.approx(2.0)
    assert one.p_value == one.corrected == sign_flip_p_value([-p for p in plus])


def test_results_on_a_thinned_target_are_paired_with_those_of_the_same_imbalance(tmp_path: Path) -> None:
    accuracies = {("dqn", 1): 0.8, ("dqn", 20): 0.6, ("none", 1): 0.7, ("none", 20): 0.5}
    results = [{**row(W, "tml", name, 0, a), "imbalance": ratio} for (name, ratio), a in accuracies.items()]
    found = compared(tmp_path / "thinned", results[::-1])
    (one,) = found.rows
    assert one.pairs == 2
    assert one.difference == pytest.approx(10.0)
    assert "paired by scenario, imbalance, shots and seed" in found.caution
    hidden = [{**one, "unknown": 16, "missing_classes": one["imbalance"]} for one in results]
    caution = compared(tmp_path / "hidden", hidden).caution
    assert "paired by scenario, imbalance, unknown, missing classes, shots and seed" in caution
    assert (
        "paired by scenario, shots and seed" in compared(tmp_path / "plain", grid(("tml", "none", [0.1] * 8))).caution
    )


def test_a_cell_that_failed_or_is_missing_makes_no_pair(tmp_path: Path) -> None:
    results = grid(("tml", "none", [-0.03] * 7))
    results[2]["accuracy"] = None
    (one,) = compared(tmp_path, results).rows
    assert one.pairs == 6
    assert one.difference == pytest.approx(3.0)


def test_rules_of_model_selection_are_not_mixed_and_shots_are_pooled(tmp_path: Path) -> None:
    results = [*rows(W, "tml", "dqn", 0.8, 0.8, rule="oracle"), *rows(W, "tml", "none", 0.5, 0.5, rule="oracle")]
    for shots in (1, 3, 20):
        results += [*rows(W, "tml", "dqn", 0.8, 0.8, shots=shots), *rows(W, "tml", "none", 0.7, 0.7, shots=shots)]
    (one,) = compared(tmp_path, results).rows
    assert one.pairs == 6
    assert one.difference == pytest.approx(10.0)


def test_verdicts_are_in_plain_words(tmp_path: Path) -> None:
    clear, mixed = [-0.03] * 8, [0.02, -0.02, 0.01, -0.02, 0.03, -0.01, 0.0, 0.01]
    six_of_eight = [-0.03, -0.03, -0.03, 0.005, -0.03, -0.03, 0.006, -0.03]  # p = 8 / 256
    found = compared(
        tmp_path,
        grid(
            ("source_target", "none", clear), ("ent", "none", mixed), ("mme", "none", [0.03] * 8),
            ("tml", "none", six_of_eight), ("tml", "confidence", clear[:5]), ("tml", "oracle", [0.2] * 8),
        ),
    )  # fmt: skip
    assert {row.other: row.verdict for row in found.rows} == {
        "S+T": LARGER, "ENT": UNDECIDED, "MME": LARGER, "TML": ALONE, "TML_SPL": TOO_FEW,
    }  # fmt: skip
    assert found.summary == (
        "TML_DQNPL* is above S+T and below MME by more than chance. It cannot be told from ENT, TML and TML_SPL."
    )
    assert "'before correction only'" in found.caution
    assert {row.other: row.cells()[1] for row in found.rows}["TML_SPL"] == DASH


def test_too_few_pairs_are_said_with_how_many_it_takes(tmp_path: Path) -> None:
    results = [*rows(W, "tml", "dqn", 0.8, 0.9), *rows(W, "tml", "none", 0.1, 0.1), *rows(W, "ent", "none", 0.1, 0.1)]
    summary = compared(tmp_path, results).summary.replace("\u00a0", " ")
    assert summary == (
        "2 pairs cannot show that a difference is larger than chance: even if all of them agree, p = 0.50, "
        "and p = 1.00 after correction for 2 comparisons. It takes 7 pairs or more."
    )


def test_nothing_found_is_said(tmp_path: Path) -> None:
    found = compared(tmp_path, grid(("ent", "none", [0.01, -0.01] * 4)))
    assert found.summary == "No other row differs from TML_DQNPL* by more than chance (8 pairs)."


def test_the_reference_is_the_papers_method_or_the_one_asked_for_or_the_best(tmp_path: Path) -> None:
    results = [
        *rows(W, "ent", "none", 0.6, 0.6),
        *rows(W, "mme", "none", 0.7, 0.7),
        *rows(W, "tml", "oracle", 0.9, 0.9),
    ]
    best = compared(tmp_path / "best", results)
    assert best.reference == "MME"
    assert "chosen as the best row" in best.caution
    results += rows(W, "tml", "dqn", 0.1, 0.1)
    assert compared(tmp_path / "paper", results).reference == "TML_DQNPL*"
    asked = compared(tmp_path / "asked", results, "ENT")
    assert [row.other for row in asked.rows] == ["MME", "TML_DQNPL*"]
    assert "chosen as the best row" not in asked.caution
    with pytest.raises(ReportError, match=r"--reference TLM.*Choose from ENT, MME, TML_DQNPL\*"):
        compared(tmp_path / "wrong", results, "TLM")


def test_one_row_alone_is_compared_with_nobody(tmp_path: Path) -> None:
    results = outcome_of(tmp_path, [*rows(W, "tml", "dqn", 0.8), *rows(W, "ent", "none", None)]).results
    assert compare_rows(results, "last") is None


def test_p_values_are_written_short() -> None:
    texts = [p_text(p).replace("\u00a0", " ") for p in (0.5, 0.03125, 0.000488, 0.00001)]
    assert texts == ["p = 0.50", "p = 0.031", "p = 0.00049", "p < 0.0001"]
