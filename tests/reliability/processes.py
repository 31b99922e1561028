"""Real processes of qurate that are watched, disturbed and waited for."""

from __future__ import annotations

import itertools
import multiprocessing
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from multiprocessing.process import BaseProcess
from pathlib import Path

PATIENCE = 600.0
"""Seconds after which a process, on however busy a machine, is taken to wait for ever."""
_PAUSE = 0.005
SLOW_DISK, CLOCK_BACK = "TRY_SLOW_DISK", "TRY_CLOCK_BACK"
"""Variables: seconds for which the disk holds up a forked process, and by which its clock goes back when it looks."""
_HEAVY = ("qurate.cli", "qurate.runs.adapt", "qurate.report.run_page", "qurate.report.benchmark_report")


class Qurate:
    """One `qurate WORDS`, with what it says in a file.

    Args:
        words: The command line.
        folder: Where it runs.
        said: File for what it says, on both outputs.
        environment: Variables beside those of this process.
        fresh: Start an interpreter, as a shell does; else fork one that has loaded PyTorch, which saves seconds.
    """

    def __init__(
        self, words: list[str], folder: Path, said: Path, environment: dict[str, str], *, fresh: bool = True
    ) -> None:
        self.words, self.said = words, said
        self._fresh: subprocess.Popen[bytes] | None = None
        self._forked: BaseProcess | None = None
        everything = {**environment, "OMP_NUM_THREADS": "1", "COLUMNS": "400"}
        if fresh:
            with said.open("wb") as file:
                self._fresh = subprocess.Popen(
                    [sys.executable, "-m", "qurate", *words],
                    cwd=folder,
                    env={**os.environ, **everything},
                    stdout=file,
                    stderr=subprocess.STDOUT,
                    stdin=subprocess.DEVNULL,
                    start_new_session=True,
                )
        else:
            said.touch()
            arguments = (words, str(folder), str(said), {**everything, "PATH": os.environ["PATH"]})
            self._forked = _server().Process(target=_run, args=arguments)
            self._forked.start()

    @property
    def pid(self) -> int:
        process = self._fresh or self._forked
        assert process is not None
        assert process.pid is not None
        return process.pid

    def code(self) -> int | None:
        """The exit code, -9 after SIGKILL; None as long as it runs."""
        return self._fresh.poll() if self._fresh is not None else self._forked.exitcode if self._forked else None

    def lines(self) -> list[str]:
        """What it has said."""
        return self.said.read_text(encoding="utf-8", errors="replace").splitlines()

    def wait_for_lines(self, count: int) -> bool:
        """Whether it said so many lines before it ended."""
        end = time.monotonic() + PATIENCE
        while self.code() is None and time.monotonic() < end:
            if len(self.lines()) >= count:
                return True
            time.sleep(_PAUSE)
        return False

    def disturb(self, number: int) -> None:
        """Send a signal: SIGINT to the whole group, as Ctrl-C does, others to the process alone."""
        try:
            if number == signal.SIGINT:
                os.killpg(self.pid, number)
            else:
                os.kill(self.pid, number)
        except ProcessLookupError:  # ended just now
            pass

    def wait(self) -> int:
        """The exit code at the end.

        Raises:
            TimeoutError: If there is no end; the process is killed then.
        """
        end = time.monotonic() + PATIENCE
        while (code := self.code()) is None:
            if time.monotonic() > end:
                os.killpg(self.pid, signal.SIGKILL)
                raise TimeoutError(f"qurate {' '.join(self.words)} did not end. It said: {self.lines()[-3:]}")
            time.sleep(_PAUSE)
        return code

    def wait_for_workers(self) -> bool:
        """Whether nothing of its group is left soon after its end."""
        end = time.monotonic() + 60
        while time.monotonic() < end:
            try:
                os.killpg(self.pid, 0)
            except (ProcessLookupError, PermissionError):
                return True
            time.sleep(0.1)
        return False


def _server() -> multiprocessing.context.ForkServerContext:
    root = str(Path(__file__).resolve().parents[2])
    if root not in sys.path:  # a forked process looks for `_run` where this one does
        sys.path.append(root)
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(list(_HEAVY))
    return context


def _run(words: list[str], folder: str, said: str, environment: dict[str, str]) -> None:
    """In a forked process: become `qurate WORDS`."""
    os.setsid()
    descriptor = os.open(said, os.O_WRONLY | os.O_APPEND)
    for output in (1, 2):
        os.dup2(descriptor, output)
    os.environ.update(environment)
    os.chdir(folder)
    sys.argv = ["qurate", *words]
    _play_tricks()
    from qurate.cli import main

    main()


def _play_tricks() -> None:
    """A disk that is slow to write and to rename, a clock that goes back; for this process alone."""
    if seconds := float(os.environ.get(SLOW_DISK, 0)):

        def slow(real: Callable[..., None]) -> Callable[..., None]:
            def wait(*arguments: object, **named: object) -> None:
                time.sleep(seconds)
                real(*arguments, **named)
                time.sleep(seconds)

            return wait

        for name in ("fsync", "replace", "rename"):
            setattr(os, name, slow(getattr(os, name)))
    if seconds := float(os.environ.get(CLOCK_BACK, 0)):
        now, now_ns, looks = time.time, time.time_ns, itertools.count(1)
        time.time = lambda: now() - seconds * next(looks)
        time.time_ns = lambda: now_ns() - int(seconds * 1e9) * next(looks)
