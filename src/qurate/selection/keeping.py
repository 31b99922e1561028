"""When progress is kept in the middle of training: every so many steps or minutes, and before a process is stopped."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

from qurate.config import TrainingConfig
from qurate.runtime.randomness import random_state
from qurate.runtime.stops import Stops
from qurate.selection.checkpoint import Checkpoint, Progress, Within, save
from qurate.selection.positives import Positives
from qurate.selection.selectors.base import Selector
from qurate.training import OnStep, Trainer


class Keeper:
    """Keeps where a run is while F and C train, lines 1 and 20.

    Args:
        checkpoint: Where; nowhere if None.
        config: How often.
        trainer: F and C.
        selector: Who selects.
    """

    def __init__(
        self, checkpoint: Checkpoint | None, config: TrainingConfig, trainer: Trainer, selector: Selector
    ) -> None:
        self._checkpoint, self._config, self._trainer, self._selector = checkpoint, config, trainer, selector
        self._stops = Stops()
        self._kept = time.monotonic()

    def save(self, progress: Progress) -> None:
        """Keep where the run is between two lines."""
        save(self._checkpoint, progress, self._trainer, self._selector)
        self._kept = time.monotonic()

    @contextmanager
    def during(
        self, on_step: OnStep, progress: Progress, line: int, chosen: Positives | None = None
    ) -> Iterator[OnStep]:
        """A block in which F and C train; Ctrl-C and SIGTERM wait for the end of a step, and for its checkpoint.

        Args:
            on_step: Told of each step.
            progress: Where the run was when the line began.
            line: 1 or 20.
            chosen: D_p that line 20 trains with.

        Yields:
            Who is to be told of each step.
        """

        def told(step: int, terms: dict[str, float]) -> None:
            on_step(step, terms)
            if self._stops.asked or self._is_due(step):
                random = random_state(self._trainer.fabric.device)
                self.save(replace(progress, within=Within(line, step, random, chosen)))
            if self._stops.asked:
                self._stops.let_through()

        if self._checkpoint is None:
            yield on_step
            return
        with self._stops.held():
            yield told

    def _is_due(self, step: int) -> bool:
        every, minutes = self._config.checkpoint_steps, self._config.checkpoint_minutes
        return bool(every and step % every == 0) or bool(minutes and time.monotonic() - self._kept >= 60 * minutes)
