"""Lanes that cells run in, each a worker process: on this machine, or on a Ray cluster."""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
import threading
from collections.abc import Mapping
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from multiprocessing.connection import wait
from typing import Any, Protocol

from qurate.benchmark.cells import Cell, CellResult
from qurate.benchmark.results import BenchmarkError
from qurate.benchmark.signals import held_back
from qurate.benchmark.worker import Worker
from qurate.runtime.machine import keep_freed_memory

RETRIES = 3
"""How often a cell is tried again when its worker was lost. Our choice."""


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


def start_ray(address: str, processes: int, gpus: int = 0) -> int:
    """Connect to a cluster, or start one here if the address is 'local'.

    Args:
        address: 'local', 'auto' or host:port.
        processes: Lanes wanted; for a cluster 0 means as many as it has room for.
        gpus: GPUs that each lane holds.

    Returns:
        How many lanes there can be.

    Raises:
        BenchmarkError: If Ray is not installed, no cluster answers, or it has no GPU where one is needed.
    """
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")  # else Ray warns that this will be its default
    try:
        import ray
    except ImportError as error:
        raise BenchmarkError(
            f"--ray needs Ray, which is not installed ({error}): pip install 'qurate[ray]'."
        ) from error
    quiet: dict[str, Any] = {"log_to_driver": False, "logging_level": "ERROR"}
    try:
        with held_back():  # Ray leaves a handler of its own for SIGTERM behind, which ours replaces again
            if address == "local":
                ray.init(address="local", num_cpus=processes, include_dashboard=False, **quiet)
            else:
                ray.init(address=address, **quiet)
    except (OSError, RuntimeError, ValueError) as error:  # ConnectionError, and what Ray makes of bad addresses
        raise BenchmarkError(
            f"--ray must be 'local' or the address of a Ray cluster, got '{address}', where none answers ({error})."
        ) from error
    resources: dict[str, float] = ray.cluster_resources()  # type: ignore[no-untyped-call]  # in Ray
    return lanes_for(resources, processes, gpus)


def lanes_for(resources: Mapping[str, float], processes: int, gpus: int) -> int:
    """How many lanes fit in a cluster, each with a CPU and this many GPUs; one without room would wait forever."""
    room = max(1, int(resources.get("CPU", 1)))
    if gpus:
        room = min(room, int(resources.get("GPU", 0)) // gpus)
    if room == 0:
        raise BenchmarkError(
            f"--device cuda needs {gpus} GPU for each cell, and the Ray cluster has "
            f"{resources.get('GPU', 0):g}. Use --device cpu, or a cluster with GPUs."
        )
    return min(processes or room, room)


def stop_ray() -> None:
    """Leave the cluster, if there is one; one that was started here ends."""
    if "ray" in sys.modules:
        sys.modules["ray"].shutdown()


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
