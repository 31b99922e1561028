"""Curves of a run for TensorBoard, where the extra `tensorboard` is installed."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import Any

from qurate.selection.algorithm import Event

EVERY = 10
"""Steps between two points of a curve."""


class Tracker:
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

    def on_event(self, event: Event) -> None:
        """Reward and phi of each action, positives of each round."""
        if self._writer is None:
            return
        if event.line == 13:
            self._actions += 1
            for name in ("reward", "phi"):
                self._writer.add_scalar(f"selection/{name}", event.data[name], self._actions)
        elif event.line == 20:
            for name in ("positives", "new"):
                self._writer.add_scalar(f"rounds/{name}", event.data[name], event.data["round"])

    def close(self) -> None:
        """Flush what was written."""
        if self._writer is not None:
            self._writer.close()


def _open(folder: Path) -> Any:
    from torch.utils.tensorboard import SummaryWriter  # needs the extra

    return SummaryWriter(str(folder))
