"""How far one training is, whatever its rounds."""

from __future__ import annotations

import itertools

from qurate.runtime.progress import Audience
from qurate.selection.callbacks import Callback


class StepCount(Callback):
    """Shows all steps of a run as one phase.

    Args:
        audience: Told after each step.
        phase: What it is called.
        total: Steps of the whole run.
    """

    def __init__(self, audience: Audience, phase: str, total: int) -> None:
        self._audience, self._phase, self._total = audience, phase, total
        self._done = itertools.count(1)

    def on_step(self, step: int, terms: dict[str, float]) -> None:
        """One more."""
        self._audience.show(self._phase, next(self._done), self._total)
