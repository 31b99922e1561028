"""Lightning Fabric on one device or on several: all that knows of the processes that train one network.

Each process passes its share of every batch through a copy of the network, and torch's DistributedDataParallel averages
the gradients while the backward pass runs.
"""

from __future__ import annotations

import atexit
import itertools
import logging
import math
import os
import pickle
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from typing import Any

import torch
import torch.distributed as dist
from lightning_fabric import Fabric
from lightning_fabric.plugins.environments.lightning import LightningEnvironment, find_free_network_port
from lightning_fabric.strategies.ddp import DDPStrategy
from timm.layers.norm_act import convert_sync_batchnorm
from torch import Tensor, nn

from qurate.config import ExecutionConfig, Precision, RunConfig
from qurate.data.samples import Inputs, take
from qurate.embedding.backbone import choose_device
from qurate.errors import ConfigError, QurateError
from qurate.runtime.machine import available_cores
from qurate.runtime.processes import spawn
from qurate.runtime.signals import ignore_signals, signals_ignored

_TIMEOUT = timedelta(days=30)
"""How long a rank waits for a broadcast of rank 0: selection may take hours. A process that dies closes its
connections, which ends the wait at once."""


class TrainingError(QurateError, RuntimeError):
    """Training cannot continue; the message says at which step, why, and what to try."""


class WorkerError(QurateError, RuntimeError):
    """A worker process has ended or did not start; the message says why."""


