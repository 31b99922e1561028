"""Seeds are passed, never global: what needs torch's own generator gets it for the length of a block."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Seed torch's global generators inside the block (layer init, dropout); leave them as found."""
    devices = list(range(torch.cuda.device_count()))
    with torch.random.fork_rng(devices=devices):
        torch.manual_seed(seed)
        yield


def random_state(device: torch.device) -> Tensor:
    """The states of torch's own generators: the CPU's, and after it that of a GPU in use."""
    states = [torch.get_rng_state()]
    if device.type == "cuda":
        states.append(torch.cuda.get_rng_state(device))
    return torch.cat(states)


def set_random_state(state: Tensor, device: torch.device) -> None:
    """Continue from a `random_state`; one without a GPU's leaves a GPU's as it is."""
    size = len(torch.get_rng_state())
    torch.set_rng_state(state[:size])
    if device.type == "cuda" and len(state) > size:
        torch.cuda.set_rng_state(state[size:], device)


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
