from __future__ import annotations

import torch

from qurate.runtime.randomness import generator, seeded


def test_a_seeded_block_repeats_and_leaves_no_trace() -> None:
    before = torch.random.get_rng_state()
    draws = []
    for _ in range(2):
        with seeded(7):
            draws.append(torch.rand(3))
    assert torch.equal(*draws)
    assert torch.equal(torch.random.get_rng_state(), before)


def test_streams_of_one_seed_differ_and_repeat() -> None:
    values = {torch.rand(1, generator=generator(seed, a, b)).item() for seed in (0, 1) for a in (0, 1) for b in (0, 1)}
    assert len(values) == 8
    assert torch.equal(torch.rand(4, generator=generator(5, 1)), torch.rand(4, generator=generator(5, 1)))
