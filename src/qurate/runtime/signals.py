"""Ctrl-C and SIGTERM while processes are started."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing import resource_tracker

from qurate.runtime.stops import STOPS, deliver


@contextmanager
def held_back() -> Iterator[None]:
    """What would stop this process within the block stops it at the end of the block.

    So no process is left half started. One that is started within the block does not hear Ctrl-C, which a terminal
    sends to all of them: it is for the process that started them.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    came: list[int] = []
    before = {stop: signal.signal(stop, lambda number, _: came.append(number)) for stop in STOPS}
    _start_tracker()
    mask = _block({signal.SIGINT})
    try:
        yield
    finally:
        if mask is not None:
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        for stop, handler in before.items():
            signal.signal(stop, handler)
        for number in came[:1]:
            deliver(number, before[signal.Signals(number)])


def _start_tracker() -> None:
    """Before the mask is set: Python 3.11 lets go of it when it starts the tracker of shared resources."""
    if hasattr(resource_tracker, "ensure_running"):
        resource_tracker.ensure_running()


def _block(signals: set[signal.Signals]) -> set[int | signal.Signals] | None:
    return signal.pthread_sigmask(signal.SIG_BLOCK, signals) if hasattr(signal, "pthread_sigmask") else None
