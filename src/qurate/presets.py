"""Deep Q-learning set up whole: the printed algorithm, and ours."""

from __future__ import annotations

from dataclasses import replace

from qurate.config import EpisodeConfig, QLearningConfig, RewardConfig, RunConfig, SelectionConfig

POSITIVE_SHARE = 0.5
"""Share of positives in a target batch (decision 19) wherever the printed algorithm is not asked for. Our choice."""


def with_preset(config: RunConfig, name: str) -> RunConfig:
    """The config with deep Q-learning set up by a preset.

    Args:
        config: Its network, method, seed and training are kept, but for the share of positives in a batch.
        name: 'paper', Algorithm 1 as printed, or 'qurate', our own, whose differences docs/paper.md names and measures.
    """
    if name == "paper":
        selection = SelectionConfig(
            selector="dqn",
            rounds=12,
            round_steps=100,
            episode=EpisodeConfig(candidates=32),
            q_learning=QLearningConfig(optimizer="sgd", exploration_steps=200),
        )
        return replace(config, selection=selection, training=replace(config.training, positive_share=None))
    if name != "qurate":
        raise ValueError(f"with_preset: name must be 'paper' or 'qurate', got {name!r}.")
    selection = SelectionConfig(
        selector="dqn",
        reward=RewardConfig(network="round", center="neighbors", threshold="class_median"),
        episode=EpisodeConfig(
            candidates=62,
            even_candidates=True,
            actions=64,
            repeat_episodes=True,
            trial_steps=1,
            entropy_samples=128,
            state_network="frozen",
            agent="relational",
            harvest=True,
        ),
        q_learning=QLearningConfig(exploration_steps=256),
    )
    return replace(config, selection=selection, training=replace(config.training, positive_share=POSITIVE_SHARE))
