from __future__ import annotations

import pytest
import torch
from tests.active.pools import make_pool, neighbors_by_hand

from qurate.active import strategies as neighbors
from qurate.active.strategies import main_directions, nearest


@pytest.mark.parametrize("cells", [1, 200, 2**24])
def test_they_are_those_of_a_plain_loop_in_slices_of_any_size(cells: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(neighbors, "_CELLS", cells)
    pool, rows = make_pool(), torch.tensor([0, 7, 59, 3])
    assert nearest(pool.features, rows, 5).tolist() == [neighbors_by_hand(pool, i, 5) for i in rows.tolist()]


def test_equal_images_are_neighbours_and_nothing_is_its_own() -> None:
    features = torch.ones(6, 3)
    found = nearest(features, torch.arange(6), 10)
    assert found.shape == (6, 5)
    assert all(i not in row for i, row in enumerate(found.tolist()))


def test_length_does_not_matter_and_few_images_stay_as_they_are() -> None:
    pool = make_pool()
    assert torch.equal(nearest(pool.features * 7, pool.open, 4), nearest(pool.features, pool.open, 4))
    assert main_directions(pool.features).shape == pool.features.shape


def test_many_wide_images_keep_their_neighbours_in_fewer_directions(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = torch.Generator().manual_seed(0)
    groups = torch.randn(20, 300, generator=rng).repeat_interleave(15, dim=0)
    features = groups + 0.1 * torch.randn(300, 300, generator=rng)
    exact = nearest(features, torch.arange(300), 14)
    monkeypatch.setattr(neighbors, "MOST_EXACT", 200)
    assert main_directions(features).shape == (300, 128)
    found = nearest(features, torch.arange(300), 14)
    assert [set(row) for row in found.tolist()] == [set(row) for row in exact.tolist()]
