"""SIGINT and SIGTERM: deferred while something must not be interrupted."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing import resource_tracker
from types import FrameType


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


STOPS = (signal.SIGINT, signal.SIGTERM)


class Stops:
    """Whether this process was asked to stop, as long as it holds that back."""

    def __init__(self) -> None:
        self._came: list[int] = []
        self._before: dict[signal.Signals, object] = {}

    @property
    def asked(self) -> bool:
        """Whether it was."""
        return bool(self._came)

    @contextmanager
    def held(self) -> Iterator[None]:
        """A block in which the first signal waits for `let_through`, or for the end; a second one does not wait."""
        if threading.current_thread() is not threading.main_thread():  # nobody else may ask for signals
            yield
            return
        self._hold()
        try:
            yield
        finally:
            self.let_through()
            self._release()

    def let_through(self) -> None:
        """Do what the signal that came would have done; what is to be kept was kept."""
        came, self._came = self._came, []
        for number in came[:1]:
            before = self._before
            self._release()
            deliver(number, before[signal.Signals(number)])
            self._hold()  # whoever was asked goes on nevertheless

    def _hold(self) -> None:
        handlers = {stop: signal.getsignal(stop) for stop in STOPS}
        self._before = {stop: handler for stop, handler in handlers.items() if handler is not signal.SIG_IGN}
        for stop in self._before:
            signal.signal(stop, self._receive)

    def _release(self) -> None:
        before, self._before = self._before, {}
        for stop, handler in before.items():
            signal.signal(stop, handler)  # type: ignore[arg-type]  # it came from there

    def _receive(self, number: int, frame: FrameType | None) -> None:
        self._came.append(number)
        if len(self._came) > 1:
            self.let_through()


@contextmanager
def ignored() -> Iterator[None]:
    """A block in which neither stops this process; another one is asked, and this one ends with it."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {stop: signal.signal(stop, signal.SIG_IGN) for stop in STOPS}
    try:
        yield
    finally:
        for stop, handler in before.items():
            signal.signal(stop, handler)


def deliver(number: int, handler: object) -> None:
    """Do with a signal what a handler of before would have done."""
    frame: FrameType | None = None
    if callable(handler):
        handler(number, frame)
    elif handler == signal.SIG_DFL:
        signal.raise_signal(number)
