"""The adapted model compared with S+T: folds of the labelled target, trained in processes, and the comparison."""

from __future__ import annotations

import itertools
import math
import pickle
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Literal, Self, cast, get_args

import torch
from torch import Tensor

from qurate.config import RunConfig
from qurate.data.samples import Split, Unlabeled
from qurate.embedding.backbone import choose_device
from qurate.embedding.embed import MOST_IN_MEMORY
from qurate.run_results import BaselineComparison, Gain
from qurate.runs.verdict import estimate_gain, images_needed, verdict_of
from qurate.runtime.machine import available_cores
from qurate.runtime.processes import WorkerProcess, report_progress
from qurate.runtime.progress import Reporter
from qurate.runtime.tensors import pack_tensors, read_tensors
from qurate.selection.callbacks import Callback, StepCount
from qurate.selection.crossfit import FOLDS, Fold, HeldOut, draw_folds, fit_fold, shuffle_classes

Model = Literal["baseline", "adapted"]
"""Which of the two models a fold is of."""
Folds = Mapping[tuple[Model, int], Fold]
"""Folds that are done, by their model and their place."""


def pack_folds(folds: Folds) -> bytes:
    """Folds that are done, as the content of a file."""
    return pack_tensors(
        {
            f"{model} {number} {name}": each
            for (model, number), fold in folds.items()
            for name, each in fold.tensors().items()
        }
    )


def unpack_folds(path: Path, split: Split, folds: Sequence[Tensor]) -> dict[tuple[Model, int], Fold] | None:
    """The folds in a file of `pack_folds`; None where it is damaged, or of other data."""
    try:
        parts: dict[tuple[str, int], dict[str, Tensor]] = {}
        for name, each in read_tensors(path).items():
            model, number, part = name.split(" ")
            parts.setdefault((model, int(number)), {})[part] = each
        found = {key: Fold.of_tensors(each) for key, each in parts.items()}
        sound = all(
            model in get_args(Model) and number in range(len(folds)) and fold.fits(split, folds[number])
            for (model, number), fold in found.items()
        )
    except Exception:  # a damaged or foreign file fails in many ways; none of them runs its code
        return None
    return cast(dict[tuple[Model, int], Fold], found) if sound else None


WORTH_A_PROCESS = 2000
"""Training steps of all networks from which on processes are started: each takes seconds to begin. Our choice."""
_PAUSE = 0.5
"""Seconds between two looks at the progress of the processes."""


