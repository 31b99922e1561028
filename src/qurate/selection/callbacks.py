"""What a run reports as it goes: callbacks and their records."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

from qurate.methods import Method
from qurate.runtime.progress import Reporter
from qurate.selection.pseudo_labels import Positives


@dataclass(frozen=True)
class Action:
    """One action of the agent, lines 9 to 15.

    Args:
        round: Its round: 0, 1, ...
        sample: Position in D_u of the chosen sample.
        label: Its pseudo-label.
        reward: +1 or -1, Eq. (8).
        phi: Its quality, Eq. (4).
        entropy_drop: Delta_e in it, Eq. (7).
        loss: Of the Q-network, before its update.
        exploration: Probability that the action was a random one.
    """

    round: int
    sample: int
    label: int
    reward: float
    phi: float
    entropy_drop: float
    loss: float | None
    exploration: float


@dataclass(frozen=True)
class RoundRecord:
    """One round in numbers.

    Args:
        round: 0, 1, ...
        positives: Size of D_p.
        new: How many of them were not in it before, or under another label.
        seconds: Of the round.
    """

    round: int
    positives: int
    new: int
    seconds: float


class Callback:
    """Called as a run goes; override the methods of interest.

    Example:
        >>> class Print(Callback):
        ...     def on_round(self, record, method, positives):
        ...         print(f"round {record.round}: {len(positives)} positives")
        >>> Print().on_round(RoundRecord(0, 0, 0, 0.1), None, Positives.none())
        round 0: 0 positives
    """

    def on_start(self, method: Method) -> None:
        """F and C are built; the method is trained in place from here on."""

    def on_memory(self, peak: int) -> None:
        """The expected peak memory of the process in bytes, before the agent allocates any of it."""

    def on_step(self, step: int, terms: dict[str, float]) -> None:
        """A training step of line 1 or 20: its number from 1, and the terms of the loss."""

    def on_pretrained(self, method: Method) -> None:
        """Line 1 is done."""

    def on_waited(self, waited: float, seconds: float) -> None:
        """F and C are trained: for how many seconds of all its steps the network waited for data."""

    def on_round_start(self, number: int) -> None:
        """A round begins: 0, 1, ..."""

    def on_action(self, action: Action) -> None:
        """The agent acted and learned."""

    def on_round(self, record: RoundRecord, method: Method, positives: Positives) -> None:
        """Line 20 is done: a round has ended, with this D_p."""


class Callbacks(Callback):
    """All of several callbacks, in their order.

    Args:
        callbacks: Called in this order.
    """

    def __init__(self, callbacks: Sequence[Callback]) -> None:
        for name in [name for name in vars(Callback) if name.startswith("on_")]:
            setattr(self, name, partial(_call_all, [getattr(each, name) for each in callbacks]))


def _call_all(functions: Sequence[Callable[..., None]], *arguments: object) -> None:
    for function in functions:
        function(*arguments)


class StepCount(Callback):
    """Shows all steps of a run as one phase.

    Args:
        reporter: Called after each step.
        phase: What it is called.
        total: Steps of the whole run.
    """

    def __init__(self, reporter: Reporter, phase: str, total: int) -> None:
        self._reporter, self._phase, self._total = reporter, phase, total
        self._done = itertools.count(1)

    def on_step(self, step: int, terms: dict[str, float]) -> None:
        """One more."""
        self._reporter.show(self._phase, next(self._done), self._total)
