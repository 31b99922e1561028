"""`adapt --train full`: all layers from where the head on the frozen backbone ended, kept only if that is better.

Linear probing, then fine-tuning (Kumar et al., "Fine-Tuning can Distort Pretrained Features and Underperform
Out-of-Distribution", 2022), for domain adaptation. The rates, warm-up and norms are measured in docs/whole_networks.md.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import Tensor
from torch.nn import functional as F

from qurate.calibration import fit_temperature
from qurate.config import NetworkConfig, RunConfig, SelectionConfig, SelectorConfig, TrainingConfig
from qurate.data.samples import Split
from qurate.methods import Method
from qurate.networks.inference import log_probabilities
from qurate.run_results import Gain
from qurate.runs.files import FULL_FILE, FULL_FOLDS_FILE
from qurate.runs.folder import RunFolder, read_checkpoint
from qurate.runs.verdict import estimate_gain
from qurate.runtime.files import write_atomically
from qurate.runtime.progress import Reporter
from qurate.runtime.randomness import random_state, seeded
from qurate.runtime.tensors import pack_tensors, read_tensors
from qurate.selection.algorithm import Adaptation, fit
from qurate.selection.callbacks import Callback, StepCount
from qurate.selection.crossfit import HeldOut, hold_out
from qurate.selection.session import Checkpoint, MidTraining, Progress
from qurate.training import start

FULL_STEPS = 60
"""Training steps of all layers. Our choice; measured: docs/whole_networks.md."""
LEARNING_RATE, BACKBONE_RATE, WARMUP_STEPS = 0.001, 0.0001, 10
"""Of the head, of the backbone, and the steps in which they rise to that. Our choice; measured likewise."""


def full_training(training: TrainingConfig, steps: int) -> TrainingConfig:
    """How all layers are trained, with the batches and precision of a run on a frozen backbone."""
    return replace(
        training,
        steps=steps,
        learning_rate=LEARNING_RATE,
        backbone_learning_rate=BACKBONE_RATE,
        warmup_steps=WARMUP_STEPS,
        schedule="steps",
        frozen_norms=True,
        frozen_bottleneck=True,
    )


def full_config(config: RunConfig, network: NetworkConfig, training: TrainingConfig) -> RunConfig:
    """The run that continues from a head as the first round of Algorithm 1 would, all of its steps in line 20.

    Args:
        config: Of the run on the frozen backbone.
        network: The backbone and its weights.
        training: Of all layers.
    """
    any_selector = SelectorConfig.of("share")  # not called: D_p is there
    selection = SelectionConfig(selector=any_selector, rounds=1, round_steps=training.steps)
    return replace(config, network=network, training=replace(training, steps=1), selection=selection)


class _FromHead:
    """A checkpoint at the beginning of line 20, and whatever is saved after it.

    Args:
        beginning: The beginning.
        path: File of later ones; none are kept where it is None.
    """

    def __init__(self, beginning: Progress, path: Path | None) -> None:
        self._beginning, self._path = beginning, path

    def load(self) -> Progress:
        if self._path is None or not self._path.is_file():
            return self._beginning
        try:
            return read_checkpoint(self._path)
        except Exception:  # a damaged or foreign file fails in many ways; none of them runs its code
            return self._beginning

    def save(self, progress: Progress) -> None:
        if self._path is not None:
            write_atomically(self._path, pack_tensors(progress.tensors()))


def fine_tune(
    images: Split,
    head: Adaptation,
    config: RunConfig,
    *,
    file: Path | None = None,
    callbacks: Sequence[Callback] = (),
) -> Method:
    """Train all layers from a head, with its pseudo-labels.

    Args:
        images: D_s, D_t, D_u as image files.
        head: F and C after the frozen backbone, and D_p.
        config: Of `full_config`.
        file: Where checkpoints are kept.
        callbacks: See `fit`.
    """
    trainer = start(images, config)
    trainer.method.load_state_dict(head.method.state_dict(), strict=False)  # all but the backbone
    with seeded(config.seed):
        random = random_state(torch.device("cpu"))
    beginning = Progress(trainer=trainer.state_dict(), mid_training=MidTraining(20, 0, random, head.positives))
    checkpoint: Checkpoint = _FromHead(beginning, file)
    return fit(images, config, checkpoint=checkpoint, callbacks=callbacks).method


@dataclass(frozen=True, eq=False)
class FullTraining:
    """The fully trained model beside the one on the frozen backbone.

    Args:
        method: All layers trained.
        folds: By fold, log-probabilities of its held-out images by all layers trained without them, (n, K).
        gain: Over the frozen backbone; None where nothing was held out.
        sentence: Which is kept, and why.
    """

    method: Method
    folds: Mapping[int, Tensor]
    gain: Gain | None
    sentence: str

    @property
    def kept(self) -> bool:
        """Whether it is the better one, as far as is known."""
        return self.gain is None or self.gain.estimate > 0


def train_all_layers(
    embedded: Split,
    images: Split,
    head: Adaptation,
    config: RunConfig,
    full: RunConfig,
    folds: Sequence[Tensor],
    look: Callable[[Method], Tensor],
    folder: RunFolder | None,
    reporter: Reporter,
    method: Method | None = None,
    *,
    baselines: Sequence[Tensor | None] = (),
) -> FullTraining:
    """Train all layers, once with all labelled images and once without those of each fold, and judge them.

    Args:
        embedded: The split by the frozen backbone.
        images: The same as image files.
        head: Of the frozen backbone.
        config: Of its run.
        full: Of `full_config`.
        folds: Positions in D_t to hold out; none for no comparison.
        look: Log-probabilities of D_u by the fully trained model, (N_u, K).
        folder: Keeps checkpoints.
        reporter: Shown the progress.
        method: All layers trained with all labelled images, where that was done before.
        baselines: What S+T of each fold says, see `fit_fold`; none unless given.
    """
    steps = full.selection.round_steps

    def count(phase: str) -> list[Callback]:
        return [StepCount(reporter, phase, steps)]

    file = None if folder is None else folder.work / FULL_FILE
    method = method or fine_tune(images, head, full, file=file, callbacks=count("training all layers"))
    kept = _load_folds(folder, folds)
    for number, held_out in enumerate(folds):
        if number not in kept:
            part, hidden = hold_out(embedded, held_out)
            callbacks = [StepCount(reporter, f"head, fold {number + 1}", config.total_steps)]
            without = fit(part, config, callbacks=callbacks, baseline=baselines[number] if baselines else None)
            by_head = log_probabilities(without.method.network, hidden.inputs)
            part, hidden = hold_out(images, held_out)
            phase = f"all layers, fold {number + 1} of {len(folds)}"
            tuned = fine_tune(part, without, full, callbacks=count(phase))
            kept[number] = torch.stack([log_probabilities(tuned.network, hidden.inputs), by_head])
            if folder is not None:
                tensors = {str(n): both for n, both in kept.items()}
                write_atomically(folder.work / FULL_FOLDS_FILE, pack_tensors(tensors))
    if not folds:
        sentence = (
            "All layers were trained, and that model is kept: no labelled image was held out to compare it with the "
            "head on the frozen backbone."
        )
        return FullTraining(method, {}, None, sentence)
    labels = embedded.target_labeled.labels.cpu()
    judged = HeldOut.join([HeldOut(fold, labels[fold], *kept[number]) for number, fold in enumerate(folds)])
    temperature = fit_temperature(judged.adapted, judged.labels)
    calibrated = replace(judged, adapted=F.log_softmax(judged.adapted / temperature, dim=1))
    by_head = log_probabilities(head.method.network, embedded.target_unlabeled.inputs)
    found = estimate_gain(calibrated, F.log_softmax(look(method) / temperature, dim=1), by_head)
    return FullTraining(method, {n: both[0] for n, both in kept.items()}, found.gain, say_kept(judged, found.gain))


def say_kept(judged: HeldOut, gain: Gain) -> str:
    """Which model is kept and why: `judged` has the fully trained one as adapted and the frozen one as baseline."""
    right = [int((log_probs.argmax(dim=1) == judged.labels).sum()) for log_probs in (judged.adapted, judged.baseline)]
    which = "the fully trained model is kept" if gain.estimate > 0 else "the head on the frozen backbone is kept"
    return (
        f"All layers were trained, and {which}: an estimated gain of {100 * gain.estimate:+.1f} points by training all "
        f"layers (95 % interval {100 * gain.low:+.1f} to {100 * gain.high:+.1f}), right on {right[0]} of "
        f"{len(judged.labels)} held-out labelled images against {right[1]}."
    )


def _load_folds(folder: RunFolder | None, folds: Sequence[Tensor]) -> dict[int, Tensor]:
    """Both models' log-probabilities in the folds that are done, (2, n, K) each; none where the file is damaged."""
    path = None if folder is None else folder.work / FULL_FOLDS_FILE
    if path is None or not path.is_file():
        return {}
    try:
        found = {int(name): both for name, both in read_tensors(path).items()}
    except Exception:  # a damaged or foreign file fails in many ways; none of them runs its code
        return {}
    return {n: both for n, both in found.items() if n < len(folds) and both.shape[:2] == (2, len(folds[n]))}
