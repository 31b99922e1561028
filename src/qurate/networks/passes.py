"""How the rows of a batch pass through a network: whole, shared between processes, or a few at a time.

What is made of the backbone's vectors, bottleneck and loss, sees all rows of the batch in any case. So a loss need not
know how they were made: with several processes each passes its share of the rows, all get the vectors of all, and each
computes the whole loss; with micro-batches the activations of a few rows are kept at a time and made again on the way
back.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from qurate.runtime.company import Company, present_company
from qurate.runtime.precision import at_least_float32
from qurate.runtime.randomness import random_state, set_random_state


class Passes(Protocol):
    """A network in two parts."""

    backbone: nn.Module
    bottleneck: nn.Module


class Rows(NamedTuple):
    """The rows of a pass that are passing now: their positions in it, (n,) int64, and how many it has."""

    positions: Tensor
    total: int


_rows: Rows | None = None
_at_a_time = 0


def present_rows() -> Rows | None:
    """The rows that pass now; None where all of a pass do."""
    return _rows


@contextmanager
def at_a_time(rows: int) -> Iterator[None]:
    """Pass this many rows of a batch at a time within the block; 0 for all."""
    global _at_a_time
    before, _at_a_time = _at_a_time, rows
    try:
        yield
    finally:
        _at_a_time = before


def encode(network: Passes, inputs: Tensor, sizes: Sequence[int]) -> Tensor:
    """Features of all rows of one pass, (sum of sizes, d).

    Args:
        network: F.
        inputs: The rows that this process has, part after part.
        sizes: Rows of each part of the pass in all processes together.
    """
    features: Tensor = network.bottleneck(_pass(network.backbone, inputs, sizes))
    return features


def _pass(backbone: nn.Module, inputs: Tensor, sizes: Sequence[int]) -> Tensor:
    """What the backbone makes of all rows."""
    company = present_company()
    parts = _count_parts(company, sizes)
    if company is None and parts == 1:
        vectors: Tensor = backbone(inputs)
        return vectors
    places = _positions(company, sizes)
    if parts > 1:
        made = _little_by_little(backbone, inputs, places, sum(sizes), parts)
    else:
        with _passing(Rows(places, sum(sizes))):
            made = backbone(inputs)
    return made if company is None else _gather(company, made, sizes)


def _count_parts(company: Company | None, sizes: Sequence[int]) -> int:
    """In how many parts rows pass: as many in every process, for batch norms in them meet."""
    if not _at_a_time:
        return 1
    ranks = range(1 if company is None else company.size)
    bounds = [[(0, size) if company is None else company.bounds(size, rank) for size in sizes] for rank in ranks]
    return -(-max(sum(end - start for start, end in each) for each in bounds) // _at_a_time)


def draw_rows(inputs: Tensor, draw: Callable[[Tensor], Tensor]) -> Tensor:
    """Random numbers for the rows that pass now: those that one process draws when it passes all of them.

    Args:
        inputs: (n, ...).
        draw: Fills an empty tensor.
    """
    rows = present_rows()
    if rows is None:
        return draw(torch.empty_like(inputs))
    drawn = draw(inputs.new_empty((rows.total, *inputs.shape[1:])))
    return drawn[rows.positions.to(inputs.device)]


def _positions(company: Company | None, sizes: Sequence[int]) -> Tensor:
    """Where the rows of this process stand in a pass of several parts."""
    places, before = [], 0
    for size in sizes:
        start, end = (0, size) if company is None else company.bounds(size)
        places.append(torch.arange(before + start, before + end))
        before += size
    return torch.cat(places)


def _little_by_little(backbone: nn.Module, inputs: Tensor, places: Tensor, total: int, parts: int) -> Tensor:
    """Vectors of all rows, of which one of the parts keeps its activations at a time."""
    state, made = random_state(inputs.device), []
    for part, positions in zip(inputs.tensor_split(parts), places.tensor_split(parts), strict=True):
        set_random_state(state, inputs.device)  # each draws for the whole pass, and takes its own
        rows = Rows(positions, total)
        with _passing(rows):
            made.append(checkpoint(backbone, part, use_reentrant=False, context_fn=partial(_twice, rows)))
    return torch.cat(made)


def _twice(rows: Rows) -> tuple[AbstractContextManager[None], AbstractContextManager[None]]:
    """The same rows on the way there and when they are made again."""
    return _passing(rows), _passing(rows)


@contextmanager
def _passing(rows: Rows) -> Iterator[None]:
    global _rows
    before, _rows = _rows, rows
    try:
        yield
    finally:
        _rows = before


class _Gather(torch.autograd.Function):
    """The rows of all processes; every process makes the same loss of them, so each gradient is whole as it comes."""

    @staticmethod
    def forward(ctx: Any, mine: Tensor, company: Company, total: int) -> Tensor:
        ctx.bounds = company.bounds(total)
        return company.gather(mine, total)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        start, end = ctx.bounds
        return gradient[start:end], None, None


def _gather(company: Company, mine: Tensor, sizes: Sequence[int]) -> Tensor:
    counts = [end - start for start, end in map(company.bounds, sizes)]
    whole = at_least_float32(mine)  # exact, and every backend can send it
    parts = [_Gather.apply(part, company, size) for part, size in zip(whole.split(counts), sizes, strict=True)]
    return torch.cat(parts).to(mine.dtype)
