"""Seeds are passed, never global: what needs torch's own generator gets it for the length of a block."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Seed torch's global generators inside the block (layer init, dropout); leave them as found."""
    devices = list(range(torch.cuda.device_count()))
    with torch.random.fork_rng(devices=devices):
        torch.manual_seed(seed)
        yield


def generator(seed: int, *stream: int) -> torch.Generator:
    """A generator of its own for one stream of numbers.

    Args:
        seed: The run's seed.
        stream: Small non-negative numbers that tell streams of one run apart.
    """
    mixed = seed
    for number in stream:
        # A multiplicative step of splitmix64: neighbouring numbers lead far apart.
        mixed = ((mixed ^ (number + 0x9E3779B9)) * 0xBF58476D1CE4E5B9) % (2**63)
    return torch.Generator().manual_seed(mixed)


def stream_seed(seed: int, *stream: int) -> int:
    """The seed of such a generator, for what makes its own."""
    return generator(seed, *stream).initial_seed()
