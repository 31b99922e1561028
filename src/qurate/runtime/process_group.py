"""The process group that trains one network: its ranks, and how they exchange tensors and objects."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor


@dataclass(frozen=True, eq=False)
class ProcessGroup:
    """The processes of a run, seen from one of them.

    Of n rows the process of rank r has those from n * r // size to n * (r + 1) // size, so that sizes that do not
    divide differ by one.

    Args:
        rank: Rank of this process; rank 0 selects, writes files and reports.
        size: Number of processes.
        device: Where this process computes.
        cpu_group: torch's group for objects and CPU tensors; None for the default group.
    """

    rank: int
    size: int
    device: torch.device
    cpu_group: dist.ProcessGroup | None = None

    @property
    def is_rank_zero(self) -> bool:
        """Whether this process selects, writes files and reports."""
        return self.rank == 0

    def bounds(self, total: int, rank: int | None = None) -> tuple[int, int]:
        """Start and end of a rank's share of `total` rows; of this process unless another rank is given."""
        rank = self.rank if rank is None else rank
        return total * rank // self.size, total * (rank + 1) // self.size

    def broadcast(self, value: Any = None) -> Any:
        """The value of rank 0, in every process; the other ranks pass nothing."""
        values = [value]
        dist.broadcast_object_list(values, src=0, group=self.cpu_group)
        return values[0]

    def all_reduce(self, values: Tensor) -> Tensor:
        """The sum over all processes, in place."""
        dist.all_reduce(values, group=self._group_of(values))
        return values

    def all_gather(self, rows: Tensor, total: int) -> Tensor:
        """The rows of all ranks in order: (n_r, ...) in each process to (total, ...)."""
        counts = [end - start for start, end in (self.bounds(total, rank) for rank in range(self.size))]
        padded = rows.new_zeros((max(counts), *rows.shape[1:]))  # collectives need equal sizes
        padded[: len(rows)] = rows
        parts = [torch.empty_like(padded) for _ in counts]
        dist.all_gather(parts, padded, group=self._group_of(rows))
        return torch.cat([part[:count] for part, count in zip(parts, counts, strict=True)])

    def _group_of(self, values: Tensor) -> dist.ProcessGroup | None:
        return self.cpu_group if values.device.type == "cpu" else None


_current: ProcessGroup | None = None


def current_group() -> ProcessGroup | None:
    """The group that shares the present computation; None where this process computes alone."""
    return _current


@contextmanager
def use_group(group: ProcessGroup | None) -> Iterator[None]:
    """Share what is computed within the block between the processes of a group; None to compute it alone."""
    global _current
    before, _current = _current, group
    try:
        yield
    finally:
        _current = before


def external_world_size() -> int:
    """How many processes torchrun or Slurm started for this job; 1 where neither did."""
    if "LOCAL_RANK" in os.environ or "TORCHELASTIC_RUN_ID" in os.environ:
        return int(os.environ.get("WORLD_SIZE", "1"))
    return int(os.environ.get("SLURM_NTASKS", "1")) if "SLURM_STEP_ID" in os.environ else 1
