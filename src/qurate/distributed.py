"""Lightning Fabric on one device, or a group of processes that train one network."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass, replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from lightning_fabric import Fabric
from lightning_fabric.plugins.environments.lightning import LightningEnvironment, find_free_network_port

from qurate.config import ExecutionConfig, Precision
from qurate.embedding.backbone import choose_device
from qurate.errors import ConfigError, QurateError
from qurate.runtime.machine import available_cores, keep_freed_memory
from qurate.runtime.process_group import ProcessGroup, external_world_size, use_group
from qurate.runtime.signals import ignore_signals, signals_ignored

Follow = Callable[[ProcessGroup], object]
"""A function of a module: what the other ranks do, until rank 0 ends it. Worker processes import it by its name."""

_TIMEOUT = timedelta(days=30)
"""How long a rank waits for a broadcast of rank 0: selection may take hours. A process that dies closes its
connections, which ends the wait at once."""
_READY = "ready"
"""Printed by a worker process that is about to join the group."""


class TrainingError(QurateError, RuntimeError):
    """Training cannot continue; the message says at which step, why, and what to try."""


class WorkerError(QurateError, RuntimeError):
    """A worker process has ended or did not start; the message has its last line of output."""


@dataclass(frozen=True, eq=False)
class _Initialized:
    """The group that this process has joined.

    Args:
        group: Its processes.
        size: Device, devices and nodes of the config that it was made for.
        environment: Tells Fabric the ranks; None where torchrun or Slurm does.
        workers: Those that this process started.
    """

    group: ProcessGroup
    size: tuple[str, int, int]
    environment: LightningEnvironment | None
    workers: WorkerProcesses | None


_initialized: _Initialized | None = None


class LocalEnvironment(LightningEnvironment):
    """Tells Fabric the rank of a process among those that rank 0 started on this machine.

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


def make_fabric(config: ExecutionConfig, precision: Precision = "32-true", *, alone: bool = False) -> Fabric:
    """Fabric with the device and precision of a run.

    Args:
        config: Device and number of processes.
        precision: As Fabric names it.
        alone: One process although the config asks for several, whose group is initialised otherwise.

    Raises:
        TrainingError: If the device or the precision cannot be used here.
    """
    several: dict[str, Any] = {"devices": 1}
    is_shared = config.processes > 1 and not alone
    if is_shared:
        assert _initialized is not None, "the process group is initialised before training"
        plugins = [] if _initialized.environment is None else [_initialized.environment]
        strategy = "ddp" if config.strategy == "auto" else config.strategy
        several = {"devices": config.devices, "num_nodes": config.num_nodes, "strategy": strategy, "plugins": plugins}
    try:
        with _quiet():
            fabric = Fabric(accelerator=config.device, precision=precision, **several)
    except Exception as error:  # Fabric raises its own kinds for a device that is not there
        reduced = "" if precision == "32-true" else f" with precision {precision}"
        counted = "" if config.processes == 1 else f", {config.devices} of them,"
        raise TrainingError(
            f"`device={config.device!r}`{counted}{reduced} cannot be used on this machine. Use `device='cpu'`"
            + (" and precision 32-true." if reduced else ".")
        ) from error
    if is_shared:
        _launch(fabric)
    return fabric


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
    if config.processes == 1:
        return None
    if _initialized is not None and _initialized.size == (config.device, config.devices, config.num_nodes):
        return _initialized.group
    check_world_size(config)
    shutdown()
    if external_world_size() > 1:
        return _join(config, None)
    workers = WorkerProcesses(follow, config)
    return _join(config, LocalEnvironment(0, workers.port), workers)


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


def _join(
    config: ExecutionConfig, environment: LightningEnvironment | None, workers: WorkerProcesses | None = None
) -> ProcessGroup:
    """Join the other processes, once they are started."""
    global _initialized
    alone = ProcessGroup(0, 1, torch.device("cpu"))
    _initialized = _Initialized(alone, (config.device, config.devices, config.num_nodes), environment, workers)
    try:
        fabric = make_fabric(config)
        cpu_group: Any = dist.new_group(backend="gloo", timeout=_TIMEOUT)
    except BaseException:
        shutdown()
        raise
    group = ProcessGroup(fabric.global_rank, fabric.world_size, fabric.device, cpu_group)
    _initialized = replace(_initialized, group=group)
    return group


