"""Nearest rows, against a plain loop."""

from __future__ import annotations

import sys

import pytest
import torch
from torch import Tensor
from torch.nn.functional import normalize

from qurate.neighbors import nearest_rows


def directions(count: int, width: int, seed: int = 0) -> Tensor:
    return normalize(torch.randn(count, width, generator=torch.Generator().manual_seed(seed)), dim=1)


def sorted_by_cosine(row: Tensor, others: Tensor, without: int = -1) -> list[int]:
    cosines = [float((row * other).sum()) for other in others]
    return sorted(set(range(len(others))) - {without}, key=lambda j: -cosines[j])


def test_the_nearest_are_those_of_a_plain_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("qurate.neighbors._SLICE", 4)
    rows, others = directions(11, 5), directions(8, 5, seed=1)
    assert nearest_rows(rows, others, 3).tolist() == [sorted_by_cosine(row, others)[:3] for row in rows]


def test_no_row_is_a_neighbour_of_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("qurate.neighbors._SLICE", 4)
    others, own = directions(12, 5), torch.tensor([2, 3, 5, 7, 11])
    expected = [sorted_by_cosine(others[i], others, without=i)[:3] for i in own.tolist()]
    assert nearest_rows(others[own], others, 3, own).tolist() == expected
    assert nearest_rows(others[:3], others[:3], 5, torch.arange(3)).shape == (3, 2)
    assert nearest_rows(others[:0], others, 3).shape == (0, 3)


def test_an_index_finds_nearly_all_of_them_and_always_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("faiss", reason="the extra `large` is not installed")
    centers = directions(40, 32)
    rows = normalize(centers.repeat(50, 1) + 0.5 * directions(2000, 32, seed=1), dim=1)
    own = torch.arange(100, 2000)
    exact = nearest_rows(rows[100:], rows, 10, own)
    monkeypatch.setattr("qurate.neighbors.MOST_EXACT", 50)
    found = nearest_rows(rows[100:], rows, 10, own)
    assert found.shape == exact.shape
    assert not bool((found == own.unsqueeze(1)).any())
    both = [len({*one} & {*other}) for one, other in zip(found.tolist(), exact.tolist(), strict=True)]
    assert sum(both) >= 0.97 * exact.numel()
    assert torch.equal(found, nearest_rows(rows[100:], rows, 10, own))
    few = nearest_rows(directions(60, 32, seed=2), rows[:50], 60)
    assert sorted(few[0].tolist()) == list(range(50)), "an index may find fewer; then all are compared"


def test_without_the_index_all_are_compared_and_it_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = directions(30, 4)
    exact = nearest_rows(rows, rows, 3)
    monkeypatch.setattr("qurate.neighbors.MOST_EXACT", 20)
    monkeypatch.setitem(sys.modules, "faiss", None)
    with pytest.warns(UserWarning, match=r"pip install 'qurate\[large\]'"):
        assert torch.equal(nearest_rows(rows, rows, 3), exact)
