from __future__ import annotations

from dataclasses import replace

import torch
from tests.active.pools import make_pool

from qurate.active.strategies import RandomStrategy


def test_a_larger_count_asks_the_same_and_more() -> None:
    pool = make_pool()
    assert RandomStrategy().ask(pool, 30, 4)[:12].tolist() == RandomStrategy().ask(pool, 12, 4).tolist()


def test_what_was_closed_meanwhile_does_not_change_the_order_of_the_rest() -> None:
    pool = make_pool()
    first = RandomStrategy().ask(pool, 20, 4).tolist()
    closed = torch.zeros(60, dtype=torch.bool)
    closed[first[:7]] = True
    assert RandomStrategy().ask(replace(pool, closed=closed), 13, 4).tolist() == first[7:]


def test_every_image_is_as_likely_as_any_other() -> None:
    pool, counts = make_pool(n=10), torch.zeros(10)
    for seed in range(2000):
        counts[RandomStrategy().ask(pool, 3, seed)] += 1
    assert float((counts / 2000 - 0.3).abs().max()) < 0.045  # more than four standard errors
