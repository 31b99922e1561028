from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from tests.active.pools import make_pool, neighbors_by_hand

from qurate.active import strategies as check
from qurate.active.strategies import NEIGHBORS, CheckStrategy, Pool


def test_it_asks_what_a_plain_loop_asks() -> None:
    pool = make_pool(n=90, closed=True)
    assert pool.trusted is not None
    labels, rows = pool.trusted.tolist(), pool.probabilities.tolist()

    def support(i: int) -> float:
        near = neighbors_by_hand(pool, i, NEIGHBORS)
        return float(rows[i][labels[i]] * sum(rows[j][labels[i]] for j in near) / len(near))

    suspects = [i for i in pool.open.tolist() if labels[i] >= 0]
    assert CheckStrategy().ask(pool, 9, 0).tolist() == sorted(suspects, key=support)[:9]


def test_a_wrong_label_among_others_is_the_first_to_be_checked() -> None:
    features = torch.eye(2).repeat_interleave(20, dim=0) + 0.01 * torch.arange(80).reshape(40, 2) / 80
    probabilities = torch.tensor([[0.97, 0.03], [0.03, 0.97]]).repeat_interleave(20, dim=0)
    probabilities[7] = torch.tensor([0.01, 0.99])  # the model learned it, and is the surest of all
    pool = Pool(features, probabilities, probabilities.argmax(dim=1))
    assert CheckStrategy().ask(pool, 1, 0).tolist() == [7]
    said = CheckStrategy().explain(pool, torch.tensor([7]), ("mug", "pen"))
    assert said == ["It was trusted as pen, and the images most like it are 3 % in favour of that."]


def test_of_very_many_those_that_the_model_is_least_sure_of_are_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(check, "MOST_SUSPECTS", 6)
    pool = make_pool(n=90)
    assert pool.trusted is not None
    suspects = [i for i in range(90) if pool.trusted[i] >= 0]
    least = sorted(suspects, key=lambda i: float(pool.probabilities[i].max()))
    assert set(CheckStrategy().ask(pool, 3, 0).tolist()) <= set(least[:6])
    assert sorted(CheckStrategy().ask(pool, 90, 0).tolist()) == suspects


def test_without_trusted_labels_there_is_nothing_to_check() -> None:
    pool = replace(make_pool(), trusted=None)
    assert CheckStrategy().ask(pool, 5, 0).tolist() == []
    assert CheckStrategy().explain(pool, torch.empty(0, dtype=torch.int64), "abcd") == []
