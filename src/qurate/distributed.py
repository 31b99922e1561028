"""One device, or several processes that train one network, through Lightning Fabric."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from lightning_fabric import Fabric
from lightning_fabric.plugins.environments.lightning import LightningEnvironment

from qurate.config import TrainingConfig
from qurate.errors import ConfigError, QurateError
from qurate.runtime.process_group import Company, PeerError, Peers, started_outside, together
from qurate.runtime.signals import ignored

_LONG = timedelta(days=30)
"""How long a process waits for the leader's next words: selection may take hours, and between runs there is nothing to
do. Who waits for one that is gone is told by the connection, not by the clock."""
PEER = "qurate.selection.peer"
"""The module that a peer runs."""


class TrainingError(QurateError, RuntimeError):
    """Training cannot continue; the message says at which step, why, and what to try."""


@dataclass(frozen=True, eq=False)
class _Meeting:
    """A company that has met.

    Args:
        company: Its processes.
        size: Devices and machines, by which it was called.
        place: How Fabric finds the others; None where torchrun or a cluster says it.
        peers: Those that were started here.
    """

    company: Company
    size: tuple[str, int, int]
    place: LightningEnvironment | None
    peers: Peers | None


_meeting: _Meeting | None = None


class Place(LightningEnvironment):
    """A place among processes of this machine that were started here.

    Args:
        number: Of this process; 0 leads.
        port: Where they meet.
    """

    def __init__(self, number: int, port: int) -> None:
        super().__init__()
        self._number, self._main_port = number, port

    @property
    def creates_processes_externally(self) -> bool:
        """Fabric is to start none."""
        return True

    @property
    def main_address(self) -> str:
        """This machine."""
        return "127.0.0.1"

    def local_rank(self) -> int:
        """Which of them this is."""
        return self._number

    def node_rank(self) -> int:
        """There is one machine."""
        return 0


def make_fabric(config: TrainingConfig, *, alone: bool = False) -> Fabric:
    """Device and precision of a run; with several processes, after they have met, or for one of them alone."""
    several: dict[str, Any] = {"devices": 1}
    is_shared = config.processes > 1 and not alone
    if is_shared:
        assert _meeting is not None, "several processes meet before they train"
        place = [] if _meeting.place is None else [_meeting.place]
        several = {"devices": config.devices, "num_nodes": config.num_nodes, "strategy": "ddp", "plugins": place}
    try:
        with _quiet():
            fabric = Fabric(accelerator=config.device, precision=config.precision, **several)
    except Exception as error:  # Fabric raises its own kinds for a device that is not there
        precision = "" if config.precision == "32-true" else f" with precision {config.precision}"
        counted = "" if config.processes == 1 else f", {config.devices} of them,"
        raise TrainingError(
            f"`device={config.device!r}`{counted}{precision} cannot be used on this machine. Use `device='cpu'`"
            + (" and precision 32-true." if precision else ".")
        ) from error
    if is_shared:
        _launch(fabric)
    return fabric


def convene(config: TrainingConfig) -> Company | None:
    """The processes that a config asks for, started and met unless they have already; None for one alone.

    Raises:
        ConfigError: If another number of processes was started outside, or several machines cannot be reached.
        PeerError: If a process cannot be started.
    """
    global _meeting
    if config.processes == 1:
        return None
    outside, size = started_outside(), (config.device, config.devices, config.num_nodes)
    if _meeting is not None and _meeting.size == size:
        return _meeting.company
    check_processes(config)
    disperse()
    if outside > 1:
        return meet(config, None)
    peers = Peers(PEER, (config.device, str(config.devices)), config.devices - 1)
    return meet(config, Place(0, peers.port), peers)


def check_processes(config: TrainingConfig) -> None:
    """Whether a config asks for as many processes as torchrun or a cluster has started, or as can be started here.

    Raises:
        ConfigError: If not.
    """
    if (outside := started_outside()) == 1 and config.num_nodes > 1:
        raise ConfigError(
            f"`num_nodes` is {config.num_nodes}, and a process can start others on its own machine only. Start the "
            "command on each machine by torchrun or by srun (docs/whole_networks.md)."
        )
    if outside not in (1, config.processes):
        raise ConfigError(
            f"{outside} processes were started to work together, so `devices` times `num_nodes` must be {outside}, got "
            f"{config.devices} times {config.num_nodes}."
        )


def meet(config: TrainingConfig, place: LightningEnvironment | None, peers: Peers | None = None) -> Company:
    """Meet the other processes, once they are started.

    Args:
        config: Says how many there are.
        place: How Fabric finds them; None where torchrun or a cluster says it.
        peers: Those that were started here, if this process leads them.
    """
    global _meeting
    alone = Company(0, 1, torch.device("cpu"))
    _meeting = _Meeting(alone, (config.device, config.devices, config.num_nodes), place, peers)
    try:
        fabric = make_fabric(config)
        words: Any = dist.new_group(backend="gloo", timeout=_LONG)
    except BaseException:
        disperse()
        raise
    company = Company(fabric.global_rank, fabric.world_size, fabric.device, words)
    _meeting = _Meeting(company, _meeting.size, place, peers)
    return company


def disperse() -> None:
    """Leave the others, if there are any; those that were started here end."""
    global _meeting
    meeting, _meeting = _meeting, None
    if meeting is None:
        return
    if meeting.peers is not None:
        meeting.peers.close()
    if dist.is_initialized():
        dist.destroy_process_group()


@contextmanager
def in_company(company: Company | None) -> Iterator[None]:
    """A block that all processes of a run go through together; if one fails in it, they are all sent home.

    Ctrl-C and SIGTERM are for the leader: the others end with it.

    Raises:
        PeerError: If one of the others is gone.
    """
    if company is None:
        with together(None):
            yield
        return
    try:
        with together(company), ignored() if not company.leads else nullcontext():
            yield
    except BaseException as error:
        peers = None if _meeting is None else _meeting.peers
        gone = peers.why_gone() if peers is not None and isinstance(error, RuntimeError) else ""
        disperse()
        if gone and not isinstance(error, QurateError):
            raise PeerError(f"A process that trained with this one has ended ({gone}).") from error
        raise


def _launch(fabric: Fabric) -> None:
    """Join the others, and leave threads and environment as they were."""
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
    """No lines of Fabric's own."""
    log = logging.getLogger("lightning_fabric")
    level = log.level
    log.setLevel(logging.ERROR)
    try:
        yield
    finally:
        log.setLevel(level)
