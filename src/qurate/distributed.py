"""Lightning Fabric on one device or on several: all that knows of the processes that train one network.

Each process passes its share of every batch through a copy of the network, and torch's DistributedDataParallel averages
the gradients while the backward pass runs.
"""

from __future__ import annotations

import atexit
import logging
import os
import pickle
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from lightning_fabric import Fabric
from lightning_fabric.plugins.environments.lightning import LightningEnvironment, find_free_network_port
from lightning_fabric.strategies.ddp import DDPStrategy
from timm.layers.norm_act import convert_sync_batchnorm
from torch import Tensor, nn

from qurate.config import ExecutionConfig, Precision
from qurate.data.samples import Inputs, take
from qurate.errors import ConfigError, QurateError, TrainingError, WorkerError
from qurate.runtime.machine import available_cores
from qurate.runtime.processes import SpawnedProcess
from qurate.runtime.signals import ignore_signals, signals_ignored

_TIMEOUT = timedelta(days=30)
"""How long a rank waits for a broadcast of rank 0: selection may take hours. A process that dies closes its
connections, which ends the wait at once."""


@dataclass(frozen=True, eq=False)
class ProcessGroup:
    """The processes of a run, seen from one of them.

    Args:
        rank: Rank of this process; rank 0 selects, writes files and reports.
        size: Number of processes.
        device: Where this process computes.
        cpu_group: torch's group for objects and CPU tensors.
        variables: What tells Fabric the rank and where rank 0 is; none where torchrun or Slurm has set them.
    """

    rank: int
    size: int
    device: torch.device
    cpu_group: dist.ProcessGroup | None
    variables: Mapping[str, str]

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
        """The mean over all processes of values on the device, in place."""
        dist.all_reduce(values)
        return values.div_(self.size)

    def equalize_buffers(self, module: nn.Module) -> None:
        """Give every process the buffers of rank 0: statistics of batch norms, which saw shares of their own."""
        for buffer in module.buffers():
            dist.broadcast(buffer, src=0)

    def in_shares(self, compute: Callable[[Inputs], Tensor], inputs: Inputs) -> Tensor:
        """A function of all inputs, a row on the CPU for each; every process computes its share, and gets all rows."""
        count = -(-len(inputs) // self.size)
        share = torch.arange(self.rank * count, (self.rank + 1) * count).clamp(max=len(inputs) - 1)  # of equal sizes
        rows = compute(take(inputs, share))
        parts = [torch.empty_like(rows) for _ in range(self.size)]
        dist.all_gather(parts, rows, group=self.cpu_group)
        return torch.cat(parts)[: len(inputs)]


def make_fabric(config: ExecutionConfig, precision: Precision = "32-true", group: ProcessGroup | None = None) -> Fabric:
    """Fabric with the device and precision of a run.

    Args:
        config: Device, devices and strategy.
        precision: As Fabric names it.
        group: The processes that train together; None for one that trains alone, whatever the config says.

    Raises:
        TrainingError: If the device or the precision cannot be used here.
    """
    if group is None:
        return _fabric(config, precision)
    return _launch(_fabric_of_several(config, precision, group.variables), group.variables)


def _fabric(config: ExecutionConfig, precision: Precision, devices: int = 1, **several: Any) -> Fabric:
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


def _fabric_of_several(config: ExecutionConfig, precision: Precision, variables: Mapping[str, str]) -> Fabric:
    strategy = DDPStrategy(
        find_unused_parameters=config.strategy == "ddp_find_unused_parameters_true",
        gradient_as_bucket_view=True,  # two copies of all gradients less
    )
    plugins = [LightningEnvironment()] if variables else []
    return _fabric(config, precision, config.devices, num_nodes=config.num_nodes, strategy=strategy, plugins=plugins)


def _launch(fabric: Fabric, variables: Mapping[str, str]) -> Fabric:
    """Join the process group, unless this process has; what `launch` does to the environment is undone."""
    before = dict(os.environ)
    os.environ.update({"OMP_NUM_THREADS": str(torch.get_num_threads()), **variables})  # else it changes the threads
    try:
        with _quiet():
            fabric.launch()
    finally:
        os.environ.clear()
        os.environ.update(before)
    return fabric


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


_workers: list[SpawnedProcess] = []
_joined: tuple[ProcessGroup, ExecutionConfig] | None = None
"""The group that this process has joined, and the config that it was made for; ranks that were started for it."""

Follow = Callable[[ProcessGroup], object]
"""A function of a module: what the other ranks do, until rank 0 ends it. Worker processes import it by its name."""


def init_process_group(config: ExecutionConfig, follow: Follow) -> ProcessGroup | None:
    """The process group that a config asks for, started unless it is already there; None for one process.

    Fabric's own launcher would run the user's script, command or notebook again in each process.

    Args:
        config: Device, devices and nodes.
        follow: Called with the group in each worker process that is started here.

    Raises:
        ConfigError: If another number of processes was started by torchrun or Slurm, or several machines are asked for
            without either.
        TrainingError: If the devices cannot be used here.
        WorkerError: If a process cannot be started.
    """
    global _joined
    if config.processes == 1:
        return None
    if _joined is not None and _place(_joined[1]) == _place(config):
        return _joined[0]
    check_world_size(config)
    shutdown()
    variables = {}
    if external_world_size() == 1:
        port = find_free_network_port()
        variables = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "NODE_RANK": "0", "LOCAL_RANK": "0"}
    fabric = _fabric_of_several(config, "32-true", variables)
    try:
        if variables:
            _start_workers(config, follow, variables)
        _joined = _join(fabric, variables), config
    except BaseException:
        shutdown()
        raise
    return _joined[0]