class CrossFit:
    """Trains a model without each fold's images; the result does not depend on how many are trained at once.

    Within its block other processes train their share of the folds while this one does something else; `collect` keeps
    what they have done, as the end of the block does, and `finish` trains what is left, here.

    Args:
        split: D_s, D_t, D_u.
        config: The run.
        folds: Positions in D_t of the images to hold out, one tensor for each training.
        title: Of the model, for the progress.
        baselines: What S+T of each fold says, see `fit_fold`; none unless given.
        done: Folds of an interrupted run, by their place in `folds`.
        on_fold: Called after each fold with its place.
        workers: How many to train at the same time, this process among them; `workers_for` unless given.
        beside: Whether this process trains a network of as many steps before it calls `finish`.
    """

    def __init__(
        self,
        split: Split,
        config: RunConfig,
        folds: Sequence[Tensor],
        *,
        title: str,
        baselines: Sequence[Tensor | None] = (),
        done: Mapping[int, Fold] | None = None,
        on_fold: Callable[[int, Fold], None] | None = None,
        workers: int | None = None,
        beside: bool = False,
    ) -> None:
        self._task = FoldTask.without_seal(split, config, folds, baselines or [None] * len(folds))
        self._title, self._on_fold, self._found = title, on_fold, dict(done or {})
        self._missing = [number for number in range(len(folds)) if number not in self._found]
        self._each = config.total_steps
        trainings = len(self._missing) + beside
        if workers is None:
            workers = workers_for(config, trainings, max(len(part) for part in split.parts.values()))
        workers = min(workers, trainings)
        self._shares = share_folds(self._missing, workers, busy=beside)
        self._processes = ExitStack()
        self._running: dict[Future[bytes], tuple[WorkerProcess, int]] = {}
        self._steps_here = 0

    def __enter__(self) -> Self:
        """Start the other processes."""
        if shares := [share for share in self._shares[1:] if share]:
            content = pickle.dumps(self._task)
            for share in shares:
                with suppress(OSError):  # no process can be started: its folds are trained here
                    worker = WorkerProcess(content, environment={"OMP_NUM_THREADS": "1"}, silent=True)
                    self._processes.enter_context(worker)
                    self._running |= {worker.submit(number): (worker, number) for number in share}
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Keep what they have trained, and end them, whatever they do."""
        try:
            self.collect()
        finally:
            self._processes.close()

    def finish(self, reporter: Reporter) -> tuple[Fold, ...]:
        """All folds; shows the progress of what is left."""
        if self._running:
            for number in self._shares[0]:
                self._fit_here(number, _OnStep(partial(self._count_step, reporter)))
        while self._running:
            wait(self._running, timeout=_PAUSE, return_when=FIRST_COMPLETED)
            self.collect()
            self._show(reporter)
        for number in self._missing:
            if number not in self._found:
                phase = f"{self._title}, fold {number + 1} of {len(self._task.folds)}"
                self._fit_here(number, StepCount(reporter, phase, self._each))
        return tuple(self._found[number] for number in range(len(self._task.folds)))

    def _fit_here(self, number: int, callback: Callback) -> None:
        self._keep(number, self._task.fit(number, callback))

    def _keep(self, number: int, fold: Fold) -> None:
        self._found[number] = fold
        if self._on_fold is not None:
            self._on_fold(number, fold)

    def collect(self) -> None:
        """Keep what the other processes have trained; what they could not is left for this one, which raises why."""
        for future in [future for future in self._running if future.done()]:
            _, number = self._running.pop(future)
            if future.exception() is None:
                self._keep(number, pickle.loads(future.result()))

    def _count_step(self, reporter: Reporter) -> None:
        self._steps_here += 1
        self.collect()
        self._show(reporter)

    def _show(self, reporter: Reporter) -> None:
        there = {number for share in self._shares[1:] for number in share}
        done = self._each * len(there & self._found.keys()) + self._steps_here
        done += sum(worker.progress for worker in {worker for worker, _ in self._running.values()})
        folds, total = len(self._task.folds), self._each * len(self._missing)
        at_a_time = min(len(self._shares), folds)
        reporter.show(f"{self._title}, {at_a_time} of {folds} folds at a time", min(done, total), total)


def share_folds(folds: Sequence[int], workers: int, *, busy: bool) -> list[list[int]]:
    """Which folds each of some processes trains; the first is this one, which has a training before if it is busy."""
    shares: list[list[int]] = [[] for _ in range(max(1, workers))]
    for fold in folds:
        trainings = [len(share) + (busy and place == 0) for place, share in enumerate(shares)]
        shares[min(range(len(shares)), key=lambda place: (trainings[place], place == 0))].append(fold)
    return shares


def workers_for(config: RunConfig, trainings: int, most_rows: int) -> int:
    """How many networks to train at the same time: one for each core, where only the head is trained, on a CPU.

    Args:
        config: The run.
        trainings: How many there are.
        most_rows: Rows of the largest part. Each process would have a copy of very many embeddings, so it is one.
    """
    small, many = trainings * config.total_steps < WORTH_A_PROCESS, most_rows > MOST_IN_MEMORY
    several = config.execution.processes > 1  # they are busy together
    if small or many or several or config.network.backbone != "none":
        return 1
    if choose_device(config.execution.device).type != "cpu":
        return 1
    return max(1, min(trainings, available_cores() // max(1, config.execution.threads)))


@dataclass(frozen=True, eq=False)
class FoldTask:
    """Trains folds, also in a worker process; the split holds tensors, the folds positions in D_t."""

    split: Split
    config: RunConfig
    folds: tuple[Tensor, ...]
    baselines: tuple[Tensor | None, ...]

    @classmethod
    def without_seal(
        cls, split: Split, config: RunConfig, folds: Sequence[Tensor], baselines: Sequence[Tensor | None]
    ) -> FoldTask:
        """The task, without any sealed label."""
        unlabeled = Unlabeled(split.target_unlabeled.inputs)
        part = Split(split.classes, split.source, split.target_labeled, unlabeled)
        return cls(part, config, tuple(folds), tuple(baselines))

    def fit(self, number: int, callback: Callback) -> Fold:
        """Train a fold."""
        return fit_fold(self.split, self.config, self.folds[number], [callback], baseline=self.baselines[number])

    def __call__(self, number: int) -> bytes:
        """Train a fold in a worker process; the pickled `Fold`."""
        report_progress(0)
        steps = itertools.count(1)
        return pickle.dumps(self.fit(number, _OnStep(lambda: report_progress(next(steps)))))


class _OnStep(Callback):
    """Calls a function after each step."""

    def __init__(self, call: Callable[[], None]) -> None:
        self._call = call

    def on_step(self, step: int, terms: dict[str, float]) -> None:
        self._call()


ENOUGH = 100
"""Images in a third of the labelled ones from which on that third is held out once, instead of in folds. Our choice."""


@dataclass(frozen=True, eq=False)
class Plan:
    """Which labelled target images are held out.

    Args:
        how: In words, for the page.
        folds: Positions in D_t, one tensor for each pair of trainings; none where there are too few images.
    """

    how: str
    folds: tuple[Tensor, ...]


def plan_comparison(labels: Tensor, *, seed: int) -> Plan:
    """Choose held-out images; every class keeps at least one to train on.

    Args:
        labels: Of D_t, (N,) int64.
        seed: Decides which images.
    """
    place, size = shuffle_classes(labels, seed=seed)
    third = ((place % FOLDS == 0) & (size >= 2 * FOLDS)).nonzero().squeeze(1)
    if len(third) >= ENOUGH and bool((size >= 2 * FOLDS).all()):
        return Plan("held-out images", (third,))
    return Plan("k-fold over the labelled images", draw_folds(labels, FOLDS, seed=seed))


def compare(held_out: HeldOut, how: str, adapted: Tensor, baseline: Tensor) -> BaselineComparison:
    """Judge the model against S+T.

    Args:
        held_out: What both say of images that neither was trained on; at least one.
        how: The images were held out, in words.
        adapted: Log-probabilities of D_u by the combined model, trained on all labelled images, (N_u, K).
        baseline: Those by S+T, trained on all of them too, (N_u, K).
    """
    found = estimate_gain(held_out, adapted, baseline)
    verdict, images = verdict_of(found.gain), len(held_out.images.unique())
    wanted = more = None
    if verdict == "unclear" and found.disagreement:
        wanted = gain_worth_seeing(found.gain)
        needed = images_needed(found, images, wanted)
        more = None if needed is None else math.ceil((needed - images) / adapted.shape[1])
    right = [
        float((log_probs.argmax(dim=1) == held_out.labels).double().mean())
        for log_probs in (held_out.adapted, held_out.baseline)
    ]
    return BaselineComparison(
        adapted=right[0],
        baseline=right[1],
        images=images,
        how=how,
        disagreement=found.disagreement,
        moved=moved_proportions(adapted.argmax(dim=1), baseline.argmax(dim=1), adapted.shape[1]),
        gain=found.gain,
        verdict=verdict,
        wanted=wanted,
        more=more,
    )


def gain_worth_seeing(gain: Gain) -> float:
    """The estimated gain where it is a point or more, else half of what can be seen now; in points, at least 1."""
    seen = gain.smallest if math.isfinite(gain.smallest) else 0.0
    size = abs(gain.estimate) if abs(gain.estimate) >= 0.01 else seen / 2
    return max(1, round(100 * size)) / 100


def moved_proportions(adapted: Tensor, baseline: Tensor, n_classes: int) -> float:
    """Half the sum over classes of |share by one model - share by the other|: from 0 to 1; predicted classes (N_u,)."""
    shares = [torch.bincount(named, minlength=n_classes).double() / len(named) for named in (adapted, baseline)]
    return float((shares[0] - shares[1]).abs().sum() / 2)
