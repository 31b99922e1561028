"""Where cells run: in processes on this machine or on a Ray cluster."""

from __future__ import annotations

import copy
import pickle
import traceback
import warnings
from collections import Counter
from collections.abc import Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from concurrent.futures.process import BrokenProcessPool
from dataclasses import replace
from pathlib import Path
from typing import Any, Protocol

import torch

from qurate.benchmark.asking import BaseRun, run_query_cell
from qurate.benchmark.cell import Cell, CellResult, Pretrained, run_cell
from qurate.benchmark.folder import BenchmarkFolder, current_commit
from qurate.benchmark.results import BenchmarkError
from qurate.config import ExecutionConfig, RunConfig
from qurate.data.domains import DataWarning
from qurate.data.images import OnProgress
from qurate.data.samples import Split
from qurate.data.suites import Suite, hide_classes, read_suite_split, thin_to_tail
from qurate.embedding.embed import embed_split
from qurate.runtime.cluster import RETRIES
from qurate.runtime.machine import keep_freed_memory
from qurate.runtime.processes import WorkerProcess


class CellRunner:
    """Runs cells one after another, keeps what they share, and reports an error instead of raising it.

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
        self._base: BaseRun | None = None

    def run(self, cell: Cell) -> CellResult:
        """The result of a cell, or its error."""
        torch.set_num_threads(1)  # several workers share the cores, and small heads lose by more
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", DataWarning)  # printed once, before the workers began
                split = self.load(cell)
            config = self.localize(cell.config)
            if cell.query_strategy:
                result, self._base = run_query_cell(split, cell, config, self._base, self._pretrained, self.commit)
                self._pretrained = self._base.pretrained
            else:
                result, self._pretrained = run_cell(split, cell, config, before=self._pretrained, commit=self.commit)
            return result
        except Exception:
            return CellResult(error=traceback.format_exc())

    def load(self, cell: Cell, on_progress: OnProgress | None = None) -> Split:
        """The split of a cell, embedded where the backbone is frozen, with classes thinned and hidden as it says."""
        seed = cell.config.seed if cell.protocol == "drawn" else 0
        wanted = cell.scenario, cell.shots, seed, "validation" in cell.rules
        if self._split is None or self._split[0] != wanted:
            split = self.read(cell)
            if cell.config.network.backbone == "none":
                device = cell.config.execution.device
                split = embed_split(split, cell.backbone, self.weights, device=device, on_progress=on_progress)
            self._split = wanted, split
        thinned = thin_to_tail(self._split[1], cell.imbalance, cell.config.seed)
        return hide_classes(thinned, cell.unknown, cell.missing_classes, cell.config.seed)

    def read(self, cell: Cell) -> Split:
        """The split of a cell as it lies on disk, with all classes and not thinned."""
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
        """The config with the weights where they lie on this machine."""
        if config.network.backbone == "none" or self.suite.generated:
            return config
        return replace(config, network=replace(config.network, weights=self.weights))


class Executor(Protocol):
    """Runs one cell at a time."""

    def submit(self, cell: Cell) -> Future[CellResult]:
        """Start a cell."""
        ...

    def close(self) -> None:
        """End the process, even in the middle of a cell."""
        ...


class ProcessExecutor:
    """A process on this machine that runs one cell at a time; a lost process is replaced.

    Args:
        runner: Runs the cells, in that process.
        gpus: The GPUs it may use, as in CUDA_VISIBLE_DEVICES; all unless given.
    """

    def __init__(self, runner: CellRunner, gpus: str | None = None) -> None:
        own = copy.copy(runner)
        own._split = None  # it reads its split from the cache: this process would hold a copy for each of them
        environment = {} if gpus is None else {"CUDA_VISIBLE_DEVICES": gpus}
        self._process = WorkerProcess(pickle.dumps(own.run), environment=environment)

    def submit(self, cell: Cell) -> Future[CellResult]:
        """Start a cell in the process."""
        return self._process.submit(cell)

    def close(self) -> None:
        """Kill the process."""
        self._process.close()


def share_gpus(visible: Sequence[str], count: int, each: int) -> list[str | None]:
    """The GPUs of each executor; executors that are too many share them. None where cells need no GPU.

    Example:
        >>> share_gpus(["0", "1", "2", "3"], count=2, each=2)
        ['0,1', '2,3']
    """
    if not each or len(visible) < each:
        return [None] * count
    groups = [",".join(visible[start : start + each]) for start in range(0, len(visible) - each + 1, each)]
    return [groups[number % len(groups)] for number in range(count)]


class RayExecutor:
    """An actor on a Ray cluster; Ray replaces a lost one and gives it the cell again.

    Args:
        runner: Runs the cells; every machine must see the data and weights at the same paths.
        gpus: GPUs of each cell.
        cpus: CPUs of each cell: one for each of its processes.
    """

    def __init__(self, runner: CellRunner, gpus: int, cpus: int = 1) -> None:
        import ray

        # The actor is restarted however often it is lost; a cell is tried again this many times.
        options = {"num_cpus": cpus, "num_gpus": gpus, "max_restarts": -1, "max_task_retries": RETRIES}
        self._actor: Any = ray.remote(_Actor).options(**options).remote(runner)

    def submit(self, cell: Cell) -> Future[CellResult]:
        """Start a cell in the actor."""
        future: Future[CellResult] = self._actor.run.remote(cell).future()
        return future

    def close(self) -> None:
        """Kill the actor."""
        import ray

        ray.kill(self._actor)


class _Actor:
    def __init__(self, runner: CellRunner) -> None:
        keep_freed_memory()
        self._runner = runner

    def run(self, cell: Cell) -> CellResult:
        return self._runner.run(cell)


def gpus_per_cell(execution: ExecutionConfig, machines: Sequence[Mapping[str, float]]) -> int:
    """How many GPUs each cell needs on a cluster; with device 'auto' as many as its devices, where a machine has them.

    Args:
        execution: Of the cells.
        machines: What each machine of the cluster has, by Ray's names. The one that starts the cells may be none of
            them, so what it has does not matter.
    """
    there = any(machine.get("GPU", 0) >= execution.devices for machine in machines)
    return execution.devices if execution.device == "cuda" or (execution.device == "auto" and there) else 0


def executors_that_fit(machines: Sequence[Mapping[str, float]], processes: int, gpus: int, cpus: int = 1) -> int:
    """How many executors fit in a cluster; one without room would wait forever.

    Args:
        machines: What each machine of the cluster has, by Ray's names.
        processes: Executors wanted; 0 means as many as there is room for.
        gpus: GPUs of each executor.
        cpus: CPUs of each executor.

    Raises:
        BenchmarkError: If no machine has room for one.
    """
    room = 0
    for machine in machines:
        by_cpus = int(machine.get("CPU", 0)) // cpus
        room += min(by_cpus, int(machine.get("GPU", 0)) // gpus) if gpus else by_cpus
    if room == 0:
        needed = " and ".join(f"{n} {kind}{'s' * (n > 1)}" for n, kind in ((cpus, "CPU"), (gpus, "GPU")) if n)
        raise BenchmarkError(
            f"each cell needs {needed} on one machine, and none of the Ray cluster has them. Use fewer --devices"
            + (", --device cpu, or a cluster with GPUs." if gpus else ", or larger machines.")
        )
    return min(processes or room, room)


class CellMonitor(Protocol):
    """Follows a benchmark."""

    def started(self, cell: Cell) -> None:
        """A cell runs."""
        ...

    def ended(self, cell: Cell, result: CellResult) -> None:
        """A cell is done, or has failed."""
        ...


def run_cells(
    cells: Sequence[Cell], executors: Sequence[Executor], folder: BenchmarkFolder, monitor: CellMonitor
) -> list[Cell]:
    """Run all cells that are not finished; cells that can share pre-training follow each other in one executor.

    Args:
        cells: In the order of the tables.
        executors: Where they run.
        folder: Where results go.
        monitor: Is told of each cell.

    Returns:
        The cells that failed.
    """
    folder.write_tables(cells)
    order = {cell.name: i for i, cell in enumerate(cells)}
    pending = [cell for cell in cells if not folder.is_finished(cell)]
    running: dict[Future[CellResult], tuple[Executor, Cell]] = {}
    pretraining: dict[Executor, str] = {}  # what each executor holds
    lost: Counter[str] = Counter()  # how often a cell's worker was lost
    failed: list[Cell] = []
    while pending or running:
        busy = [executor for executor, _ in running.values()]
        for executor in [executor for executor in executors if executor not in busy][: len(pending)]:
            others = {key for other, key in pretraining.items() if other is not executor}
            cell = next_cell(pending, pretraining.get(executor), others)
            pending.remove(cell)
            pretraining[executor] = cell.pretraining
            running[executor.submit(cell)] = executor, cell
            monitor.started(cell)
        done = wait(running, return_when=FIRST_COMPLETED).done
        for future in sorted(done, key=lambda future: order[running[future][1].name]):
            executor, cell = running.pop(future)
            result = _result(future)
            if result is None and lost[cell.name] < RETRIES:
                lost[cell.name] += 1
                pending.insert(0, cell)
                del pretraining[executor]
                continue
            result = result or CellResult(error=f"The worker process was lost {RETRIES + 1} times. Out of memory?\n")
            folder.keep(cell, result)
            folder.write_tables(cells)
            monitor.ended(cell, result)
            failed += [cell] if result.error else []
    return sorted(failed, key=lambda cell: order[cell.name])


def next_cell(pending: Sequence[Cell], mine: str | None, others: set[str]) -> Cell:
    """The first cell on the executor's own pre-training, else on one that no other executor has, else the first."""
    own = (cell for cell in pending if cell.pretraining == mine)
    new = (cell for cell in pending if cell.pretraining not in others)
    return next(own, None) or next(new, None) or pending[0]


def _result(future: Future[CellResult]) -> CellResult | None:
    """The result of a cell; None if its process was lost, an error if the cluster gave up."""
    try:
        return future.result()
    except BrokenProcessPool:
        return None
    except Exception as error:  # Ray has tried again as often as it may
        return CellResult(error=f"{type(error).__name__}: {error}\n")
