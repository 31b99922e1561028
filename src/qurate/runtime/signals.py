"""SIGINT and SIGTERM: stop a verb, be deferred where an interruption would do harm, or be ignored."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing import resource_tracker
from types import FrameType
from typing import Any

STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM)
EXIT_CODES = {signal.SIGINT: 130, signal.SIGTERM: 143}


class StopSignal(KeyboardInterrupt):
    """Raised by a signal within `raise_on_signal`.

    It is not Python's own class: one of those that passes through the import of an extension module decides the exit
    code, whatever is done about it later.
    """


class ReceivedSignal:
    """Which signal came within `raise_on_signal`, if any.

    A signal breaks in anywhere, also where a library turns it into an error of its own, so whatever is raised after it
    is raised because of it.
    """

    def __init__(self) -> None:
        self.signal: signal.Signals | None = None

    @property
    def exit_code(self) -> int:
        """130 for SIGINT, 143 for SIGTERM."""
        return EXIT_CODES[self.signal or signal.SIGINT]

    def receive(self, number: int, frame: FrameType | None) -> None:
        """Raise `StopSignal`; a second signal ends the process at once."""
        self.signal = signal.Signals(number)
        _set_handlers(dict.fromkeys(STOP_SIGNALS, signal.SIG_DFL))
        raise StopSignal


@contextmanager
def raise_on_signal(*, restore: bool = True) -> Iterator[ReceivedSignal]:
    """Raise `StopSignal` on SIGINT and SIGTERM within the block; one that is ignored stays ignored.

    Args:
        restore: Whether the handlers of before come back; not where the process ends with the block.
    """
    received = ReceivedSignal()
    before = _handlers() if _in_main_thread() else {}
    _set_handlers({each: received.receive for each, handler in before.items() if handler is not signal.SIG_IGN})
    try:
        yield received
    finally:
        if restore:
            _set_handlers(before)


@contextmanager
def defer_signals() -> Iterator[None]:
    """Defer SIGINT and SIGTERM until the block exits, so that no process is left half started.

    A process that is started in the block does not receive Ctrl-C, which a terminal sends to all of them: it is for the
    process that started them.
    """
    if not _in_main_thread():
        yield
        return
    received: list[int] = []
    before = _handlers()
    _set_handlers(dict.fromkeys(STOP_SIGNALS, lambda number, _: received.append(number)))
    if hasattr(resource_tracker, "ensure_running"):  # Python 3.11 resets the mask when it starts the tracker
        resource_tracker.ensure_running()
    can_mask = hasattr(signal, "pthread_sigmask")
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT}) if can_mask else set()
    try:
        yield
    finally:
        if can_mask:
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        _set_handlers(before)
        for number in received[:1]:
            _deliver(number, before[signal.Signals(number)])


class DeferredSignals:
    """Defers SIGINT and SIGTERM until `deliver`, so that a step can be finished and a checkpoint written before."""

    def __init__(self) -> None:
        self._received: list[int] = []
        self._before: dict[signal.Signals, Any] = {}

    @property
    def received(self) -> bool:
        """Whether a signal waits to be delivered."""
        return bool(self._received)

    @contextmanager
    def defer(self) -> Iterator[None]:
        """Defer the first signal until `deliver` or the end of the block; a second one is not deferred."""
        if not _in_main_thread():
            yield
            return
        self._start()
        try:
            yield
        finally:
            self.deliver()
            self._end()

    def deliver(self) -> None:
        """Call the handler that the deferred signal would have called, if there is one."""
        received, self._received = self._received, []
        for number in received[:1]:
            before = self._before
            self._end()
            _deliver(number, before[signal.Signals(number)])
            self._start()  # the handler returned

    def _start(self) -> None:
        self._before = {each: handler for each, handler in _handlers().items() if handler is not signal.SIG_IGN}
        _set_handlers(dict.fromkeys(self._before, self._receive))

    def _end(self) -> None:
        before, self._before = self._before, {}
        _set_handlers(before)

    def _receive(self, number: int, frame: FrameType | None) -> None:
        self._received.append(number)
        if len(self._received) > 1:
            self.deliver()


def ignore_signals() -> None:
    """Ignore SIGINT and SIGTERM from here on: in a process that another one ends, or at the very end of one."""
    _set_handlers(dict.fromkeys(STOP_SIGNALS, signal.SIG_IGN))


@contextmanager
def signals_ignored() -> Iterator[None]:
    """Ignore SIGINT and SIGTERM within the block, in a process that ends with another one."""
    if not _in_main_thread():
        yield
        return
    before = _handlers()
    ignore_signals()
    try:
        yield
    finally:
        _set_handlers(before)


def _in_main_thread() -> bool:
    """Python sets handlers in the main thread only."""
    return threading.current_thread() is threading.main_thread()


def _handlers() -> dict[signal.Signals, Any]:
    return {each: signal.getsignal(each) for each in STOP_SIGNALS}


def _set_handlers(handlers: dict[signal.Signals, Any]) -> None:
    for each, handler in handlers.items():
        signal.signal(each, handler)


def _deliver(number: int, handler: Any) -> None:
    if callable(handler):
        handler(number, None)
    elif handler == signal.SIG_DFL:
        signal.raise_signal(number)
