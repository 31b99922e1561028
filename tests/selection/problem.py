"""A small problem with a domain gap that selection tests share."""

from __future__ import annotations

import torch
from torch import Tensor

from qurate.config import (
    DQNConfig,
    EpisodeConfig,
    MethodConfig,
    NetworkConfig,
    QLearningConfig,
    RewardConfig,
    RunConfig,
    SelectionConfig,
    SelectorConfig,
    TrainingConfig,
)
from qurate.data.batches import TrainingData
from qurate.data.samples import Labeled, SealedLabels, Split, Unlabeled
from qurate.selection.pseudo_labels import Positives, Round, find_neighbors, pseudo_label
from qurate.training import start

K = 4


def blobs(seed: int = 0, n: int = 80, width: int = 16, noise: float = 1.0) -> Split:
    """Gaussian classes whose target is shifted and wider."""
    rng = torch.Generator().manual_seed(seed)
    means = torch.randn(K, width, generator=rng) * 1.2
    shift = torch.randn(width, generator=rng) * 0.8

    def draw(count: int, target: bool) -> tuple[Tensor, Tensor]:
        labels = torch.arange(count) % K
        spread = noise * (1.3 if target else 1.0)
        values = means[labels] + torch.randn(count, width, generator=rng) * spread
        return values + shift * target, labels

    source, labeled, unlabeled = draw(n, False), draw(2 * K, True), draw(n, True)
    return Split(
        tuple("abcd"), Labeled(*source), Labeled(*labeled), Unlabeled(unlabeled[0], SealedLabels(unlabeled[1]))
    )


def config(
    selector: str = "dqn",
    *,
    reward: RewardConfig | None = None,
    episode: EpisodeConfig | None = None,
    method: str = "tml",
    rounds: int = 2,
    seed: int = 1,
) -> RunConfig:
    chosen = SelectorConfig.of(selector)
    if isinstance(chosen, DQNConfig):
        learning = QLearningConfig(hidden=(32, 16), pool_bytes=1 << 20)
        chosen = DQNConfig(episode=episode or EpisodeConfig(candidates=6, actions=6), q_learning=learning)
    return RunConfig(
        NetworkConfig(bottleneck="normalized", features=8),
        MethodConfig.of(method),
        TrainingConfig(steps=60, batch_source=12, batch_target=8, batch_unlabeled=12),
        SelectionConfig(selector=chosen, rounds=rounds, round_steps=10, reward=reward or RewardConfig()),
        seed=seed,
    )


def our_config(rounds: int) -> RunConfig:
    """What preset 'qurate' turns on, in small."""
    return config(
        rounds=rounds,
        reward=RewardConfig(network="round", center="neighbors", threshold="class_median"),
        episode=EpisodeConfig(
            candidates=8,
            actions=12,
            even_candidates=True,
            repeat_episodes=True,
            trial_steps=1,
            entropy_samples=20,
            state_network="frozen",
            agent="relational",
            harvest="adaptive",
        ),
    )


def agent_of(run: RunConfig) -> DQNConfig:
    """The agent's part of a run."""
    chosen = run.selection.selector
    assert isinstance(chosen, DQNConfig)
    return chosen


def make_round(reward: RewardConfig | None = None, *, n: int = 80, noise: float = 1.0, steps: int = 60) -> Round:
    """The first round of a run, after some steps of pre-training."""
    split, run = blobs(n=n, noise=noise), config(reward=reward)
    trainer, data = start(split, run), TrainingData.of(split)
    trainer.run(data, steps=steps, seed=0)
    return pseudo_label(trainer, data, Positives.none(), 0, run, find_neighbors(trainer.method.network, data, 5))
