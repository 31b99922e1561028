"""Lanes that cells run in, each a worker process: on this machine, or on a Ray cluster."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from multiprocessing.connection import wait
from typing import Any, Protocol

from qurate.benchmark.cells import Cell, CellResult
from qurate.benchmark.results import BenchmarkError
from qurate.benchmark.worker import Worker
from qurate.runtime.cluster import RETRIES
from qurate.runtime.machine import keep_freed_memory
from qurate.runtime.signals import held_back


class Lane(Protocol):
    """Runs one cell at a time."""

    def submit(self, cell: Cell) -> Future[CellResult]:
        """Start a cell."""
        ...

    def close(self) -> None:
        """End the worker, whatever it does."""
        ...


class ProcessLane:
    """A process of its own on this machine; a lost one is replaced.

    Args:
        worker: What runs in it.
        gpus: Which GPUs it sees, by their numbers here; as many as there are unless given.
    """

    def __init__(self, worker: Worker, gpus: str | None = None) -> None:
        self._worker, self._gpus = worker, gpus
        self._pool = self._start()

    def submit(self, cell: Cell) -> Future[CellResult]:
        """Start a cell in the process."""
        with held_back():  # the first cell starts the process
            try:
                return self._pool.submit(_run, cell)
            except BrokenProcessPool:
                self._pool = self._start()
                return self._pool.submit(_run, cell)

    def close(self) -> None:
        """Kill the process."""
        processes = list((self._pool._processes or {}).values())  # an executor offers no other way before Python 3.14
        self._pool.shutdown(wait=False, cancel_futures=True)
        for process in processes:
            process.kill()

    def _start(self) -> ProcessPoolExecutor:
        context = multiprocessing.get_context("spawn")
        return ProcessPoolExecutor(1, mp_context=context, initializer=_begin, initargs=(self._worker, self._gpus))


def share_gpus(visible: Sequence[str], lanes: int, each: int) -> list[str | None]:
    """The GPUs of each lane, by number; lanes that are too many share them, and without GPUs there is nothing to share.

    Example:
        >>> share_gpus(["0", "1", "2", "3"], lanes=2, each=2)
        ['0,1', '2,3']
    """
    if not each or len(visible) < each:
        return [None] * lanes
    groups = [",".join(visible[start : start + each]) for start in range(0, len(visible) - each + 1, each)]
    return [groups[lane % len(groups)] for lane in range(lanes)]


class RayLane:
    """An actor on a Ray cluster; Ray replaces a lost one and gives it the cell again.

    Args:
        worker: What runs in it; its machine must see the data and weights at the same paths.
        gpus: GPUs it needs.
        cpus: CPUs it needs: one for each process of a cell.
    """

    def __init__(self, worker: Worker, gpus: int, cpus: int = 1) -> None:
        import ray

        # A lane lives on, however often its worker is lost; a cell is tried again this many times.
        options = {"num_cpus": cpus, "num_gpus": gpus, "max_restarts": -1, "max_task_retries": RETRIES}
        self._actor: Any = ray.remote(_Host).options(**options).remote(worker)

    def submit(self, cell: Cell) -> Future[CellResult]:
        """Start a cell in the actor."""
        future: Future[CellResult] = self._actor.run.remote(cell).future()
        return future

    def close(self) -> None:
        """Kill the actor."""
        import ray

        ray.kill(self._actor)


class _Host:
    """What an actor is made of: a worker, whichever it is."""

    def __init__(self, worker: Worker) -> None:
        keep_freed_memory()
        self._worker = worker

    def run(self, cell: Cell) -> CellResult:
        return self._worker.run(cell)


def lanes_for(machines: Sequence[Mapping[str, float]], processes: int, gpus: int, cpus: int = 1) -> int:
    """How many lanes fit in a cluster, each with so many CPUs and GPUs; one without room would wait forever.

    Args:
        machines: What each machine of the cluster has, by Ray's names.
        processes: Lanes wanted; 0 means as many as there is room for.
        gpus: GPUs that each lane holds.
        cpus: CPUs that each lane holds.

    Raises:
        BenchmarkError: If no machine has room for one.
    """
    of_cpus = [int(machine.get("CPU", 0)) // cpus for machine in machines]
    of_gpus = [int(machine.get("GPU", 0)) // gpus for machine in machines] if gpus else of_cpus
    room = sum(map(min, of_cpus, of_gpus))
    if room == 0:
        needed = f"{cpus} CPU{'' if cpus == 1 else 's'}" + (
            f" and {gpus} GPU{'' if gpus == 1 else 's'}" if gpus else ""
        )
        raise BenchmarkError(
            f"each cell needs {needed} on one machine, and none of the Ray cluster has them. Use fewer --devices"
            + (", --device cpu, or a cluster with GPUs." if gpus else ", or larger machines.")
        )
    return min(processes or room, room)


_worker: Worker | None = None


def _begin(worker: Worker, gpus: str | None) -> None:
    """In a new process: keep the worker, and end when the benchmark is killed."""
    global _worker
    _worker = worker
    if gpus is not None:  # before torch looks for any
        os.environ["CUDA_VISIBLE_DEVICES"] = gpus
    keep_freed_memory()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the benchmark, which ends its workers
    threading.Thread(target=_follow_parent, daemon=True).start()


def _follow_parent() -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        wait([parent.sentinel])
        os._exit(1)


def _run(cell: Cell) -> CellResult:
    assert _worker is not None, "the process was begun with a worker"
    return _worker.run(cell)
