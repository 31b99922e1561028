"""Who runs cells: worker processes on this machine or on a Ray cluster, and the schedule over them."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
import traceback
import warnings
from collections import Counter
from collections.abc import Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from dataclasses import replace
from multiprocessing import connection
from pathlib import Path
from typing import Any, Protocol

import torch

from qurate.benchmark.asking import Base, run_asked_cell
from qurate.benchmark.cell import Cell, CellResult, Pretrained, run_cell
from qurate.benchmark.folder import BenchmarkFolder, current_commit
from qurate.benchmark.results import BenchmarkError
from qurate.config import RunConfig
from qurate.data.domains import DataWarning
from qurate.data.images import OnProgress
from qurate.data.samples import Split
from qurate.data.suites import Suite, read_suite_split, thin_to_tail
from qurate.embedding.embed import embed_split
from qurate.runtime.cluster import RETRIES
from qurate.runtime.machine import keep_freed_memory
from qurate.runtime.signals import held_back


class Worker:
    """Runs cells one after another, and says what went wrong instead of stopping.

    Args:
        suite: Where splits come from.
        data: Folder of its images.
        weights: Weights as this machine finds them: a word or a file.
    """

    def __init__(self, suite: Suite, data: Path | None, weights: str) -> None:
        self.suite = suite
        self.data = data
        self.weights = weights
        self.commit = current_commit()  # of the process that starts the benchmark, once for all its workers
        self._split: tuple[object, Split] | None = None
        self._pretrained: Pretrained | None = None
        self._base: Base | None = None

    def run(self, cell: Cell) -> CellResult:
        """The result of a cell, or its error."""
        torch.set_num_threads(1)  # several workers share the cores, and small heads lose by more
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", DataWarning)  # said once, before the workers began
                split = self.load(cell)
            config = self.localize(cell.config)
            if cell.asker:
                result, self._base = run_asked_cell(
                    split, cell, config, before=self._pretrained, base=self._base, commit=self.commit
                )
                self._pretrained = self._base.pretrained
            else:
                result, self._pretrained = run_cell(split, cell, config, before=self._pretrained, commit=self.commit)
            return result
        except Exception:
            return CellResult(error=traceback.format_exc())

    def load(self, cell: Cell, on_progress: OnProgress | None = None) -> Split:
        """The split of a cell, thinned as it asks for; its embeddings, where a frozen backbone makes them."""
        seed = cell.config.seed if cell.protocol == "drawn" else 0
        validation = "validation" in cell.rules
        wanted = (cell.scenario, cell.shots, seed, validation)
        if self._split is None or self._split[0] != wanted:
            split = self.read(cell)
            if cell.config.network.backbone == "none":
                device = cell.config.execution.device
                split = embed_split(split, cell.backbone, self.weights, device=device, on_progress=on_progress)
            self._split = wanted, split
        return thin_to_tail(self._split[1], cell.imbalance, cell.config.seed)

    def read(self, cell: Cell) -> Split:
        """The split of a cell as it lies on disk, not thinned."""
        return read_suite_split(
            self.suite,
            self.data or Path(),
            cell.scenario,
            shots=cell.shots,
            seed=cell.config.seed,
            protocol=cell.protocol,
            validation="validation" in cell.rules,
        )

    def localize(self, config: RunConfig) -> RunConfig:
        """The run with weights where they lie here."""
        if config.network.backbone == "none" or self.suite.generated:
            return config
        return replace(config, network=replace(config.network, weights=self.weights))


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
        connection.wait([parent.sentinel])
        os._exit(1)


def _run(cell: Cell) -> CellResult:
    assert _worker is not None, "the process was begun with a worker"
    return _worker.run(cell)


class CellListener(Protocol):
    """Who follows a benchmark."""

    def started(self, cell: Cell) -> None:
        """A cell runs."""
        ...

    def ended(self, cell: Cell, result: CellResult) -> None:
        """A cell is done, or has failed."""
        ...


def run_cells(
    cells: Sequence[Cell], lanes: Sequence[Lane], folder: BenchmarkFolder, audience: CellListener
) -> list[Cell]:
    """Run all cells that are not finished.

    A lane keeps the pre-training it has: cells that differ in selection alone follow each other in it.

    Args:
        cells: In the order of the tables.
        lanes: Where they run.
        folder: Where results go.
        audience: Told of each cell.

    Returns:
        The cells that failed.
    """
    folder.write_tables(cells)
    return _Schedule(cells, lanes, folder, audience).run()


class _Schedule:
    """Cells that wait, cells that run, and what each lane has in its memory."""

    def __init__(
        self, cells: Sequence[Cell], lanes: Sequence[Lane], folder: BenchmarkFolder, audience: CellListener
    ) -> None:
        self._cells, self._lanes, self._folder, self._audience = cells, lanes, folder, audience
        self._pending = [cell for cell in cells if not folder.is_finished(cell)]
        self._running: dict[Future[CellResult], tuple[int, Cell]] = {}
        self._held: dict[int, str] = {}  # the pre-training that each lane has
        self._lost: Counter[str] = Counter()  # how often a cell's worker was lost

    def run(self) -> list[Cell]:
        order = {cell.name: i for i, cell in enumerate(self._cells)}
        failed: list[Cell] = []
        while self._pending or self._running:
            self._fill_lanes()
            done = wait(self._running, return_when=FIRST_COMPLETED).done
            for future in sorted(done, key=lambda future: order[self._running[future][1].name]):
                number, cell = self._running.pop(future)
                if self._failed(number, cell, _result(future)):
                    failed.append(cell)
        return sorted(failed, key=lambda cell: order[cell.name])

    def _fill_lanes(self) -> None:
        busy = {number for number, _ in self._running.values()}
        for number, lane in enumerate(self._lanes):
            if number in busy or not self._pending:
                continue
            others = {key for other, key in self._held.items() if other != number}
            cell = next_cell(self._pending, self._held.get(number), others)
            self._pending.remove(cell)
            self._held[number] = cell.pretraining
            self._running[lane.submit(cell)] = number, cell
            self._audience.started(cell)

    def _failed(self, number: int, cell: Cell, result: CellResult | None) -> bool:
        """Keep what came of a cell, and say whether that is an error; if its worker was lost, it waits again."""
        if result is None and self._lost[cell.name] < RETRIES:
            self._lost[cell.name] += 1
            self._pending.insert(0, cell)
            del self._held[number]
            return False
        result = result or CellResult(error=f"The worker process was lost {RETRIES + 1} times. Out of memory?\n")
        self._folder.keep(cell, result)
        self._folder.write_tables(self._cells)
        self._audience.ended(cell, result)
        return bool(result.error)


def next_cell(pending: Sequence[Cell], mine: str | None, others: set[str]) -> Cell:
    """The first cell on the lane's own pre-training, else the first on one that no other lane has, else the first."""
    own = (cell for cell in pending if cell.pretraining == mine)
    new = (cell for cell in pending if cell.pretraining not in others)
    return next(own, None) or next(new, None) or pending[0]


def _result(future: Future[CellResult]) -> CellResult | None:
    """What came of a cell; None if its process was lost, an error if the cluster gave up."""
    try:
        return future.result()
    except BrokenProcessPool:
        return None
    except Exception as error:  # Ray has tried again as often as it may
        return CellResult(error=f"{type(error).__name__}: {error}\n")
