"""The agent on a selection problem in which quality can be read off the state."""

from __future__ import annotations

import numpy as np
import pytest
from tests.selection.problem import make_round

from qurate.config import EpisodeConfig, QLearningConfig, RewardConfig
from qurate.runtime.randomness import stream_seed
from qurate.selection.environment import SelectionEnv
from qurate.selection.q_learning.agent import DeepQAgent

EPISODE = EpisodeConfig(candidates=10, trial_steps=1, state_network="frozen", agent="relational", entropy_samples=10)


def play(env: SelectionEnv, agent: DeepQAgent | None, episodes: int, *, learn: bool, seed: int) -> list[float]:
    """Rewards of all actions, by the agent or at random where there is none; a negative one ends an episode."""
    rng = np.random.default_rng(seed)
    rewards: list[float] = []
    for number in range(episodes):
        observation, info = env.reset(seed=stream_seed(seed, number))
        ended = False
        while not ended:
            mask = info["action_mask"]
            if agent is None:
                action = int(rng.choice(np.flatnonzero(mask)))
            else:
                exploration = max(0.0, 1 - len(rewards) / 150) if learn else 0.0
                action = agent.act(observation, mask, exploration=exploration)
            assert mask[action] == 1
            following, gain, terminated, _, info = env.step(np.int64(action))
            ended = terminated or gain < 0
            if agent is not None and learn:
                agent.remember(observation, action, gain, following, info["action_mask"], terminated=ended, last=ended)
                agent.learn()
            observation = following
            rewards.append(gain)
    return rewards


@pytest.fixture(scope="module")
def env() -> SelectionEnv:
    """Noisy classes and the class median as threshold, so that a state tells good candidates from bad ones."""
    reward = RewardConfig(network="round", threshold="class_median", entropy_drop_weight=0.0)
    return SelectionEnv(make_round(reward, n=200, noise=2.0, steps=80), EPISODE, seed=0)


def test_half_of_the_first_rewards_are_positive_by_chance(env: SelectionEnv) -> None:
    rng, first = np.random.default_rng(0), []
    for number in range(200):
        env.reset(seed=500 + number)
        first.append(env.step(np.int64(rng.integers(10)))[1])
    assert set(first) == {1.0, -1.0}
    assert 0.4 < first.count(1.0) / 200 < 0.6  # within 2.8 deviations of half


def test_a_trained_agent_clearly_beats_a_random_one(env: SelectionEnv) -> None:
    learning = QLearningConfig(hidden=(64, 32), learning_rate=3e-3, batch_size=32)
    agent = DeepQAgent("relational", (10, 9), 10, learning, seed=0)
    untrained = sum(play(env, agent, 20, learn=False, seed=1000)) / 20
    play(env, agent, 120, learn=True, seed=2000)
    trained = sum(play(env, agent, 20, learn=False, seed=1000)) / 20
    chance = sum(play(env, None, 20, learn=False, seed=1000)) / 20
    assert trained > chance + 1.5
    assert trained > untrained + 1.5
