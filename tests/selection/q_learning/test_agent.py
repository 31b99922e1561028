"""The agent on problems whose best policy is known, and through a file."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor

from qurate.config import QLearningConfig
from qurate.selection.q_learning.agent import DeepQAgent
from qurate.selection.q_learning.networks import QNetworkKind
from qurate.selection.q_learning.update import exploration_at

KINDS: list[QNetworkKind] = ["flat", "relational"]
SMALL = QLearningConfig(hidden=(16, 8), batch_size=4, learning_rate=1e-2, pool_bytes=100_000)


def rng(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


class KeyAndChest(gymnasium.Env[NDArray[np.float32], int]):
    """Take two of four things, one after the other.

    State: a row for each thing, (4, 6): which it is (coin, pebble, key, chest), whether the key is held,
    and whether this is the first choice. The row of a thing that was taken is zero.
    Actions: the place of a thing; things that were taken are masked.
    Rewards: coin 0.5, pebble 0.1, key 0; chest 1 with the key, -1 and the end without it.
    End: after the second thing.
    First state: the things in this order or in the reverse one.

    Best: key, then chest, worth 1. Whoever wants the best reward at once takes coin and pebble, worth 0.6.
    """

    COIN, PEBBLE, KEY, CHEST = range(4)
    observation_space = gymnasium.spaces.Box(0.0, 1.0, (4, 6), np.float32)
    action_space: gymnasium.Space[Any] = gymnasium.spaces.Discrete(4)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[NDArray[np.float32], dict[str, Any]]:
        super().reset(seed=seed)
        reverse = (options or {}).get("reverse", self.np_random.random() < 0.5)
        self.things = [3, 2, 1, 0] if reverse else [0, 1, 2, 3]
        self.left = [True] * 4
        return self._observation(), {"action_mask": np.array(self.left)}

    def step(self, action: int) -> tuple[NDArray[np.float32], float, bool, bool, dict[str, Any]]:
        assert self.left[action], "a masked action was taken"
        key_held = not self.left[self.things.index(self.KEY)]
        thing = self.things[action]
        self.left[action] = False
        reward = {self.COIN: 0.5, self.PEBBLE: 0.1, self.KEY: 0.0, self.CHEST: 1.0 if key_held else -1.0}[thing]
        terminated = reward < 0 or sum(self.left) == 2
        return self._observation(), reward, terminated, False, {"action_mask": np.array(self.left)}

    def _observation(self) -> NDArray[np.float32]:
        key_held = not self.left[self.things.index(self.KEY)]
        rows = np.zeros((4, 6), np.float32)
        for place, (thing, left) in enumerate(zip(self.things, self.left, strict=True)):
            if left:
                rows[place, thing] = 1
                rows[place, 4:] = key_held, all(self.left)
        return rows


EXPLORING = 600
"""Actions over which exploration falls."""


def practise(agent: DeepQAgent, episodes: int, seed: int = 0) -> list[int]:
    """Lines 8-15 of Algorithm 1 on the toy; the actions taken."""
    env = KeyAndChest()
    env.reset(seed=seed)
    actions: list[int] = []
    for _ in range(episodes):
        observation, info = env.reset()
        terminated = truncated = False
        while not (terminated or truncated):
            exploration = exploration_at(min(len(actions) / EXPLORING, 1.0), agent.config)
            action = agent.act(observation, info["action_mask"], exploration=exploration)
            after, reward, terminated, truncated, info = env.step(action)
            agent.remember(
                observation,
                action,
                reward,
                after,
                info["action_mask"],
                terminated=terminated,
                last=terminated or truncated,
            )
            agent.learn()
            observation = after
            actions.append(action)
    return actions


def returns(agent: DeepQAgent) -> list[float]:
    """What the greedy policy earns from each of the two first states."""
    env = KeyAndChest()
    earned = []
    for reverse in (False, True):
        observation, info = env.reset(options={"reverse": reverse})
        total, terminated = 0.0, False
        while not terminated:
            action = agent.act(observation, info["action_mask"], exploration=0.0)
            observation, reward, terminated, _, info = env.step(action)
            total += reward
        earned.append(total)
    return earned


TOY: dict[str, Any] = {
    "hidden": (64, 32),
    "learning_rate": 1e-3,
    "batch_size": 32,
    "exploration_end": 0.1,
    "pool_bytes": 2**20,
}


@pytest.mark.parametrize(("seed", "target_update"), [(0, 0), (1, 0), (0, 20)])
@pytest.mark.parametrize("kind", KINDS)
def test_the_agent_finds_the_best_policy(kind: QNetworkKind, seed: int, target_update: int) -> None:
    agent = DeepQAgent(kind, (4, 6), 4, QLearningConfig(**TOY, target_update=target_update), seed=seed)
    practise(agent, 400)
    assert returns(agent) == pytest.approx([1.0, 1.0])
    # Q of the key is the discounted worth of the chest behind it
    observation, _ = KeyAndChest().reset(options={"reverse": False})
    assert agent.q_values(observation)[KeyAndChest.KEY].item() == pytest.approx(0.9, abs=0.1)


@pytest.mark.parametrize("kind", KINDS)
def test_without_a_future_the_agent_takes_what_is_near(kind: QNetworkKind) -> None:
    agent = DeepQAgent(kind, (4, 6), 4, QLearningConfig(**TOY, discount=0.0), seed=0)
    practise(agent, 400)
    assert returns(agent) == pytest.approx([0.6, 0.6])


def run_of(seed: int, **changes: Any) -> tuple[list[int], dict[str, Tensor]]:
    settings: dict[str, Any] = {"hidden": (16, 8), "batch_size": 4, "pool_bytes": 20_000}
    agent = DeepQAgent("relational", (4, 6), 4, QLearningConfig(**settings | changes), seed=seed)
    return practise(agent, 25), agent.state_dict()


@pytest.mark.parametrize("optimizer", ["adam", "sgd"])
def test_the_same_seed_twice_is_the_same_agent(optimizer: str) -> None:
    actions, state = run_of(5, optimizer=optimizer, target_update=7)
    torch.rand(3)  # the global generator has no say
    outside = torch.get_rng_state()
    actions_again, state_again = run_of(5, optimizer=optimizer, target_update=7)
    assert torch.equal(outside, torch.get_rng_state())
    assert actions == actions_again
    assert state.keys() == state_again.keys()
    assert all(torch.equal(values, state_again[name]) for name, values in state.items())
    assert run_of(6, optimizer=optimizer, target_update=7)[0] != actions


@pytest.mark.parametrize("optimizer", ["adam", "sgd"])
@pytest.mark.parametrize("target_update", [0, 7])
def test_a_restored_agent_goes_on_as_the_first(optimizer: Any, target_update: int, tmp_path: Path) -> None:
    config = QLearningConfig(hidden=(16, 8), optimizer=optimizer, target_update=target_update, pool_bytes=20_000)
    first = DeepQAgent("flat", (4, 6), 4, config, seed=0)
    practise(first, 10)
    torch.save(first.state_dict(), tmp_path / "agent.pt")
    saved = torch.load(tmp_path / "agent.pt", weights_only=True)
    second = DeepQAgent("flat", (4, 6), 4, config, seed=99)
    second.load_state_dict(saved)
    assert practise(first, 10, seed=1) == practise(second, 10, seed=1)
    after, also = first.state_dict(), second.state_dict()
    assert after.keys() == also.keys()
    assert all(torch.equal(values, also[name]) for name, values in after.items())
    assert not torch.equal(saved["network.layers.0.weight"], after["network.layers.0.weight"])  # a copy, not a view


def test_the_target_network_is_copied_every_few_updates() -> None:
    config = QLearningConfig(hidden=(8,), batch_size=2, target_update=3, pool_bytes=20_000)
    agent = DeepQAgent("flat", (3,), 2, config, seed=0)
    agent.remember(torch.ones(3), 0, 1.0, torch.zeros(3), torch.ones(2), terminated=True, last=True)
    assert agent.target_network is not None
    for update in range(1, 8):
        agent.learn()
        pairs = zip(agent.network.parameters(), agent.target_network.parameters(), strict=True)
        assert all(torch.equal(a, b) for a, b in pairs) == (update % 3 == 0)


def test_learning_begins_with_the_first_recording() -> None:
    agent = DeepQAgent("flat", (3,), 2, SMALL, seed=0)
    assert agent.learn() is None
    agent.remember(torch.ones(3), 0, 1.0, torch.zeros(3), torch.ones(2), terminated=True, last=True)
    losses = [agent.learn() for _ in range(200)]
    assert agent.updates == 200
    assert losses[0] is not None
    assert losses[0] > 0.1
    assert losses[-1] == pytest.approx(0.0, abs=1e-4)


def test_without_exploration_the_best_action_is_taken_and_with_it_any() -> None:
    agent = DeepQAgent("flat", (3,), 2, SMALL, seed=0)
    mask = torch.ones(2, dtype=torch.bool)
    best = int(agent.q_values(torch.ones(3)).argmax())
    assert {agent.act(torch.ones(3), mask, exploration=0.0) for _ in range(20)} == {best}
    assert {agent.act(torch.ones(3), mask, exploration=1.0) for _ in range(20)} == {0, 1}


def test_plain_gradient_descent_does_not_diverge_on_states_of_great_length() -> None:
    states = 50 * torch.randn(32, 2000, generator=rng())
    losses: dict[float, float] = {}
    for longest in (1.0, 1e9):
        config = QLearningConfig(hidden=(64, 32), optimizer="sgd", largest_gradient=longest, pool_bytes=1 << 22)
        agent = DeepQAgent("flat", (2000,), 3, config, seed=0)
        for i, state in enumerate(states):
            agent.remember(state, i % 3, 1.0, state, torch.ones(3), terminated=False, last=True)
        try:
            losses[longest] = max(agent.learn() or 0.0 for _ in range(300))
        except FloatingPointError:
            losses[longest] = math.inf
    assert losses[1.0] < 100
    assert losses[1e9] > 1e6
