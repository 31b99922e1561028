"""Which labels are contradicted, and by what."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import pytest
import torch
from sklearn.linear_model import Ridge
from torch import Tensor
from torch.nn import functional as F

from qurate.errors import RunError
from qurate.run_results import LABEL_ISSUES
from qurate.runs import label_issues
from qurate.runs.label_issues import (
    MOST_LISTED,
    RIDGE,
    draw_judged,
    find_label_issues,
    label_issue_table,
    leave_one_out,
    rank_label_issues,
    read_label_issues,
)
from qurate.runtime.tables import to_csv


def clusters(sizes: list[int], *, seed: int = 0, width: int = 6) -> tuple[Tensor, Tensor]:
    """Points around a centre for each class, and their labels."""
    made = torch.Generator().manual_seed(seed)
    labels = torch.cat([torch.full((size,), k) for k, size in enumerate(sizes)])
    centers = 3 * torch.randn(len(sizes), width, generator=made)
    return centers[labels] + torch.randn(len(labels), width, generator=made), labels


@pytest.mark.parametrize("sizes", [[8, 8, 8], [20, 3, 5, 2]])
def test_each_image_is_judged_by_a_model_of_all_others(sizes: list[int]) -> None:
    points, labels = clusters(sizes)
    found = leave_one_out(points, labels, len(sizes))
    unit, named = F.normalize(points, dim=1).double(), F.one_hot(labels).double()
    weights = len(labels) / (len(sizes) * torch.bincount(labels)[labels]).double()
    centered = unit - weights @ unit / weights.sum()
    penalty = RIDGE * (centered * weights[:, None] * centered).sum() / unit.shape[1]
    scores = torch.empty_like(named)
    for i in range(len(labels)):
        others = torch.arange(len(labels)) != i
        model = Ridge(alpha=float(penalty)).fit(unit[others], named[others], sample_weight=weights[others])
        scores[i] = torch.from_numpy(model.predict(unit[i : i + 1]))[0]
    mine, theirs = (each - each.mean(dim=1, keepdim=True) for each in (found.double(), scores))
    scale = (mine * theirs).sum() / theirs.square().sum()  # one temperature for all
    assert float(scale) > 1
    assert torch.allclose(mine, scale * theirs, atol=2e-3 * float(scale))


def test_of_very_many_source_images_some_are_judged(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(label_issues, "MOST_IN_MEMORY", 20)
    whole, silent = draw_judged(20, seed=3)
    assert (whole.tolist(), silent) == (list(range(20)), [])
    drawn, note = draw_judged(2000, seed=3)
    assert len(drawn) == len(drawn.unique()) == 20
    assert drawn.tolist() == sorted(drawn.tolist()) == draw_judged(2000, seed=3)[0].tolist()
    assert drawn.tolist() != draw_judged(2000, seed=4)[0].tolist()
    assert note == ["Labels that may be wrong were looked for among 20 of the 2,000 source images, drawn at random."]


def test_an_image_alone_in_its_class_is_not_judged() -> None:
    points, labels = clusters([6, 1, 6])
    found = leave_one_out(points, labels, 3)
    assert found.isnan().any(dim=1).tolist() == (labels == 1).tolist()
    assert torch.allclose(found[labels != 1].exp().sum(dim=1), torch.ones(12))
    assert 6 not in find_label_issues(found, labels).tolist()


def test_equal_embeddings_give_finite_probabilities() -> None:
    found = leave_one_out(torch.ones(6, 4), torch.tensor([0, 0, 0, 1, 1, 1]), 2)
    assert bool(found.isfinite().all())


def test_wrong_labels_come_first_and_right_ones_are_not_accused() -> None:
    points, labels = clusters([30, 30, 30, 30], width=16)
    assert len(find_label_issues(leave_one_out(points, labels, 4), labels)) == 0
    wrong = labels.clone()
    wrong[[3, 40, 100]] = torch.tensor([2, 0, 1])
    log_probs = leave_one_out(points, wrong, 4)
    assert sorted(log_probs.gather(1, wrong[:, None]).squeeze(1).argsort()[:3].tolist()) == [3, 40, 100]
    assert set(find_label_issues(log_probs, wrong).tolist()) in ({3, 40}, {3, 100}, {40, 100}, {3, 40, 100})


def test_a_prediction_counts_where_it_is_as_sure_as_of_its_class_on_the_mean() -> None:
    probabilities = torch.tensor(
        [[0.9, 0.1], [0.7, 0.3], [0.2, 0.8], [0.4, 0.6], [0.79, 0.21], [0.81, 0.19], [0.55, 0.45]]
    )
    labels = torch.tensor([0, 0, 1, 1, 1, 1, 1])
    # class 0 has a mean of 0.8, so that 0.81 contradicts a label and 0.79 does not
    assert find_label_issues(probabilities.log(), labels).tolist() == [5]


def test_a_prediction_below_one_half_contradicts_nothing() -> None:
    probabilities = torch.tensor([[0.3, 0.4, 0.3], [0.4, 0.3, 0.3], [0.45, 0.3, 0.25], [0.51, 0.3, 0.19]])
    assert find_label_issues(probabilities.log(), torch.tensor([0, 0, 1, 1])).tolist() == [3]


def test_the_table_names_files_and_leaves_out_what_people_checked() -> None:
    log_probs = torch.tensor([[0.99, 0.01], [0.02, 0.98], [0.05, 0.95], [0.9, 0.1]]).log()
    labels, files = torch.tensor([0, 0, 1, 1]), ["a", "b", "c", "d"]
    table = label_issue_table(files, "source", labels, log_probs, ["mug", "pen"])
    assert list(table.columns) == LABEL_ISSUES
    assert table[["file", "part", "given", "suggested"]].to_numpy().tolist() == [
        ["b", "source", "mug", "pen"],
        ["d", "source", "pen", "mug"],
    ]
    assert table["probability"].tolist() == pytest.approx([0.98, 0.9])
    assert table["given_probability"].tolist() == pytest.approx([0.02, 0.1])
    assert label_issue_table(files, "source", labels, log_probs, ["mug", "pen"], {"b"})["file"].tolist() == ["d"]


def test_parts_are_ranked_together_and_the_list_is_not_endless() -> None:
    rows = [(f"{i}", "", "source", "mug", "pen", 0.9, i / 1000) for i in range(300)]
    first = pd.DataFrame(rows, columns=LABEL_ISSUES)
    second = first.assign(file="x" + first["file"], part="labeled", given_probability=first["given_probability"] + 1e-4)
    ranked = rank_label_issues([first, second, first.iloc[:0]])
    assert len(ranked) == MOST_LISTED
    assert ranked["file"].tolist()[:4] == ["0", "x0", "1", "x1"]
    assert list(rank_label_issues([]).columns) == LABEL_ISSUES


def test_the_table_of_a_run_is_read_with_numbers(tmp_path: Path) -> None:
    with pytest.raises(RunError, match=r"label_issues\.csv.* belongs to every finished run"):
        read_label_issues(tmp_path)
    (tmp_path / "label_issues.csv").write_bytes(to_csv(pd.DataFrame(columns=LABEL_ISSUES)))
    assert read_label_issues(tmp_path).empty
    written = pd.DataFrame([("=a.png", "", "labeled", "mug", "pen", 0.9, 0.01)], columns=LABEL_ISSUES)
    (tmp_path / "label_issues.csv").write_bytes(to_csv(written))
    pd.testing.assert_frame_equal(read_label_issues(tmp_path), written, check_dtype=False)
    (tmp_path / "label_issues.csv").write_bytes(to_csv(written.assign(probability="much")))
    with pytest.raises(RunError, match=r"label_issues\.csv: damaged"):
        read_label_issues(tmp_path)
