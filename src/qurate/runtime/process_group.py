"""Several processes that train one network: who they are, and how they exchange tensors and objects."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from lightning_fabric.plugins.environments.lightning import find_free_network_port
from torch import Tensor

from qurate.errors import QurateError
from qurate.runtime.machine import available_cores


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


READY = "ready"
"""What a peer says when it is about to meet the others."""


class PeerError(QurateError, RuntimeError):
    """A process that was to help is gone; the message says what it said last."""


def started_outside() -> int:
    """How many processes torchrun or a cluster started to work together, this one among them; 1 where it did not."""
    if "LOCAL_RANK" in os.environ or "TORCHELASTIC_RUN_ID" in os.environ:
        return int(os.environ.get("WORLD_SIZE", "1"))
    return int(os.environ.get("SLURM_NTASKS", "1")) if "SLURM_STEP_ID" in os.environ else 1


class Peers:
    """Helper processes on this machine; they are killed by `close`, and end by themselves if this process dies.

    Args:
        module: What they run; told which of them each is, and the port to meet at.
        arguments: What else they are told.
        count: How many.

    Raises:
        PeerError: If one of them does not start.
    """

    def __init__(self, module: str, arguments: Sequence[str], count: int) -> None:
        self.port = find_free_network_port()
        """Where they meet, on this machine."""
        paths = (str(Path(__file__).parents[2]), os.environ.get("PYTHONPATH", ""))
        environment = {
            **os.environ,
            "OMP_NUM_THREADS": str(max(1, min(torch.get_num_threads(), available_cores() // (count + 1)))),
            "PYTHONPATH": os.pathsep.join(filter(None, paths)),
        }
        self._said = [tempfile.TemporaryFile() for _ in range(count)]  # noqa: SIM115  # open as long as the processes
        self._processes = [
            subprocess.Popen(
                (sys.executable, "-m", module, str(number), str(self.port), *arguments),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=said,
                env=environment,
                text=True,
            )
            for number, said in enumerate(self._said, start=1)
        ]
        self._wait_until_ready()

    def why_gone(self) -> str:
        """What a peer that has ended said last; empty where none has."""
        for process, said in zip(self._processes, self._said, strict=True):
            with suppress(subprocess.TimeoutExpired):
                process.wait(timeout=1)
                said.seek(0)
                lines = said.read().decode(errors="replace").strip().splitlines()
                return lines[-1] if lines else f"exit code {process.returncode}"
        return ""

    def close(self) -> None:
        """Kill them."""
        for process in self._processes:
            process.kill()
        for process, said in zip(self._processes, self._said, strict=True):
            process.wait()
            for pipe in (process.stdin, process.stdout, said):
                if pipe is not None:
                    with suppress(OSError):  # what was not yet read by the process that is gone
                        pipe.close()

    def _wait_until_ready(self) -> None:
        for process in self._processes:
            assert process.stdout is not None
            if not any(line.strip() == READY for line in process.stdout):  # a library may print as it is loaded
                said = self.why_gone()
                self.close()
                raise PeerError(f"A process for `devices` could not be started ({said}). Use `devices=1`.")
