"""Worker processes on this machine: the one way in which qurate computes something beside the process that a user sees.

Imports nothing heavy, so that a new process can read its task before torch is loaded.
"""

from __future__ import annotations

import multiprocessing
import os
import pickle
import signal
import sys
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from multiprocessing import connection
from multiprocessing.context import SpawnContext, SpawnProcess
from types import ModuleType, TracebackType
from typing import Any, Self

from qurate.runtime.signals import defer_signals


class WorkerProcess:
    """One spawned process that calls a task again and again; what the task keeps in memory stays between the calls.

    It computes on one thread, does not react to Ctrl-C, and ends with the process that started it, however that ends.
    A process that was lost is replaced at the next call. A script without `if __name__ == "__main__"` is not run again.

    Args:
        task: A pickled callable of one argument. Tensors in it are plain bytes then, where multiprocessing would put
            them into shared memory, for which containers often have no room.
        environment: Variables to set before torch is loaded there.
        silent: Discard what the process prints.
    """

    def __init__(self, task: bytes, *, environment: Mapping[str, str] | None = None, silent: bool = False) -> None:
        self._context = _Context()
        self._progress = self._context.RawValue("q", 0)
        self._start = task, dict(environment or {}), silent, self._progress
        self._pool = self._new_pool()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    def progress(self) -> int:
        """The number that the running call has last given to `report_progress`."""
        return int(self._progress.value)

    def submit(self, argument: Any) -> Future[Any]:
        """Call the task with an argument.

        Returns:
            Its result or its exception; `BrokenProcessPool` if the process was lost.

        Raises:
            OSError: If no process can be started.
        """
        if multiprocessing.current_process().daemon:
            raise OSError("a daemonic process must not start processes")
        self._progress.value = 0
        with defer_signals():  # the first call starts the process
            try:
                return self._pool.submit(_call, argument)
            except BrokenProcessPool:
                self._pool = self._new_pool()
                return self._pool.submit(_call, argument)

    def close(self) -> None:
        """Kill the process, whatever it does."""
        for process in list((self._pool._processes or {}).values()):  # there is no other way before Python 3.14
            process.kill()
            process.join()
        self._pool.shutdown(cancel_futures=True)  # waits: at exit, Python may write to the closed pipe of one

    def _new_pool(self) -> ProcessPoolExecutor:
        return ProcessPoolExecutor(1, mp_context=self._context, initializer=_begin, initargs=self._start)


def report_progress(number: int) -> None:
    """Within a task: let the process that started this one know how far it is."""
    if _progress is not None:
        _progress.value = number


class SpawnedProcess:
    """One spawned process that calls a task once and prints nothing; it is otherwise as `WorkerProcess` says.

    Args:
        task: A pickled callable, which is given a function to call when it is ready.
        environment: Variables to set before torch is loaded there; it computes on OMP_NUM_THREADS threads.
    """

    def __init__(self, task: bytes, *, environment: Mapping[str, str]) -> None:
        self._reports, report = multiprocessing.Pipe(duplex=False)
        self._process = _Context().Process(target=_call_once, args=(task, dict(environment), report))
        with defer_signals():
            self._process.start()
        report.close()

    def why_failed(self, seconds: float | None) -> str:
        """Its exception or its exit code; empty if it is ready, or running for some more seconds."""
        try:
            if self._reports.poll(seconds):
                return str(self._reports.recv())
        except EOFError:
            self._process.join(1)
        return "" if self._process.is_alive() else f"exit code {self._process.exitcode}"

    def close(self) -> None:
        """Kill the process, whatever it does."""
        self._process.kill()
        self._process.join()
        self._reports.close()


def _call_once(task: bytes, environment: Mapping[str, str], report: connection.Connection) -> None:
    try:
        _begin(task, environment, True, None)
        _call(lambda: report.send(""))
    except BaseException as error:
        report.send(f"{type(error).__name__}: {error}".splitlines()[0])
        raise


class _Process(SpawnProcess):
    @staticmethod
    def _Popen(process_obj: Any) -> Any:  # noqa: N802  # its name in multiprocessing
        main, sys.modules["__main__"] = sys.modules["__main__"], ModuleType("__main__")  # else it is imported there
        try:
            return SpawnProcess._Popen(process_obj)
        finally:
            sys.modules["__main__"] = main


class _Context(SpawnContext):
    Process = _Process


_task: Callable[[Any], Any] | None = None
_progress: Any = None


def _begin(task: bytes, environment: Mapping[str, str], silent: bool, progress: Any) -> None:
    """In the new process, before its first call."""
    global _task, _progress
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the process that started this one, and ends it
    threading.Thread(target=_exit_with_parent, daemon=True).start()
    if silent:
        nowhere = os.open(os.devnull, os.O_WRONLY)
        for descriptor in (1, 2):
            os.dup2(nowhere, descriptor)
    os.environ.update(environment)
    import torch

    from qurate.runtime.machine import keep_freed_memory

    keep_freed_memory()
    torch.set_num_threads(int(environment.get("OMP_NUM_THREADS", "1")))
    _task, _progress = pickle.loads(task), progress


def _exit_with_parent() -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        connection.wait([parent.sentinel])
        os._exit(1)


def _call(argument: Any) -> Any:
    assert _task is not None, "set by _begin"
    return _task(argument)
