"""What a run computes after its images are embedded, in training steps, and how long that still takes."""

from __future__ import annotations

import math
import re
import time
from collections.abc import Sequence
from typing import NamedTuple

from torch import Tensor

from qurate.config import RunConfig
from qurate.presets import baseline_of, is_baseline
from qurate.runs.comparison import plan_comparison, workers_for
from qurate.runs.setup import Clock
from qurate.runtime.progress import Reporter

WRITING_STEPS, WRITING_STEPS_PER_IMAGE = 4000.0, 0.25
"""What writing model, tables and page costs in training steps: mostly the two maps of at most so many images. The model
that doubts labels (`leave_one_out`) is in it: 0.01 to 0.03 steps per labelled image, measured on 3,000 and 12,000. Our
choice."""
WRITING_AGAIN = 0.25
"""Share of it that is written again after the comparison. Our choice."""
STEP_SECONDS = 0.0025
"""Seconds of a training step as long as none was timed. Our choice."""


class Workload(NamedTuple):
    """The phases of a run after embedding, in their order; each in training steps that are made one after the other."""

    baseline: float
    baseline_folds: float
    pretraining: float
    rounds: float
    writing: float
    folds: float
    writing_again: float


def workload_of(config: RunConfig, labels: Tensor, sizes: Sequence[int], *, compare: bool) -> Workload:
    """What a run of the head costs; networks trained at the same time count once.

    Args:
        config: The run.
        labels: Of D_t, (N,) int64.
        sizes: Images of each part.
        compare: Whether it is compared with S+T.
    """
    steps, folds = config.training.steps, len(plan_comparison(labels, seed=config.seed).folds)
    is_compared = compare and folds > 0 and not is_baseline(config)
    workers = [workers_for(run, folds + 1, max(sizes)) for run in (baseline_of(config), config)]
    waves = [math.ceil((folds + 1) / each) - 1 for each in workers]
    has_baseline = is_compared or config.selection.labeler == "combined"
    writing = WRITING_STEPS + WRITING_STEPS_PER_IMAGE * sum(sizes)
    return Workload(
        baseline=steps * has_baseline,
        baseline_folds=waves[0] * steps * is_compared,
        pretraining=steps,
        rounds=config.total_steps - steps,
        writing=writing,
        folds=waves[1] * config.total_steps * is_compared,
        writing_again=WRITING_AGAIN * writing * is_compared,
    )


_PHASES = ("S+T on all", "S+T,", "pre-training", "round", "writing", "comparison")
"""How the name of each phase of a workload begins, but for the last, which is never shown."""
_TIMED = ("S+T on all", "pre-training", "round")
_ONE_OF = re.compile(r"(?:round|fold) (\d+) of (\d+)")
_LEAST_STEPS = 20


class TimeLeft:
    """Shows a run with the time that all of it still takes, the writing of its results too.

    Args:
        reporter: Shown it.
        work: What is to be done after embedding.
        clock: Tells the time.
    """

    def __init__(self, reporter: Reporter, work: Workload, clock: Clock = time.perf_counter) -> None:
        self._reporter, self._work, self._clock = reporter, work, clock
        self._step = STEP_SECONDS
        self._phase = ""
        self._begun = (0, 0.0)

    def say(self, line: str) -> None:
        """A sentence."""
        self._reporter.say(line)

    def show(self, phase: str, done: int, total: int, *, later: float = 0.0) -> None:
        """How far a phase is; `later` is added to what comes after it."""
        if phase != self._phase:
            self._phase, self._begun = phase, (done, self._clock())
        made = done - self._begun[0]
        if phase.startswith(_TIMED) and made >= _LEAST_STEPS:
            self._step = (self._clock() - self._begun[1]) / made
        self._reporter.show(phase, done, total, later=later + self._steps_after(phase, done) * self._step)

    def _steps_after(self, phase: str, done: int) -> float:
        """Steps of later phases, and of this one as long as nothing of it is done; none where it is not known."""
        at = next((place for place, name in enumerate(_PHASES) if phase.startswith(name)), None)
        if at is None:
            return sum(self._work) if phase == "embedding" else 0.0
        number, count = map(int, found.groups()) if (found := _ONE_OF.search(phase)) else (1, 1)
        ahead = (count - number + (done == 0)) / count
        return self._work[at] * ahead + sum(self._work[at + 1 :])
