"""What listens to a run on own images: the progress that is shown, and curves for TensorBoard."""

from __future__ import annotations

import os
import time
import warnings
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from qurate.config import RunConfig
from qurate.methods import Method
from qurate.runtime.progress import Reporter
from qurate.selection.callbacks import Action, Callback, RoundRecord
from qurate.selection.pseudo_labels import Positives
from qurate.selection.q_learning.memory import readable_size


class PhaseProgress(Callback):
    """Shows pre-training and each round as a phase.

    Args:
        reporter: Shown them.
        config: The run.
    """

    def __init__(self, reporter: Reporter, config: RunConfig) -> None:
        self._reporter = reporter
        self._selection = config.selection
        self._loads = config.network.backbone != "none"
        self._phase, self._total = "pre-training", config.training.steps

    def on_memory(self, peak: int) -> None:
        """Say it once."""
        self._reporter.say(f"Expected memory: about {readable_size(peak)}.")

    def on_step(self, step: int, terms: dict[str, float]) -> None:
        """Move on."""
        self._reporter.show(self._phase, step, self._total)

    def on_waited(self, waited: float, seconds: float) -> None:
        """Say it where images are decoded for each step."""
        if self._loads and seconds:
            self._reporter.say(
                f"The network waited for data in {waited / seconds:.0%} of {seconds:.0f} seconds of training."
            )

    def on_round_start(self, number: int) -> None:
        """A new phase."""
        self._phase, self._total = f"round {number + 1} of {self._selection.rounds}", self._selection.round_steps
        self._reporter.show(self._phase, 0, self._total)


EVERY = 10
"""Steps between two points of a curve."""


class TensorBoardCurves(Callback):
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
        """Close the file."""
        if self._writer is not None:
            self._writer.close()

    def _write(self, name: str, value: float, step: int) -> None:
        """Add a point at once: torch's SummaryWriter would do so in a thread, which prints tracebacks."""
        if self._folder is None:
            return
        from tensorboard.compat.proto.event_pb2 import Event  # needs the extra
        from tensorboard.compat.proto.summary_pb2 import Summary
        from tensorboard.summary.writer.record_writer import RecordWriter

        now = time.time()
        try:
            if self._writer is None:  # not before there is something to write: a run may be refused
                self._folder.mkdir(parents=True, exist_ok=True)
                path = self._folder / f"events.out.tfevents.{now:.0f}.{os.getpid()}"
                self._writer = RecordWriter(path.open("ab", buffering=0))
                self._writer.write(Event(wall_time=now, file_version="brain.Event:2").SerializeToString())
            point = Summary(value=[Summary.Value(tag=name, simple_value=value)])
            self._writer.write(Event(wall_time=now, step=step, summary=point).SerializeToString())
        except OSError as error:
            warnings.warn(f"{self._folder}: curves cannot be written ({error.strerror}).", RuntimeWarning, stacklevel=2)
            self._folder = None
