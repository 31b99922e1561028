"""Several processes that train one network: who they are, and what they tell each other."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor


@dataclass(frozen=True, eq=False)
class Company:
    """The processes of a run, as one of them sees it.

    Of n rows the process of rank r has those from n * r // size to n * (r + 1) // size, so that sizes that do not
    divide differ by one.

    Args:
        rank: Which this one is; 0 leads.
        size: How many there are.
        device: Where this one computes.
        words: The group for what is no tensor on a device; None for the only group there is.
    """

    rank: int
    size: int
    device: torch.device
    words: dist.ProcessGroup | None = None

    @property
    def leads(self) -> bool:
        """Whether this process decides, writes and speaks."""
        return self.rank == 0

    def bounds(self, total: int, rank: int | None = None) -> tuple[int, int]:
        """The first of so many rows that a process has, this one unless another is named, and that after the last."""
        rank = self.rank if rank is None else rank
        return total * rank // self.size, total * (rank + 1) // self.size

    def tell(self, thing: Any = None) -> Any:
        """What the leader has to say, in every process; the others give nothing."""
        said = [thing]
        dist.broadcast_object_list(said, src=0, group=self.words)
        return said[0]

    def add(self, values: Tensor) -> Tensor:
        """The sum over all processes, in place."""
        dist.all_reduce(values, group=self._group(values))
        return values

    def gather(self, rows: Tensor, total: int) -> Tensor:
        """All rows in their order, of which each process gives its own: (n_r, ...) to (total, ...)."""
        counts = [end - start for start, end in (self.bounds(total, rank) for rank in range(self.size))]
        padded = rows.new_zeros((max(counts), *rows.shape[1:]))  # collectives want one size of all
        padded[: len(rows)] = rows
        parts = [torch.empty_like(padded) for _ in counts]
        dist.all_gather(parts, padded, group=self._group(rows))
        return torch.cat([part[:count] for part, count in zip(parts, counts, strict=True)])

    def _group(self, values: Tensor) -> dist.ProcessGroup | None:
        return self.words if values.device.type == "cpu" else None


_company: Company | None = None


def present_company() -> Company | None:
    """The processes that do together what is done now; None where this one works alone."""
    return _company


@contextmanager
def together(company: Company | None) -> Iterator[None]:
    """A block in which all processes do the same, each its share of the rows; None is a block of one alone."""
    global _company
    before, _company = _company, company
    try:
        yield
    finally:
        _company = before
