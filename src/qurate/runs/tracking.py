"""Curves of a run for TensorBoard, where the extra `tensorboard` is installed."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import Any

from qurate.methods import Method
from qurate.selection.callbacks import Action, Callback, RoundRecord
from qurate.selection.positives import Positives

EVERY = 10
"""Steps between two points of a curve."""


class Tracker(Callback):
    """Writes losses, rewards and the number of positives as TensorBoard scalars; does nothing without the extra.

    Args:
        folder: Where the event files go; None writes nothing.
    """

    def __init__(self, folder: Path | None) -> None:
        self._folder = folder if find_spec("tensorboard") is not None else None
        self._writer: Any = None
        self._steps = 0
        self._actions = 0

    def on_step(self, step: int, terms: dict[str, float]) -> None:
        """Terms of the loss, every few steps."""
        self._steps += 1
        if self._steps % EVERY == 0:
            for name, value in terms.items():
                self._write(f"training/{name}", value, self._steps)

    def on_action(self, action: Action) -> None:
        """Reward and phi of each action."""
        self._actions += 1
        self._write("selection/reward", action.reward, self._actions)
        self._write("selection/phi", action.phi, self._actions)

    def on_round(self, record: RoundRecord, method: Method, positives: Positives) -> None:
        """Positives of each round."""
        self._write("rounds/positives", record.positives, record.round)
        self._write("rounds/new", record.new, record.round)

    def close(self) -> None:
        """Flush what was written."""
        if self._writer is not None:
            self._writer.close()

    def _write(self, name: str, value: float, step: int) -> None:
        if self._folder is None:
            return
        if self._writer is None:  # not before there is something to write: a run may be refused
            from torch.utils.tensorboard import SummaryWriter  # needs the extra

            self._writer = SummaryWriter(str(self._folder))
        self._writer.add_scalar(name, value, step)
