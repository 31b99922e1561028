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
        self._writer = None if folder is None or find_spec("tensorboard") is None else _open(folder)
        self._steps = 0
        self._actions = 0

    def on_step(self, step: int, terms: dict[str, float]) -> None:
        """Terms of the loss, every few steps."""
        self._steps += 1
        if self._writer is not None and self._steps % EVERY == 0:
            for name, value in terms.items():
                self._writer.add_scalar(f"training/{name}", value, self._steps)

    def on_action(self, action: Action) -> None:
        """Reward and phi of each action."""
        self._actions += 1
        if self._writer is not None:
            self._writer.add_scalar("selection/reward", action.reward, self._actions)
            self._writer.add_scalar("selection/phi", action.phi, self._actions)

    def on_round(self, record: RoundRecord, method: Method, positives: Positives) -> None:
        """Positives of each round."""
        if self._writer is not None:
            self._writer.add_scalar("rounds/positives", record.positives, record.round)
            self._writer.add_scalar("rounds/new", record.new, record.round)

    def close(self) -> None:
        """Flush what was written."""
        if self._writer is not None:
            self._writer.close()


def _open(folder: Path) -> Any:
    from torch.utils.tensorboard import SummaryWriter  # needs the extra

    return SummaryWriter(str(folder))
