"""Nearest rows, against a plain loop."""

from __future__ import annotations

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


def test_clusters_hold_nearly_all_of_them_and_always_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    centers = directions(40, 32)
    rows = normalize(centers.repeat(50, 1) + directions(2000, 32, seed=1), dim=1)
    own = torch.arange(100, 2000)
    exact = nearest_rows(rows[100:], rows, 10, own)
    monkeypatch.setattr("qurate.neighbors.MOST_EXACT", 50)
    monkeypatch.setattr("qurate.neighbors.CLUSTER_ROWS", 20)
    found = nearest_rows(rows[100:], rows, 10, own)
    assert found.shape == exact.shape
    assert not bool((found == own.unsqueeze(1)).any())
    both = [len({*one} & {*other}) for one, other in zip(found.tolist(), exact.tolist(), strict=True)]
    assert 0.9 * exact.numel() <= sum(both) < exact.numel()
    cosines = (rows[100:].unsqueeze(1) * rows[found]).sum(dim=2)
    assert bool((cosines.diff(dim=1) <= 1e-6).all()), "the nearest come first"
    assert torch.equal(found, nearest_rows(rows[100:], rows, 10, own))


def test_every_cluster_looked_into_finds_what_a_plain_loop_does(monkeypatch: pytest.MonkeyPatch) -> None:
    others, own = directions(60, 5), torch.arange(10, 60)
    expected = [sorted_by_cosine(others[i], others, without=i)[:4] for i in own.tolist()]
    monkeypatch.setattr("qurate.neighbors.MOST_EXACT", 5)
    monkeypatch.setattr("qurate.neighbors.CLUSTER_ROWS", 6)
    assert nearest_rows(others[own], others, 4, own).tolist() == expected
    monkeypatch.setattr("qurate.neighbors.PROBES", 1)
    few = nearest_rows(others[own], others, 40, own)
    expected = [sorted_by_cosine(others[i], others, without=i)[:40] for i in own.tolist()]
    assert few.tolist() == expected, "clusters hold fewer than are asked for; then all are compared"


@pytest.mark.parametrize("most", [5, 1000])
def test_rows_of_half_precision_are_compared_in_single(monkeypatch: pytest.MonkeyPatch, most: int) -> None:
    monkeypatch.setattr("qurate.neighbors.MOST_EXACT", most)
    monkeypatch.setattr("qurate.neighbors._WIDE_SLICE", 7)
    rows = directions(50, 8).half()
    own = torch.arange(50)
    assert torch.equal(nearest_rows(rows, rows, 3, own), nearest_rows(rows.float(), rows.float(), 3, own))
