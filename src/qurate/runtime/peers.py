"""Processes that help this one: started here as plain interpreters, or by torchrun or a cluster beside this one.

A peer never runs the user's script again. It ends when whoever started it does, however that ends.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import torch
from lightning_fabric.plugins.environments.lightning import find_free_network_port

from qurate.errors import QurateError
from qurate.runtime.machine import available_cores

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
