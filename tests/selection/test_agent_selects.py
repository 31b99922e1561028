"""The agent on a selection problem in which quality can be read off the state."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from tests.selection.problem import blobs, config

from qurate.config import EpisodeConfig, QLearningConfig, RewardConfig
from qurate.data.batches import TrainingData
from qurate.selection.algorithm import pseudo_label
from qurate.selection.episode import SelectionEnv
from qurate.selection.pseudo_labels import Positives, Round
from qurate.selection.q_learning.agent import DeepQAgent
from qurate.training import start

EPISODE = EpisodeConfig(candidates=10, trial_steps=1, state_network="frozen", agent="relational", entropy_samples=10)


def make_round() -> Round:
    """Noisy classes, so that about half of the pseudo-labels are above their class's median and the rest below."""
    split = blobs(n=200, noise=2.0)
    run = config(reward=RewardConfig(network="round", threshold="class_median", entropy_drop_weight=0.0))
    trainer, data = start(split, run), TrainingData.of(split)
    trainer.run(data, steps=80, seed=0)
    return pseudo_label(trainer, data, Positives.none(), 0, run, None)


def play(env: SelectionEnv, agent: DeepQAgent | None, episodes: int, *, learn: bool, seed: int) -> float:
    """Mean summed reward an episode, by the agent or at random where there is none."""
    rng, total = np.random.default_rng(seed), 0.0
    for number in range(episodes):
        observation, info = env.reset(seed=seed + number)
        ended = False
        while not ended:
            mask = info["action_mask"]
            if agent is None:
                action = int(rng.choice(np.flatnonzero(mask)))
            else:
                action = agent.act(observation, mask, greedy=not learn)
            assert mask[action] == 1
            following, gain, terminated, truncated, info = env.step(np.int64(action))
            ended = terminated or truncated
            if agent is not None and learn:
                agent.remember(
                    observation, action, gain, following, info["action_mask"], terminated=terminated, last=ended
                )
                agent.learn()
            observation = following
            total += gain
    return total / episodes


@pytest.fixture(scope="module")
def env() -> SelectionEnv:
    return SelectionEnv(make_round(), EPISODE, seed=0)


def test_about_half_of_the_rewards_are_positive_by_chance(env: SelectionEnv) -> None:
    assert -1.0 < play(env, None, 30, learn=False, seed=500) < 1.0


def test_a_trained_agent_clearly_beats_a_random_one(env: SelectionEnv) -> None:
    learning = QLearningConfig(hidden=(64, 32), learning_rate=3e-3, batch_size=32, exploration_steps=150)
    agent = DeepQAgent("shared", (10, 9), 10, learning, seed=0)
    untrained = play(env, agent, 20, learn=False, seed=1000)
    play(env, agent, 120, learn=True, seed=2000)
    trained = play(env, agent, 20, learn=False, seed=1000)
    chance = play(env, None, 20, learn=False, seed=1000)
    assert trained > chance + 1.5
    assert trained > untrained
    assert torch.isfinite(agent.q_values(env.reset(seed=1)[0])).all()
