"""Lanes that cells run in, each a worker process: on this machine, or on a Ray cluster."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from collections.abc import Mapping
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
    """

    def __init__(self, worker: Worker) -> None:
        self._worker = worker
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
        return ProcessPoolExecutor(1, mp_context=context, initializer=_begin, initargs=(self._worker,))


class RayLane:
    """An actor on a Ray cluster; Ray replaces a lost one and gives it the cell again.

    Args:
        worker: What runs in it; its machine must see the data and weights at the same paths.
        gpus: GPUs it needs.
    """

    def __init__(self, worker: Worker, gpus: int) -> None:
        import ray

        # A lane lives on, however often its worker is lost; a cell is tried again this many times.
        options = {"num_cpus": 1, "num_gpus": gpus, "max_restarts": -1, "max_task_retries": RETRIES}
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


def lanes_for(resources: Mapping[str, float], processes: int, gpus: int) -> int:
    """How many lanes fit in a cluster, each with a CPU and this many GPUs; one without room would wait forever.

    Args:
        resources: What the cluster has, by Ray's names.
        processes: Lanes wanted; 0 means as many as there is room for.
        gpus: GPUs that each lane holds.

    Raises:
        BenchmarkError: If it has no GPU where one is needed.
    """
    room = max(1, int(resources.get("CPU", 1)))
    if gpus:
        room = min(room, int(resources.get("GPU", 0)) // gpus)
    if room == 0:
        raise BenchmarkError(
            f"--device cuda needs {gpus} GPU for each cell, and the Ray cluster has "
            f"{resources.get('GPU', 0):g}. Use --device cpu, or a cluster with GPUs."
        )
    return min(processes or room, room)


_worker: Worker | None = None


def _begin(worker: Worker) -> None:
    """In a new process: keep the worker, and end when the benchmark is killed."""
    global _worker
    _worker = worker
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