def _place(config: ExecutionConfig) -> tuple[str, int, int]:
    return config.device, config.devices, config.num_nodes


def _join(fabric: Fabric, variables: Mapping[str, str]) -> ProcessGroup:
    """Join the other processes, once they are started."""
    _launch(fabric, variables)
    cpu_group: Any = dist.new_group(backend="gloo", timeout=_TIMEOUT)
    return ProcessGroup(fabric.global_rank, fabric.world_size, fabric.device, cpu_group, variables)


def _start_workers(config: ExecutionConfig, follow: Follow, variables: Mapping[str, str]) -> None:
    """Start ranks 1, 2, ... up to where they join; they end by `shutdown`, or when this process dies."""
    threads = max(1, min(torch.get_num_threads(), available_cores() // config.devices))
    for rank in range(1, config.devices):
        own = {**variables, "LOCAL_RANK": str(rank), "OMP_NUM_THREADS": str(threads)}
        _workers.append(SpawnedProcess(pickle.dumps(partial(_run_worker, config, follow, own)), environment=own))
    for reason in filter(None, [worker.why_failed(None) for worker in _workers]):
        raise WorkerError(f"A process for `devices` could not be started ({reason}). Use `devices=1`.")


def _run_worker(
    config: ExecutionConfig, follow: Follow, variables: Mapping[str, str], ready: Callable[[], None]
) -> None:
    """The body of a worker process: join the group of rank 0 and follow it, until it has ended."""
    ignore_signals()  # rank 0 handles them, and this process ends with it
    fabric = _fabric_of_several(config, "32-true", variables)
    torch.ones(1, device=fabric.device)  # fails early, before the other processes wait for this one
    ready()
    follow(_join(fabric, variables))


@atexit.register  # before multiprocessing waits for the processes
def shutdown() -> None:
    """Leave the process group, if there is one, and end the worker processes that were started here."""
    global _joined
    joined, _joined = _joined, None
    while _workers:
        _workers.pop().close()
    if joined is not None and dist.is_initialized():
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
        lost = isinstance(error, RuntimeError) and not isinstance(error, QurateError)
        reasons = [worker.why_failed(1) for worker in _workers if lost]
        shutdown()
        for reason in filter(None, reasons):
            raise WorkerError(f"A process that trained with this one has ended ({reason}).") from error
        raise
