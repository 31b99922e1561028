from __future__ import annotations

import pytest
import torch
from tests.active.pools import make_pool

from qurate.active import strategies as clusters
from qurate.active.strategies import ClustersStrategy, Pool


def make_groups(sizes: list[int], doubts: list[float]) -> tuple[Pool, list[int]]:
    """Groups around directions of their own; the first image of each is exactly its middle."""
    rng = torch.Generator().manual_seed(1)
    rows, predictions, group = [], [], []
    for label, (size, doubt) in enumerate(zip(sizes, doubts, strict=True)):
        noise = 0.05 * torch.randn(size // 2, len(sizes), generator=rng)
        noise[:, label] = 0  # mirrored across the middle, so that the mean is the middle
        rows.append(torch.eye(len(sizes))[label] + torch.cat([torch.zeros(1, len(sizes)), noise, -noise]))
        predictions.append(torch.tensor([[1 - doubt, doubt / 2, doubt / 2]]).repeat(size + 1, 1))
        group += [label] * (size + 1)
    return Pool(torch.cat(rows), torch.cat(predictions)), group


def test_it_asks_the_middle_of_each_group_the_one_of_most_doubt_first() -> None:
    pool, group = make_groups([20, 20, 20], [0.2, 0.6, 0.4])
    asked = ClustersStrategy().ask(pool, 3, 0).tolist()
    assert [group[i] for i in asked] == [1, 2, 0]
    for i in asked:  # by a plain loop: no image of the group is nearer to its mean
        rows = [pool.features[j] / pool.features[j].norm() for j in range(len(pool)) if group[j] == group[i]]
        mean = sum(rows, torch.zeros(3)) / len(rows)
        own = pool.features[i] / pool.features[i].norm()
        assert float((own - mean).norm()) <= min(float((row - mean).norm()) for row in rows) + 1e-6


def test_groups_gather_where_doubt_is() -> None:
    pool, group = make_groups([40, 40], [0.66, 1e-4])
    asked = ClustersStrategy().ask(pool, 6, 0).tolist()
    assert sum(group[i] == 0 for i in asked) >= 5


def test_of_very_many_the_most_doubtful_are_grouped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(clusters, "MOST_POINTS", 15)
    pool = make_pool()
    most = set(pool.doubt.argsort(descending=True)[:15].tolist())
    assert set(ClustersStrategy().ask(pool, 6, 0).tolist()) <= most
