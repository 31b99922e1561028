"""How a verb is stopped: Ctrl-C and SIGTERM become one exception, one line and an exit code."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

CODES = {signal.SIGINT: 130, signal.SIGTERM: 143}
"""The exit code of each."""


_advice: list[Callable[[], str]] = []


def on_stop(advice: Callable[[], str]) -> None:
    """What to say if this verb is stopped: how far it is, and how to continue."""
    _advice[:] = [advice]


class StopSignal(KeyboardInterrupt):
    """What a signal raises.

    It is not Python's own class: one of those that passes through the import of an extension module decides the exit
    code, whatever is done about it later.
    """


class Stopped:
    """Which signal came, if any; whatever was raised after it was raised because of it.

    A signal breaks in anywhere, also where a library turns it into an error of its own.
    """

    def __init__(self) -> None:
        self.by: signal.Signals | None = None

    @property
    def code(self) -> int:
        """The exit code."""
        return CODES[self.by or signal.SIGINT]

    @property
    def advice(self) -> str:
        """What `on_stop` was given to say."""
        return _advice[0]() if _advice else ""

    def receive(self, number: int, frame: FrameType | None) -> None:
        """Break off what is being done; a second signal ends the process at once."""
        self.by = signal.Signals(number)
        for each in CODES:
            signal.signal(each, signal.SIG_DFL)
        raise StopSignal


@contextmanager
def stoppable() -> Iterator[Stopped]:
    """Notice signals for the length of the block; those that this process was started to ignore stay ignored."""
    stopped = Stopped()
    _advice.clear()
    in_main = threading.current_thread() is threading.main_thread()  # the only one that may ask for signals
    before = {each: signal.getsignal(each) for each in CODES} if in_main else {}
    for each, handler in before.items():
        if handler is not signal.SIG_IGN:
            signal.signal(each, stopped.receive)
    try:
        yield stopped
    finally:
        for each, handler in before.items():
            signal.signal(each, handler)


def ignore_signals() -> None:
    """At the end of the process: what comes now comes too late."""
    for each in CODES:
        signal.signal(each, signal.SIG_IGN)
