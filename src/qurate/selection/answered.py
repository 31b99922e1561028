"""A split after people have answered, and a run that learns from it (decision 52)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from qurate.config import DQNConfig, RunConfig
from qurate.data.batches import TrainingData
from qurate.data.samples import DataError, Labeled, Split, Unlabeled, check_positions, describe, join, take
from qurate.errors import ConfigError
from qurate.runtime.compute import fits_half
from qurate.selection.algorithm import fit
from qurate.selection.callbacks import Callback, Callbacks
from qurate.selection.dqn import DQNSelector
from qurate.selection.pseudo_labels import Positives, Round, find_neighbors, pseudo_label
from qurate.selection.selectors import build_selector
from qurate.selection.session import Adaptation, Checkpoint, RunArguments, check_arguments
from qurate.training import Trainer, start

SHORTER = 3
"""How many times fewer steps a run takes that learns from answers. Our choice."""


@dataclass(frozen=True, eq=False)
class Previous:
    """A finished run that people have answered questions about.

    Its weights and positives serve the agent of selector 'dqn' alone, whose true rewards are for its pseudo-labels.

    Args:
        weights: State of its method, F and C.
        positives: Its D_p, as positions in the D_u that is now left; see `answer`.
        answered: How many of the last samples of D_t people have labelled since.
        true_rewards: Whether an agent is rewarded by the answers before its first round.
    """

    weights: Mapping[str, Tensor]
    positives: Positives
    answered: int = 0
    true_rewards: bool = True

    def __post_init__(self) -> None:
        if self.answered < 0:
            raise ConfigError(f"Previous: answered must be at least 0, got {self.answered}.")


@dataclass(frozen=True, eq=False)
class Answered:
    """A split after people have answered.

    Args:
        split: Labelled samples have joined D_t, at its end; all that were answered have left D_u.
        kept: Positions in the former D_u of the samples of the new one, (N_u,) int64.
        joined: How many joined D_t.
    """

    split: Split
    kept: Tensor
    joined: int

    def keep(self, positives: Positives) -> Positives:
        """Of positives of the former D_u those that are left, by their positions in the new one."""
        place = torch.full((int(max([*self.kept.tolist(), *positives.indices.tolist()], default=-1)) + 1,), -1)
        place[self.kept] = torch.arange(len(self.kept))
        moved = replace(positives, indices=place[positives.indices])
        return moved.take(moved.indices >= 0)


def answer(split: Split, indices: Tensor, labels: Tensor) -> Answered:
    """Move the samples of D_u that people have labelled to D_t.

    Args:
        split: Before the answers.
        indices: Positions in D_u, each once, (N_a,) int64.
        labels: The class of each, or -1 where it has none or nobody knows it: the sample leaves D_u and joins nothing.

    Raises:
        DataError: If a position comes twice or points nowhere, a label is no class, or nothing would be left of D_u.
    """
    n = len(split.target_unlabeled)
    check_positions(indices, n, "answer: indices")
    allowed = f"answer: labels must be a tensor (N,) of int64 between -1 and {split.n_classes - 1}"
    if not isinstance(labels, Tensor) or labels.dtype != torch.int64 or labels.ndim != 1:
        raise DataError(f"{allowed}, got {describe(labels)}.")
    if len(labels) and not -1 <= int(labels.min()) <= int(labels.max()) < split.n_classes:
        raise DataError(f"{allowed}, got {int(labels.min())} to {int(labels.max())}.")
    if len(indices) != len(labels) or len(indices.unique()) != len(indices):
        raise DataError(
            f"answer: each sample must come once and with one label, got {len(indices)} positions, "
            f"{len(indices.unique())} of them different, and {len(labels)} labels."
        )
    if len(indices) == n:
        raise DataError("answer: every unlabelled sample is answered, so there is nothing left to adapt to.")
    is_open = torch.ones(n, dtype=torch.bool)
    is_open[indices] = False
    kept = is_open.nonzero().squeeze(1)
    whole, target = split.target_unlabeled, split.target_labeled
    sealed = None if whole.sealed is None else whole.sealed.take(kept)
    named = labels >= 0
    if bool(named.any()):
        inputs = join(target.inputs, take(whole.inputs, indices[named]))
        target = Labeled(inputs, torch.cat([target.labels, labels[named].to(target.labels.device)]))
    left = replace(split, target_labeled=target, target_unlabeled=Unlabeled(take(whole.inputs, kept), sealed))
    return Answered(left, kept, int(named.sum()))


def third(count: int) -> int:
    """A third of so many, rounded up."""
    return -(-count // SHORTER)


def shorten(config: RunConfig) -> RunConfig:
    """The run with a third of the steps before selection, and of the steps and actions in each round, rounded up."""
    training, selection, selector = config.training, config.selection, config.selection.selector
    if isinstance(selector, DQNConfig):
        selector = replace(selector, episode=replace(selector.episode, actions=third(selector.episode.actions)))
    return replace(
        config,
        training=replace(training, steps=third(training.steps)),
        selection=replace(selection, selector=selector, round_steps=third(selection.round_steps)),
    )


def fit_with_answers(
    split: Split,
    config: RunConfig,
    previous: Previous,
    *,
    callbacks: Sequence[Callback] = (),
    checkpoint: Checkpoint | None = None,
    baseline: Tensor | None = None,
) -> Adaptation:
    """Algorithm 1 again after people have answered: with a third of the config's steps and actions; see `shorten`.

    An agent of selector 'dqn' is first rewarded by the answers (decision 52).

    Args:
        split: After the answers; see `answer`.
        config: Of the finished run.
        previous: The finished run.
        callbacks: See `fit`.
        checkpoint: See `fit`.
        baseline: See `fit`.
    """
    check_arguments(RunArguments(split, config, None, callbacks, checkpoint, None, baseline))
    _check_previous(previous, split)
    config, selector = shorten(config), None
    if isinstance(config.selection.selector, DQNConfig) and previous.true_rewards and previous.answered:
        resumes = checkpoint is not None and checkpoint.load() is not None
        trainer = start(split, config)
        network, n_unlabeled = trainer.method.network, len(split.target_unlabeled)
        selector = build_selector(config, network, n_unlabeled, Callbacks(callbacks), answers=previous.answered)
        assert isinstance(selector, DQNSelector)
        if not resumes:  # or else it has learned from them before
            selector.learn_from_answers(*label_before_answers(trainer, TrainingData.of(split), config, previous))
    return fit(split, config, selector=selector, callbacks=callbacks, checkpoint=checkpoint, baseline=baseline)


def label_before_answers(
    trainer: Trainer, data: TrainingData, config: RunConfig, previous: Previous
) -> tuple[Round, Tensor]:
    """Pseudo-labels of the finished run for D_u as it was before the answers, and what is known of it (decision 52).

    Args:
        trainer: Of a network like that of the finished run, whose weights it is given.
        data: After the answers.
        config: The run.
        previous: The finished run.

    Returns:
        The round, and the class of each sample of its D_u, -1 where it is not known, (N_u,) int64.
    """
    trainer.load_weights(previous.weights)
    trainer.step = trainer.total_steps  # trials are trained at the rate that the finished run ended with
    data, truth = before_answers(data, previous.answered)
    positives = replace(previous.positives, indices=previous.positives.indices + previous.answered)
    reward = config.selection.reward
    uses_neighbors = reward.center == "neighbors"
    neighbors = find_neighbors(trainer.method.network, data, reward.neighbors) if uses_neighbors else None
    return pseudo_label(trainer, data, positives, 0, config, neighbors), truth


def before_answers(data: TrainingData, answered: int) -> tuple[TrainingData, Tensor]:
    """The data as it was asked about: the last of D_t in front of D_u, and what is known of each sample of that D_u.

    Returns:
        The data, and the class of each sample of its D_u, -1 where it is not known, (N_u,) int64.
    """
    target, n = data.target, len(data.target) - answered
    asked = take(target.inputs, torch.arange(n, len(target)))
    if isinstance(asked, Tensor) and isinstance(data.unlabeled, Tensor) and fits_half(asked):
        asked = asked.to(data.unlabeled.dtype)  # very many stay float16
    former = replace(
        data,
        target=Labeled(take(target.inputs, torch.arange(n)), target.labels[:n]),
        unlabeled=join(asked, data.unlabeled),
    )
    return former, torch.cat([target.labels[n:].cpu(), torch.full((len(data.unlabeled),), -1)])


def _check_previous(previous: object, split: Split) -> None:
    if not isinstance(previous, Previous):
        raise ConfigError(f"fit_with_answers: previous must be a Previous, got {describe(previous)}.")
    where = "fit_with_answers: previous.positives"
    check_positions(previous.positives.indices, len(split.target_unlabeled), f"{where}.indices")
    check_positions(previous.positives.labels, split.n_classes, f"{where}.labels")
    if previous.answered >= len(split.target_labeled):
        raise DataError(
            f"fit_with_answers: previous.answered must be below the {len(split.target_labeled)} samples of D_t, got "
            f"{previous.answered}."
        )
