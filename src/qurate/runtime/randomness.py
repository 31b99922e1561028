"""Seeds are passed, never global: what needs torch's own generator gets it for the length of a block."""

from __future__ import annotations

import hashlib
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
        stream: Numbers that tell streams of one run apart; of a run, the line of Algorithm 1 and the round.
    """
    return torch.Generator().manual_seed(stream_seed(seed, *stream))


def stream_seed(seed: int, *stream: int) -> int:
    """The seed of such a generator, for what makes its own: a hash of all the numbers in their order, below 2 ** 63."""
    hashed = hashlib.sha256(repr((seed, *stream)).encode()).digest()
    return int.from_bytes(hashed[:8], "little") % 2**63
