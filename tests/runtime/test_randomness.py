from __future__ import annotations

import itertools

import torch

from qurate.runtime.randomness import generator, seeded, stream_seed


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


def test_no_two_pairs_of_seed_and_stream_draw_the_same_numbers() -> None:
    streams = [(), *((a,) for a in range(25)), *itertools.product(range(5), repeat=2)]
    pairs = [(seed, *stream) for seed in range(40) for stream in streams]
    assert len({tuple(torch.rand(4, generator=generator(*pair)).tolist()) for pair in pairs}) == len(pairs)


def test_the_next_seed_and_stream_are_another_generator() -> None:
    assert stream_seed(0, 1) != stream_seed(1, 2)
    assert not torch.equal(torch.rand(4, generator=generator(0, 1)), torch.rand(4, generator=generator(1, 2)))


def test_streams_are_the_same_on_every_machine_and_in_every_process() -> None:
    assert (stream_seed(0), stream_seed(0, 1), stream_seed(2**32 - 1, 20, 3)) == (
        7165777869350885009,
        3584192610069039781,
        3936078243205109851,
    )
