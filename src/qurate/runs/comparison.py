"""The adapted model compared with S+T: folds of the labelled target, trained in processes, and the comparison."""

from __future__ import annotations

import itertools
import math
import pickle
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, cast, get_args

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
"""Training steps of all folds from which on processes are started: each takes seconds to begin. Our choice."""
_PAUSE = 0.5
"""Seconds between two looks at the progress of the processes."""


def cross_fit(
    split: Split,
    config: RunConfig,
    folds: Sequence[Tensor],
    reporter: Reporter,
    *,
    title: str,
    baselines: Sequence[Tensor | None] = (),
    done: Mapping[int, Fold] | None = None,
    on_fold: Callable[[int, Fold], None] | None = None,
    workers: int | None = None,
) -> tuple[Fold, ...]:
    """Train a model without each fold's images; the result does not depend on how many are trained at once.

    Args:
        split: D_s, D_t, D_u.
        config: The run.
        folds: Positions in D_t of the images to hold out, one tensor for each training.
        reporter: Shown the progress.
        title: Of the model, for the progress.
        baselines: What S+T of each fold says, see `fit_fold`; none unless given.
        done: Folds of an interrupted run, by their place in `folds`.
        on_fold: Called after each fold with its place.
        workers: How many to train at the same time, each in a process of its own; `workers_for` unless given.
    """
    found, baselines = dict(done or {}), baselines or [None] * len(folds)

    def keep(number: int, fold: Fold) -> None:
        found[number] = fold
        if on_fold is not None:
            on_fold(number, fold)

    missing = [number for number in range(len(folds)) if number not in found]
    if workers is None:  # each process would have a copy of very many embeddings
        many = len(split.target_unlabeled) > MOST_IN_MEMORY
        workers = 1 if many else workers_for(config, len(missing))
    workers = min(workers, len(missing))
    if workers > 1:
        _fit_in_processes(
            FoldTask.without_seal(split, config, folds, baselines), missing, workers, reporter, keep, title
        )
    for number in missing:
        if number not in found:
            steps = StepCount(reporter, f"{title}, fold {number + 1} of {len(folds)}", config.total_steps)
            keep(number, fit_fold(split, config, folds[number], [steps], baseline=baselines[number]))
    return tuple(found[number] for number in range(len(folds)))


def workers_for(config: RunConfig, folds: int) -> int:
    """How many folds to train at the same time: one for each core, where only the head is trained, on a CPU."""
    small = folds * config.total_steps < WORTH_A_PROCESS
    several = config.execution.processes > 1  # they are busy together
    if small or several or config.network.backbone != "none" or choose_device(config.execution.device).type != "cpu":
        return 1
    return max(1, min(folds, available_cores() // max(1, config.execution.threads)))


@dataclass(frozen=True, eq=False)
class FoldTask:
    """Trains folds in a worker process; the split holds tensors, the folds positions in D_t."""

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

    def __call__(self, number: int) -> bytes:
        """Train a fold; the pickled `Fold`."""
        images, baseline = self.folds[number], self.baselines[number]
        return pickle.dumps(fit_fold(self.split, self.config, images, [_ReportSteps()], baseline=baseline))


class _ReportSteps(Callback):
    def __init__(self) -> None:
        self._done = itertools.count(1)

    def on_step(self, step: int, terms: dict[str, float]) -> None:
        report_progress(next(self._done))


def _fit_in_processes(
    task: FoldTask,
    missing: Sequence[int],
    workers: int,
    reporter: Reporter,
    keep: Callable[[int, Fold], None],
    title: str,
) -> None:
    """Train folds in worker processes; those that could not be trained there are left to the caller."""
    each, waiting, steps = task.config.total_steps, list(missing), dict.fromkeys(missing, 0)
    phase = f"{title}, {workers} of {len(task.folds)} folds at a time"
    running: dict[Future[bytes], tuple[WorkerProcess, int]] = {}
    content = pickle.dumps(task)

    def train_next(worker: WorkerProcess) -> None:
        with suppress(OSError):  # no process can be started
            running[worker.submit(waiting[0])] = worker, waiting[0]
            del waiting[0]

    with ExitStack() as stack:
        for _ in range(workers):
            with suppress(OSError):
                worker = WorkerProcess(content, environment={"OMP_NUM_THREADS": "1"}, silent=True)
                train_next(stack.enter_context(worker))
        while running:
            reporter.show(phase, sum(steps.values()), each * len(missing))
            for future in wait(running, timeout=_PAUSE, return_when=FIRST_COMPLETED).done:
                worker, fold = running.pop(future)
                if future.exception() is None:  # else it is raised again when the fold is trained by this process
                    steps[fold] = each
                    keep(fold, pickle.loads(future.result()))
                    if waiting:
                        train_next(worker)
            steps |= {fold: worker.progress for worker, fold in running.values()}
        reporter.show(phase, sum(steps.values()), each * len(missing))


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