@dataclass(frozen=True, eq=False)
class ProcessGroup:
    """The processes of a run, seen from one of them.

    Args:
        rank: Rank of this process; rank 0 selects, writes files and reports.
        size: Number of processes.
        device: Where this process computes.
        cpu_group: torch's group for objects and CPU tensors.
        environment: Tells Fabric the ranks; None where torchrun or Slurm does.
    """

    rank: int
    size: int
    device: torch.device
    cpu_group: dist.ProcessGroup | None
    environment: LightningEnvironment | None

    @property
    def is_rank_zero(self) -> bool:
        """Whether this process selects, writes files and reports."""
        return self.rank == 0

    def broadcast(self, value: Any = None) -> Any:
        """The value of rank 0, in every process; the other ranks pass nothing."""
        values = [value]
        dist.broadcast_object_list(values, src=0, group=self.cpu_group)
        return values[0]

    def mean(self, values: Tensor) -> Tensor:
        """The mean over all processes, in place."""
        dist.all_reduce(values, group=self._group_of(values))
        return values.div_(self.size)

    def equalize_buffers(self, module: nn.Module) -> None:
        """Give every process the buffers of rank 0: statistics of batch norms, which saw shares of their own."""
        for buffer in module.buffers():
            dist.broadcast(buffer, src=0, group=self._group_of(buffer))

    def in_shares(self, compute: Callable[[Inputs], Tensor], inputs: Inputs) -> Tensor:
        """A function of all inputs, one row each; each process computes its share, and all get the rows of all."""
        ends = [len(inputs) * rank // self.size for rank in range(self.size + 1)]
        counts = [end - start for start, end in itertools.pairwise(ends)]
        if min(counts) == 0:  # a share of none could not be computed
            return compute(inputs)
        rows = compute(take(inputs, torch.arange(ends[self.rank], ends[self.rank + 1])))
        padded = rows.new_zeros((max(counts), *rows.shape[1:]))  # collectives need equal sizes
        padded[: len(rows)] = rows
        parts = [torch.empty_like(padded) for _ in counts]
        dist.all_gather(parts, padded, group=self._group_of(rows))
        return torch.cat([part[:count] for part, count in zip(parts, counts, strict=True)])

    def _group_of(self, values: Tensor) -> dist.ProcessGroup | None:
        return self.cpu_group if values.device.type == "cpu" else None


Follow = Callable[[ProcessGroup], object]
"""A function of a module: what the other ranks do, until rank 0 ends it. Worker processes import it by its name."""


@dataclass(frozen=True, eq=False)
class _Initialized:
    """The group that this process has joined, the config that it was made for, and the workers it started."""

    group: ProcessGroup
    config: ExecutionConfig
    workers: list[Worker]


_initialized: _Initialized | None = None


class LocalEnvironment(LightningEnvironment):
    """Tells Fabric the rank of a process among those that rank 0 started on this machine.

    Fabric's own launcher would run the user's script, command or notebook again in each of them.

    Args:
        rank: Of this process.
        port: Of rank 0.
    """

    def __init__(self, rank: int, port: int) -> None:
        super().__init__()
        self._rank, self._main_port = rank, port

    @property
    def creates_processes_externally(self) -> bool:
        """Fabric is to start none."""
        return True

    @property
    def main_address(self) -> str:
        """This machine."""
        return "127.0.0.1"

    def local_rank(self) -> int:
        """Rank of this process."""
        return self._rank

    def node_rank(self) -> int:
        """There is one machine."""
        return 0


def make_fabric(config: ExecutionConfig, precision: Precision = "32-true", group: ProcessGroup | None = None) -> Fabric:
    """Fabric with the device and precision of a run.

    Args:
        config: Device, devices and strategy.
        precision: As Fabric names it.
        group: The processes that train together; None for one that trains alone, whatever the config says.

    Raises:
        TrainingError: If the device or the precision cannot be used here.
    """
    return _make_fabric(config, precision) if group is None else _join_fabric(config, precision, group.environment)


def _join_fabric(config: ExecutionConfig, precision: Precision, environment: LightningEnvironment | None) -> Fabric:
    """Fabric in a process group, which is joined; `launch` changes threads and environment, which are restored."""
    fabric = _make_fabric(
        config,
        precision,
        devices=config.devices,
        num_nodes=config.num_nodes,
        strategy=DDPStrategy(
            find_unused_parameters=config.strategy == "ddp_find_unused_parameters_true",
            gradient_as_bucket_view=True,  # two copies of all gradients less
        ),
        plugins=[] if environment is None else [environment],
    )
    threads, variables = torch.get_num_threads(), dict(os.environ)
    try:
        with _quiet():
            fabric.launch()
    finally:
        torch.set_num_threads(threads)
        os.environ.clear()
        os.environ.update(variables)
    return fabric


def _make_fabric(config: ExecutionConfig, precision: Precision, devices: int = 1, **several: Any) -> Fabric:
    try:
        with _quiet():
            return Fabric(accelerator=config.device, precision=precision, devices=devices, **several)
    except Exception as error:  # Fabric raises its own kinds for a device that is not there
        reduced = "" if precision == "32-true" else f" with precision {precision}"
        counted = "" if devices == 1 else f", {devices} of them,"
        raise TrainingError(
            f"`device={config.device!r}`{counted}{reduced} cannot be used on this machine. Use `device='cpu'`"
            + (" and precision 32-true." if reduced else ".")
        ) from error


def share_statistics(module: nn.Module, group: ProcessGroup | None) -> nn.Module:
    """Batch norms over the rows of all processes where the device can (CUDA); elsewhere each has its own share's.

    Not run yet: there was no GPU. A copy that one process trains alone, as a trial network is, normalises by itself.
    """
    if group is None:
        for layer in module.modules():
            if isinstance(layer, nn.SyncBatchNorm):
                layer.process_group = dist.GroupMember.NON_GROUP_MEMBER  # a group of nobody else
        return module
    return convert_sync_batchnorm(module) if group.device.type == "cuda" else module


def check_shares(config: RunConfig) -> None:
    """Check that each process can take an equal share of every batch.

    Raises:
        ConfigError: If not.
    """
    sizes, processes = _batch_sizes(config), config.execution.processes
    for name, size in sizes.items():
        if size % processes:
            below, most = size - size % processes, math.gcd(*sizes.values())
            fits = [str(n) for n in range(1, most + 1) if most % n == 0]
            raise ConfigError(
                f"TrainingConfig.{name} must be a multiple of the {processes} devices, each of which takes an equal "
                f"share, got {size}. Use {below or processes} or {below + processes}, "
                f"or one of these numbers of devices: {', '.join(fits)}."
            )


def describe_shares(config: RunConfig) -> str:
    """What each of several processes takes of a batch, in a sentence; empty for one."""
    processes = config.execution.processes
    whole = list(_batch_sizes(config).values())
    each = " + ".join(str(size // processes) for size in whole)
    total = " + ".join(map(str, whole))
    return (
        f"Batches of {total} (source, labelled and unlabelled target) are those of all {processes} devices together; "
        f"each takes {each}."
        if processes > 1
        else ""
    )


def _batch_sizes(config: RunConfig) -> dict[str, int]:
    return {name: getattr(config.training, name) for name in ("batch_source", "batch_target", "batch_unlabeled")}


def external_world_size() -> int:
    """How many processes torchrun or Slurm started for this job; 1 where neither did."""
    if "LOCAL_RANK" in os.environ or "TORCHELASTIC_RUN_ID" in os.environ:
        return int(os.environ.get("WORLD_SIZE", "1"))
    return int(os.environ.get("SLURM_NTASKS", "1")) if "SLURM_STEP_ID" in os.environ else 1


def check_world_size(config: ExecutionConfig) -> None:
    """Check that torchrun or Slurm started as many processes as a config asks for, or that they can be started here.

    Raises:
        ConfigError: If not.
    """
    if (outside := external_world_size()) == 1 and config.num_nodes > 1:
        raise ConfigError(
            f"`num_nodes` is {config.num_nodes}, and a process can start others on its own machine only. Start the "
            "command on each machine by torchrun or by srun (docs/whole_networks.md)."
        )
    if outside not in (1, config.processes):
        raise ConfigError(
            f"{outside} processes were started to work together, so `devices` times `num_nodes` must be {outside}, got "
            f"{config.devices} times {config.num_nodes}."
        )


def init_process_group(config: ExecutionConfig, follow: Follow) -> ProcessGroup | None:
    """The process group that a config asks for, started unless it is already there; None for one process.

    Args:
        config: Device, devices and nodes.
        follow: Called with the group in each worker process that is started here.

    Raises:
        ConfigError: If another number of processes was started by torchrun or Slurm, or several machines are asked for
            without either.
        WorkerError: If a process cannot be started.
    """
    global _initialized
    if config.processes == 1:
        return None
    if _initialized is not None and _place(_initialized.config) == _place(config):
        return _initialized.group
    check_world_size(config)
    shutdown()
    workers, environment = [], None
    if external_world_size() == 1:
        environment = LocalEnvironment(0, find_free_network_port())
        workers = _start_workers(follow, config, environment.main_port)
    try:
        group = _join(config, environment)
    except BaseException:
        _end(workers)
        raise
    _initialized = _Initialized(group, config, workers)
    return group


def _place(config: ExecutionConfig) -> tuple[str, int, int]:
    return config.device, config.devices, config.num_nodes


def _join(config: ExecutionConfig, environment: LightningEnvironment | None) -> ProcessGroup:
    """Join the other processes, once they are started."""
    fabric = _join_fabric(config, "32-true", environment)
    cpu_group: Any = dist.new_group(backend="gloo", timeout=_TIMEOUT)
    return ProcessGroup(fabric.global_rank, fabric.world_size, fabric.device, cpu_group, environment)


@atexit.register  # before multiprocessing waits for the processes
def shutdown() -> None:
    """Leave the process group, if there is one, and end the worker processes that were started here."""
    global _initialized
    initialized, _initialized = _initialized, None
    if initialized is not None:
        _end(initialized.workers)
        if dist.is_initialized():
            dist.destroy_process_group()


@contextmanager
def run_in_group(group: ProcessGroup | None) -> Iterator[None]:
    """A block that all processes of a run enter; a failure in it shuts the group down.

    SIGINT and SIGTERM are handled by rank 0 alone: the others end with it.

    Raises:
        WorkerError: If one of the other processes has ended.
    """
    if group is None:
        yield
        return
    try:
        with nullcontext() if group.is_rank_zero else signals_ignored():
            yield
    except BaseException as error:
        lost = isinstance(error, RuntimeError) and not isinstance(error, QurateError) and _initialized is not None
        reasons = [worker.why_ended() for worker in _initialized.workers] if lost and _initialized is not None else []
        shutdown()
        for reason in filter(None, reasons):
            raise WorkerError(f"A process that trained with this one has ended ({reason}).") from error
        raise


@dataclass(frozen=True, eq=False)
class Worker:
    """The process of another rank on this machine, and what it reports: that it is ready, or why it failed."""

    process: BaseProcess
    reports: Connection

    def why_ended(self) -> str:
        """Its last words or its exit code; empty if it is running."""
        if self.reports.poll(1):
            try:
                return str(self.reports.recv())
            except EOFError:
                self.process.join(1)
        return "" if self.process.is_alive() else f"exit code {self.process.exitcode}"


def _start_workers(follow: Follow, config: ExecutionConfig, port: int) -> list[Worker]:
    """The processes of ranks 1, 2, ..., which are about to join; they end by `_end`, or when this process dies."""
    threads = max(1, min(torch.get_num_threads(), available_cores() // config.devices))
    workers: list[Worker] = []
    for rank in range(1, config.devices):
        reports, report = Pipe(duplex=False)
        task = pickle.dumps(partial(_run_worker, follow, rank, port, config, threads))
        workers.append(Worker(spawn(task, report, environment={"OMP_NUM_THREADS": str(threads)}), reports))
        report.close()
    for worker in workers:
        try:
            reason = worker.reports.recv()
        except EOFError:
            reason = worker.why_ended()
        if reason:
            _end(workers)
            raise WorkerError(f"A process for `devices` could not be started ({reason}). Use `devices=1`.")
    return workers


def _run_worker(
    follow: Follow, rank: int, port: int, config: ExecutionConfig, threads: int, report: Connection
) -> None:
    """The body of a worker process: join the group of rank 0 and follow it, until it has ended."""
    ignore_signals()  # rank 0 handles them, and this process ends with it
    torch.set_num_threads(threads)
    try:
        if choose_device(config.device).type == "cuda":
            torch.ones(1, device=f"cuda:{rank}")  # fails early, before the other processes wait for this one
        report.send("")
        follow(_join(config, LocalEnvironment(rank, port)))
    except BaseException as error:
        report.send(f"{type(error).__name__}: {error}".splitlines()[0])
        raise


def _end(workers: list[Worker]) -> None:
    for worker in workers:
        worker.process.kill()
    for worker in workers:
        worker.process.join()
        worker.reports.close()


@contextmanager
def _quiet() -> Iterator[None]:
    """Hide Fabric's own log messages."""
    log = logging.getLogger("lightning_fabric")
    level = log.level
    log.setLevel(logging.ERROR)
    try:
        yield
    finally:
        log.setLevel(level)