def shutdown() -> None:
    """Leave the process group, if there is one, and end the worker processes that were started here."""
    global _initialized
    initialized, _initialized = _initialized, None
    if initialized is None:
        return
    if initialized.workers is not None:
        initialized.workers.close()
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
        with use_group(None):
            yield
        return
    try:
        with use_group(group), nullcontext() if group.is_rank_zero else signals_ignored():
            yield
    except BaseException as error:
        workers = None if _initialized is None else _initialized.workers
        reason = workers.why_ended() if workers is not None and isinstance(error, RuntimeError) else ""
        shutdown()
        if reason and not isinstance(error, QurateError):
            raise WorkerError(f"A process that trained with this one has ended ({reason}).") from error
        raise


class WorkerProcesses:
    """The processes of ranks 1, 2, ... on this machine; they end by `close`, or when this process dies.

    Args:
        follow: What they do once they have joined the group.
        config: Device and number of processes.

    Raises:
        WorkerError: If one of them does not start.
    """

    def __init__(self, follow: Follow, config: ExecutionConfig) -> None:
        self.port = find_free_network_port()
        """Of rank 0, on this machine."""
        paths = (str(Path(__file__).parents[1]), os.environ.get("PYTHONPATH", ""))
        threads = max(1, min(torch.get_num_threads(), available_cores() // config.devices))
        environment = {
            **os.environ,
            "OMP_NUM_THREADS": str(threads),
            "PYTHONPATH": os.pathsep.join(filter(None, paths)),
        }
        imports = f"from {__name__} import run_worker; from {follow.__module__} import {follow.__name__} as follow"
        self._stderr = [tempfile.TemporaryFile() for _ in range(1, config.devices)]  # noqa: SIM115  # open as long as they
        self._processes = [
            subprocess.Popen(
                (
                    sys.executable,
                    "-c",
                    f"{imports}; run_worker(follow, {rank}, {self.port}, {config.device!r}, {config.devices})",
                ),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=stderr,
                env=environment,
                text=True,
            )
            for rank, stderr in enumerate(self._stderr, start=1)
        ]
        for process in self._processes:
            assert process.stdout is not None
            if not any(line.strip() == _READY for line in process.stdout):  # a library may print as it is loaded
                reason = self.why_ended()
                self.close()
                raise WorkerError(f"A process for `devices` could not be started ({reason}). Use `devices=1`.")

    def why_ended(self) -> str:
        """The last line of output of a process that has ended, or its exit code; empty if all are running."""
        for process, stderr in zip(self._processes, self._stderr, strict=True):
            with suppress(subprocess.TimeoutExpired):
                process.wait(timeout=1)
                stderr.seek(0)
                lines = stderr.read().decode(errors="replace").strip().splitlines()
                return lines[-1] if lines else f"exit code {process.returncode}"
        return ""

    def close(self) -> None:
        """Kill them."""
        for process in self._processes:
            process.kill()
        for process, stderr in zip(self._processes, self._stderr, strict=True):
            process.wait()
            for pipe in (process.stdin, process.stdout, stderr):
                if pipe is not None:
                    with suppress(OSError):  # data that the process did not read
                        pipe.close()


def run_worker(follow: Follow, rank: int, port: int, device: Any, devices: int) -> None:
    """The body of a worker process: join the group of rank 0 and follow it, until it has ended."""
    ignore_signals()  # rank 0 handles them, and this process ends with it
    threading.Thread(target=_exit_with_parent, daemon=True).start()
    keep_freed_memory()
    if choose_device(device).type == "cuda":
        torch.ones(1, device=f"cuda:{rank}")  # fails early, before the other processes wait for this one
    print(_READY, flush=True)
    os.dup2(2, 1)  # nobody reads stdout from here on
    follow(_join(ExecutionConfig(device=device, devices=devices), LocalEnvironment(rank, port)))


def _exit_with_parent() -> None:
    sys.stdin.read()
    os._exit(0)


def _launch(fabric: Fabric) -> None:
    """Join the process group; `Fabric.launch` changes threads and environment, which are restored."""
    threads, environment = torch.get_num_threads(), dict(os.environ)
    try:
        with _quiet():
            fabric.launch()
    finally:
        torch.set_num_threads(threads)
        os.environ.clear()
        os.environ.update(environment)


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
