from __future__ import annotations

import math

import pytest
import torch
from tests.active.pools import make_pool, neighbors_by_hand

from qurate.active import strategies as density
from qurate.active.strategies import NEIGHBORS, DensityStrategy, Pool


def asked_by_hand(pool: Pool, count: int) -> list[int]:
    """The same by plain loops over lists."""
    rows = pool.probabilities.tolist()
    near = {i: neighbors_by_hand(pool, i, NEIGHBORS) for i in pool.open.tolist()}

    def doubt(row: list[float]) -> float:
        return -sum(p * math.log(p) for p in row if p > 0)

    def score(i: int) -> float:
        members = [rows[j] for j in (i, *near[i])]
        mean = [sum(column) / len(members) for column in zip(*members, strict=True)]
        return doubt(mean) * sum(map(doubt, members)) / len(members)

    order = sorted(near, key=lambda i: -score(i))
    asked: list[int] = []
    for i in order:
        if not any(i in near[j] or j in near[i] for j in asked):
            asked.append(i)
    return (asked + [i for i in order if i not in asked])[:count]


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("count", [3, 40])
def test_it_asks_what_a_plain_loop_asks(seed: int, count: int) -> None:
    pool = make_pool(seed=seed, closed=True)
    assert DensityStrategy().ask(pool, count, 0).tolist() == asked_by_hand(pool, count)


def groups(*predictions: list[float]) -> Pool:
    """Thirty images around a direction of its own for each of these predictions."""
    rng = torch.Generator().manual_seed(0)
    middles = torch.eye(len(predictions)).repeat_interleave(30, dim=0)
    features = middles + 0.05 * torch.randn(middles.shape, generator=rng)
    return Pool(features, torch.tensor(predictions).repeat_interleave(30, dim=0))


def test_a_lonely_doubt_is_no_dense_one() -> None:
    pool = groups([0.98, 0.01, 0.01], [0.4, 0.3, 0.3], [0.01, 0.98, 0.01])
    pool.probabilities[3] = torch.tensor([0.34, 0.33, 0.33])  # the most doubtful of all, among certain ones
    asked = DensityStrategy().ask(pool, 2, 0).tolist()
    assert all(30 <= i < 60 for i in asked)


def test_certain_neighbours_that_disagree_are_no_doubt_of_theirs() -> None:
    """The mean of these is undecided, but each is sure: the neighbourhood must doubt too."""
    pool = groups([0.5, 0.5, 0.0], [0.6, 0.2, 0.2], [0.0, 0.0, 1.0])
    pool.probabilities[:30] = torch.eye(3)[torch.arange(30) % 2]
    assert 30 <= int(DensityStrategy().ask(pool, 1, 0)) < 60


def test_no_two_neighbours_are_asked_while_there_are_others() -> None:
    pool = make_pool(n=200)
    asked = DensityStrategy().ask(pool, 8, 0).tolist()
    for i in asked:
        assert not set(neighbors_by_hand(pool, i, NEIGHBORS)) & set(asked)


def test_an_answer_takes_the_doubt_out_of_its_neighbourhood() -> None:
    pool = groups([0.4, 0.3, 0.3], [0.5, 0.3, 0.2])
    assert int(DensityStrategy().ask(pool, 1, 0)) < 30
    answered = pool.probabilities.clone()
    answered[:30] = torch.tensor([1.0, 0.0, 0.0])
    closed = torch.arange(60) < 25
    assert int(DensityStrategy().ask(Pool(pool.features, answered, closed=closed), 1, 0)) >= 30


def test_of_very_many_only_the_most_doubtful_are_looked_at_and_a_large_count_still_gets_all(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(density, "MOST_MIDDLES", 20)
    pool = make_pool()
    most = set(pool.doubt.argsort(descending=True)[:20].tolist())
    assert set(DensityStrategy().ask(pool, 5, 0).tolist()) <= most
    asked = DensityStrategy().ask(pool, 50, 0).tolist()
    assert len(set(asked)) == 50
    assert set(asked[:20]) == most


def test_the_words_name_what_the_neighbourhood_wavers_between() -> None:
    pool = groups([0.5, 0.45, 0.05], [0.0, 0.0, 1.0])
    asked = torch.tensor([4, 40])
    assert DensityStrategy().explain(pool, asked, ("mug", "cup", "pen")) == [
        "Of this image and the 10 most like it the model cannot tell whether they are mug or cup.",
        "Of this image and the 10 most like it the model cannot tell whether they are pen or one of the 2 other "
        "classes.",
    ]
