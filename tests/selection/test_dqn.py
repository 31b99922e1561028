"""The agent on a problem in which quality can be read off the state, and the harvest against a plain loop."""

from __future__ import annotations

import dataclasses
import math
import statistics

import numpy as np
import pytest
import torch
from tests.selection.problem import K, make_round

from qurate.config import DQNConfig, EpisodeConfig, QLearningConfig, RewardConfig
from qurate.runtime.randomness import stream_seed
from qurate.selection.dqn import harvest
from qurate.selection.environment import SelectionEnv
from qurate.selection.q_learning.agent import DeepQAgent

EQUAL, ADAPTIVE = (
    DQNConfig(share_start=0.2, share_end=0.9, episode=EpisodeConfig(agent="relational", harvest=how))
    for how in ("equal", "adaptive")
)
SCORES = torch.rand(80, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("progress", [0.0, 0.5, 1.0])
def test_equal_counts_are_gated_and_by_score(progress: float) -> None:
    round = dataclasses.replace(make_round(noise=2.0), progress=progress)
    share = 0.2 + 0.7 * progress
    phi, labels = round.phi.tolist(), round.pseudo_labels.tolist()
    expected = set()
    for label in range(K):
        members = [i for i in range(80) if labels[i] == label]
        gate = quantile([phi[i] for i in members], (1 - share) / 2)
        good = sorted((i for i in members if phi[i] >= gate - 1e-6), key=lambda i: -float(SCORES[i]))
        expected |= {(i, label) for i in good[: math.ceil(share * 80 / K)]}
    chosen = harvest(round, SCORES, EQUAL)
    assert chosen.pairs() == expected
    assert 0 < len(chosen) < 80


@pytest.mark.parametrize("sizes", [(20, 20, 20, 20), (32, 20, 16, 12), (50, 14, 10, 6), (77, 1, 1, 1)])
@pytest.mark.parametrize("progress", [0.0, 0.5, 1.0])
def test_adaptive_counts_are_gated_and_the_best_by_score_as_long_as_a_class_has_room(
    sizes: tuple[int, ...], progress: float
) -> None:
    labels = [label for label, size in enumerate(sizes) for _ in range(size)]
    round = dataclasses.replace(make_round(noise=2.0), pseudo_labels=torch.tensor(labels), progress=progress)
    share, phi = 0.2 + 0.7 * progress, round.phi.tolist()
    wanted = share * 80
    distance = sum(abs(size / 80 - 1 / K) for size in sizes)
    w = min(1.0, max(0.0, (0.6 - distance) / 0.35))
    room = math.ceil(wanted * (1.15 * w / K + 1 - w))
    overall = quantile(phi, (1 - share) / 2)
    of_class = [quantile([phi[i] for i in range(80) if labels[i] == k], (1 - share) / 2) for k in range(K)]
    good = [i for i in range(80) if phi[i] >= w * of_class[labels[i]] + (1 - w) * overall - 1e-6]
    expected: set[tuple[int, int]] = set()
    for i in sorted(good, key=lambda i: -float(SCORES[i])):
        if len(expected) < math.ceil(wanted) and sum(label == labels[i] for _, label in expected) < room:
            expected.add((i, labels[i]))
    assert harvest(round, SCORES, ADAPTIVE).pairs() == expected


def quantile(values: list[float], level: float) -> float:
    """With linear interpolation between the two nearest."""
    ordered = sorted(values)
    place = level * (len(ordered) - 1)
    below, above = ordered[math.floor(place)], ordered[math.ceil(place)]
    return below + (above - below) * (place - math.floor(place))


def test_the_median_is_a_quantile() -> None:
    assert quantile([3.0, 1.0, 2.0, 9.0], 0.5) == statistics.median([3.0, 1.0, 2.0, 9.0])


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
