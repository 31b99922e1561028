"""Eq. (9)-(11) by hand and by their properties, the cost, and an agent that solves a toy problem."""

from __future__ import annotations

import copy
import math
import re
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from torch import Tensor, nn

from qurate.config import QLearningConfig
from qurate.randomness import seeded
from qurate.selection import agent as agent_module
from qurate.selection.agent import DeepQAgent
from qurate.selection.memory import available_memory, check_memory, expected_peak, memory_cost, resident_memory
from qurate.selection.pool import OversizeStateError, Transitions
from qurate.selection.q_learning import (
    bellman_targets,
    choose_action,
    exploration_at,
    q_loss,
    update_q_network,
)
from qurate.selection.q_networks import FlatQNetwork, QNetworkKind, SharedQNetwork, build_q_network

KINDS: list[QNetworkKind] = ["flat", "shared"]
PAPER = QLearningConfig(batch_size=32, pool_bytes=512 * 2**20)
SMALL = QLearningConfig(hidden=(16, 8), batch_size=4, learning_rate=1e-2, exploration_steps=20, pool_bytes=100_000)


def rng(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


# Eq. (9)


def test_bellman_targets_by_hand() -> None:
    rewards = torch.tensor([1.0, 1.0, -1.0, 1.0])
    next_q = torch.tensor([[0.5, 2.0, 9.0], [0.5, 2.0, 9.0], [7.0, 7.0, 7.0], [-3.0, -2.0, 5.0]])
    next_mask = torch.tensor([[True, True, True], [True, True, False], [True, True, True], [True, True, False]])
    terminated = torch.tensor([False, False, True, False])
    targets = bellman_targets(rewards, next_q, next_mask, terminated, discount=0.9)
    # the best of all; the best legal one; terminal: the reward alone; a legal best that is negative
    assert targets.tolist() == pytest.approx([1 + 0.9 * 9, 1 + 0.9 * 2, -1, 1 + 0.9 * -2])


def test_no_legal_action_is_no_future() -> None:
    mask = torch.zeros(1, 2, dtype=torch.bool)
    targets = bellman_targets(torch.ones(1), torch.full((1, 2), 5.0), mask, torch.tensor([False]), discount=0.9)
    assert targets.tolist() == [1.0]


def test_bellman_targets_carry_no_gradient() -> None:
    next_q = torch.ones(1, 2, requires_grad=True)
    mask = torch.ones(1, 2, dtype=torch.bool)
    assert not bellman_targets(torch.ones(1), next_q, mask, torch.tensor([False]), discount=0.9).requires_grad


# Eq. (10)


def transitions(n: int, shape: tuple[int, ...], n_actions: int, dtype: torch.dtype) -> Transitions:
    draws = rng(3)
    return Transitions(
        observations=torch.randn(n, *shape, generator=draws, dtype=dtype),
        actions=torch.randint(n_actions, (n,), generator=draws),
        rewards=torch.randn(n, generator=draws, dtype=dtype),
        next_observations=torch.randn(n, *shape, generator=draws, dtype=dtype),
        next_masks=torch.rand(n, n_actions, generator=draws) < 0.6,
        terminated=torch.rand(n, generator=draws) < 0.3,
    )


@pytest.mark.parametrize("kind", KINDS)
def test_the_update_is_the_printed_step(kind: QNetworkKind) -> None:
    with seeded(0):
        network = build_q_network(kind, (3, 5), 3, SMALL).double()
    batch = transitions(6, (3, 5), 3, torch.float64)
    steps = [torch.zeros_like(parameter) for parameter in network.parameters()]
    for i in range(6):  # sum_i dQ(s_i, a_i)/dOmega (Q(s_i, a_i) - V_i), one recording after the other
        q = network(batch.observations[i : i + 1])[0, batch.actions[i]]
        legal = [a for a in range(3) if batch.next_masks[i, a]]
        value = batch.rewards[i].item()
        if legal and not batch.terminated[i]:
            next_q = network(batch.next_observations[i : i + 1])[0]
            value += 0.9 * max(next_q[a].item() for a in legal)
        for step, slope in zip(steps, torch.autograd.grad(q, list(network.parameters())), strict=True):
            step += slope * (q.item() - value)
    expected = [p.detach() - 0.1 / 6 * s for p, s in zip(network.parameters(), steps, strict=True)]
    update_q_network(network, torch.optim.SGD(network.parameters(), lr=0.1), batch, discount=0.9)
    for parameter, by_hand in zip(network.parameters(), expected, strict=True):
        torch.testing.assert_close(parameter.detach(), by_hand, rtol=1e-10, atol=1e-12)


def test_q_loss_by_hand() -> None:
    q = torch.tensor([[1.0, 5.0], [2.0, 8.0]])
    loss = q_loss(q.gather(1, torch.tensor([[0], [1]])).squeeze(1), torch.tensor([2.0, 5.0]))
    assert loss.item() == pytest.approx((0.5 * 1 + 0.5 * 9) / 2)


def test_a_target_network_makes_the_future() -> None:
    with seeded(0):
        network = build_q_network("flat", (4,), 2, SMALL)
        other = build_q_network("flat", (4,), 2, SMALL)
    batch = transitions(8, (4,), 2, torch.float32)._replace(terminated=torch.zeros(8, dtype=torch.bool))
    before = copy.deepcopy(other.state_dict())
    loss = update_q_network(network, torch.optim.SGD(network.parameters(), lr=0.0), batch, 0.9, other)
    targets = bellman_targets(batch.rewards, other(batch.next_observations), batch.next_masks, batch.terminated, 0.9)
    assert loss == pytest.approx(q_loss(network.of_actions(batch.observations, batch.actions), targets).item())
    assert loss != pytest.approx(update_q_network(network, torch.optim.SGD(network.parameters(), lr=0.0), batch, 0.9))
    assert all(torch.equal(before[name], values) for name, values in other.state_dict().items())


def test_a_loss_that_is_not_finite_stops() -> None:
    network = build_q_network("flat", (4,), 2, SMALL)
    batch = transitions(4, (4,), 2, torch.float32)._replace(rewards=torch.full((4,), torch.nan))
    with pytest.raises(FloatingPointError, match="learning_rate"):
        update_q_network(network, torch.optim.SGD(network.parameters(), lr=0.1), batch, 0.9)


# Eq. (11)


@given(
    values=st.lists(st.floats(width=32), min_size=1, max_size=8),
    data=st.data(),
    exploration=st.floats(0, 1),
    seed=st.integers(0, 2**31),
)
def test_a_masked_action_is_never_taken(
    values: list[float], data: st.DataObject, exploration: float, seed: int
) -> None:
    mask = data.draw(st.lists(st.booleans(), min_size=len(values), max_size=len(values)).filter(any))
    draws = rng(seed)
    for _ in range(5):
        assert mask[choose_action(lambda: torch.tensor(values), torch.tensor(mask), exploration, draws)]


def test_the_best_legal_action_is_taken() -> None:
    q = torch.tensor([1.0, 9.0, -2.0, 3.0])
    assert choose_action(lambda: q, torch.tensor([True, False, True, True]), 0.0, rng()) == 3
    assert choose_action(lambda: q, torch.tensor([False, False, True, False]), 0.0, rng()) == 2


def test_exploration_has_its_frequencies() -> None:
    q = torch.tensor([0.0, 5.0, 1.0, 2.0, 9.0])
    mask = torch.tensor([True, True, True, True, False])
    draws = rng()
    counts = np.zeros(5)
    for _ in range(4000):
        counts[choose_action(lambda: q, mask, 0.4, draws)] += 1
    # best: 0.6 + 0.4 / 4; the other legal ones 0.4 / 4 each; four standard deviations of slack
    assert counts / 4000 == pytest.approx([0.1, 0.7, 0.1, 0.1, 0.0], abs=0.03)
    assert counts[4] == 0


def test_a_greedy_choice_draws_nothing() -> None:
    draws = rng()
    before = draws.get_state()
    choose_action(lambda: torch.zeros(3), torch.ones(3, dtype=torch.bool), 0.0, draws)
    assert torch.equal(before, draws.get_state())


def test_no_legal_action_is_an_error() -> None:
    with pytest.raises(ValueError, match="at least one of 3 actions legal"):
        choose_action(lambda: torch.zeros(3), torch.zeros(3, dtype=torch.bool), 0.5, rng())


def test_exploration_falls_linearly_from_one_to_zero() -> None:
    config = QLearningConfig(exploration_steps=10)
    assert [exploration_at(n, config) for n in (0, 5, 10, 99)] == pytest.approx([1.0, 0.5, 0.0, 0.0])


# Q-networks


@pytest.mark.parametrize(("kind", "widths"), [("flat", [42, 1024, 512, 6]), ("shared", [7, 1024, 512, 1])])
def test_the_networks_have_the_printed_layers(kind: QNetworkKind, widths: list[int]) -> None:
    network = build_q_network(kind, (6, 7), 6, QLearningConfig())
    linear = [layer for layer in network.modules() if isinstance(layer, nn.Linear)]
    assert [linear[0].in_features, *(layer.out_features for layer in linear)] == widths
    assert network(torch.zeros(2, 6, 7)).shape == (2, 6)


def test_the_shared_network_follows_the_order_of_its_rows() -> None:
    network = SharedQNetwork(4, (8, 8), output_relu=False)
    observations = torch.randn(3, 5, 4, generator=rng())
    order = torch.tensor([4, 2, 0, 1, 3])
    torch.testing.assert_close(network(observations[:, order]), network(observations)[:, order])


def test_one_action_keeps_its_axis() -> None:
    assert SharedQNetwork(4, (8,), output_relu=False)(torch.zeros(3, 1, 4)).shape == (3, 1)


@pytest.mark.parametrize("output_relu", [False, True])
def test_a_relu_at_the_end_cannot_say_minus_one(output_relu: bool) -> None:
    with seeded(1):
        network = FlatQNetwork(3, 2, (16, 8), output_relu)
    optimizer = torch.optim.Adam(network.parameters(), lr=1e-2)
    observations, everything = torch.randn(8, 3, generator=rng()), torch.ones(8, 2, dtype=torch.bool)
    for _ in range(300):  # each recording is terminal with reward -1
        batch = Transitions(
            observations, torch.arange(8) % 2, -torch.ones(8), observations, everything, torch.ones(8, dtype=torch.bool)
        )
        loss = update_q_network(network, optimizer, batch, discount=0.9)
    if output_relu:
        assert bool((network(observations) >= 0).all())
        assert loss >= 0.5
    else:
        assert loss < 1e-3


@pytest.mark.parametrize("shape", [(3,), (4, 7), (3, 7, 1)])
def test_a_shared_network_needs_a_row_for_each_action(shape: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match=r"shared Q-network must be \(n_actions, width\) with n_actions = 3"):
        build_q_network("shared", shape, 3, SMALL)


@pytest.mark.parametrize(
    "wrong",
    [
        {"hidden": ()},
        {"hidden": (8, 0)},
        {"discount": 1.1},
        {"learning_rate": 0.0},
        {"batch_size": 0},
        {"exploration_start": 1.5},
        {"exploration_end": -0.1},
        {"exploration_steps": 0},
        {"target_update": -1},
        {"optimizer": "lbfgs"},
        {"pool_bytes": 0},
    ],
)
def test_a_wrong_config_names_its_field(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=rf"QLearningConfig\.{next(iter(wrong))} must be .*, got "):
        QLearningConfig(**wrong)


# What it costs


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("optimizer", ["adam", "sgd"])
@pytest.mark.parametrize("target_update", [0, 5])
def test_the_cost_is_that_of_the_real_agent(kind: QNetworkKind, optimizer: Any, target_update: int) -> None:
    config = QLearningConfig(
        hidden=(16, 8), batch_size=4, optimizer=optimizer, target_update=target_update, pool_bytes=10_000
    )
    cost = memory_cost((6, 7), 6, config, kind)
    agent = DeepQAgent(kind, (6, 7), 6, config, seed=0)
    agent.remember(torch.zeros(6, 7), 0, 1.0, torch.ones(6, 7), torch.ones(6), terminated=False, last=False)
    agent.learn()
    parameters = list(agent.network.parameters())
    assert cost.weights == sum(parameter.numel() for parameter in parameters)
    real = sum(p.nbytes + p.grad.nbytes for p in parameters if p.grad is not None)
    for slots in agent.optimizer.state.values():
        real += sum(value.nbytes for value in slots.values() if isinstance(value, Tensor) and value.dim() > 0)
    if agent.target_network is not None:
        real += sum(p.nbytes for p in agent.target_network.parameters())
    assert cost.network_bytes == real
    assert cost.state_bytes == 6 * 7 * 4
    assert cost.pool_transitions == agent.pool.capacity
    assert cost.pool_bytes >= agent.pool.nbytes > cost.pool_bytes - cost.pool_slot_bytes
    assert cost.total_bytes == cost.network_bytes + cost.batch_bytes + cost.pool_bytes


def test_the_costs_of_the_paper_in_words() -> None:
    domainnet = memory_cost((352, 638), 100, PAPER)
    assert domainnet.lines()[:2] == [
        "state: 224,576 numbers, 0.9 MB",
        "Q-network (flat): 231 M weights, 3.7 GB with gradients and optimiser",
    ]
    assert domainnet.lines()[3] == "pool: 596 transitions, 0.5 GB"
    office_home = memory_cost((957_030,), 100, PAPER)
    assert office_home.lines()[:2] == [
        "state: 957,030 numbers, 3.8 MB",
        "Q-network (flat): 981 M weights, 15.7 GB with gradients and optimiser",
    ]
    shared = memory_cost((100, 638), 100, PAPER, "shared")
    assert shared.lines()[1].startswith("Q-network (shared): 1,179,649 weights, ")


def test_an_oversize_state_fails_before_anything_is_allocated(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("build_q_network", "ExperiencePool"):
        monkeypatch.setattr(agent_module, name, lambda *_, **__: pytest.fail("allocated"))
    with pytest.raises(OversizeStateError) as caught:
        DeepQAgent("flat", (957_030,), 100, PAPER, seed=0, available_bytes=8 * 10**9)
    message = str(caught.value)
    total = memory_cost((957_030,), 100, PAPER).total_bytes
    assert f"needs {total:,} bytes (16.5 GB)" in message
    assert "8,000,000,000 bytes (8.0 GB) are available" in message
    assert all(line in message for line in memory_cost((957_030,), 100, PAPER).lines())
    assert all(way in message for way in ("fewer candidates", "state_features", "'shared'", "pool_bytes"))
    with pytest.raises(OversizeStateError, match="are available"):
        DeepQAgent("flat", (10**9,), 100, QLearningConfig(pool_bytes=10**15), seed=0)  # of this machine
    with pytest.raises(OversizeStateError, match=r"holds 0 transitions .* 64 are needed"):
        DeepQAgent("flat", (10**9,), 100, PAPER, seed=0)


def test_what_fits_passes() -> None:
    cost = memory_cost((10,), 2, SMALL)
    check_memory(cost, cost.total_bytes)
    check_memory(cost, None)
    with pytest.raises(OversizeStateError):
        check_memory(cost, cost.total_bytes - 1)


def test_available_memory_is_that_of_a_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    def unreadable(_: Path) -> str:
        raise FileNotFoundError

    reported = available_memory()
    assert reported is not None
    monkeypatch.setattr(Path, "read_text", unreadable)
    physical = available_memory()
    assert physical is not None
    assert 2**20 < reported <= physical


# The agent


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


def practise(agent: DeepQAgent, episodes: int, seed: int = 0) -> list[int]:
    """Lines 8-19 of Algorithm 1 on the toy; the actions taken."""
    env = KeyAndChest()
    env.reset(seed=seed)
    actions = []
    for _ in range(episodes):
        observation, info = env.reset()
        terminated = truncated = False
        while not (terminated or truncated):
            action = agent.act(observation, info["action_mask"])
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
            action = agent.act(observation, info["action_mask"], greedy=True)
            observation, reward, terminated, _, info = env.step(action)
            total += reward
        earned.append(total)
    return earned


TOY: dict[str, Any] = {
    "hidden": (64, 32),
    "learning_rate": 1e-3,
    "batch_size": 32,
    "exploration_end": 0.1,
    "exploration_steps": 600,
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
    settings: dict[str, Any] = {"hidden": (16, 8), "batch_size": 4, "exploration_steps": 30, "pool_bytes": 20_000}
    agent = DeepQAgent("shared", (4, 6), 4, QLearningConfig(**settings | changes), seed=seed)
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
    config = QLearningConfig(
        hidden=(16, 8), optimizer=optimizer, target_update=target_update, exploration_steps=60, pool_bytes=20_000
    )
    first = DeepQAgent("flat", (4, 6), 4, config, seed=0)
    practise(first, 10)
    torch.save(first.state_dict(), tmp_path / "agent.pt")
    saved = torch.load(tmp_path / "agent.pt", weights_only=True)
    second = DeepQAgent("flat", (4, 6), 4, config, seed=99)
    second.load_state_dict(saved)
    second.pool = copy.deepcopy(first.pool)  # the pool is no part of the state
    assert second.exploration == first.exploration < 1
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


def test_greedy_actions_do_not_count() -> None:
    agent = DeepQAgent("flat", (3,), 2, SMALL, seed=0)
    mask = torch.ones(2, dtype=torch.bool)
    assert {agent.act(torch.ones(3), mask, greedy=True) for _ in range(20)} == {
        int(agent.q_values(torch.ones(3)).argmax())
    }
    assert agent.exploration == 1
    for _ in range(5):
        agent.act(torch.ones(3), mask)
    assert agent.exploration == pytest.approx(1 - 5 / 20)


@pytest.mark.parametrize("kind", KINDS)
def test_the_value_of_an_action_is_its_entry_in_all_values(kind: QNetworkKind) -> None:
    network = build_q_network(kind, (4, 6), 4, SMALL)
    observations, actions = torch.randn(9, 4, 6, generator=rng()), torch.randint(4, (9,), generator=rng())
    expected = network(observations)[torch.arange(9), actions]
    torch.testing.assert_close(network.of_actions(observations, actions), expected)


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


def test_the_gradients_of_the_wide_layer_are_torchs_own() -> None:
    network = FlatQNetwork(30, 4, (8, 6), output_relu=False)
    observations, actions = torch.randn(5, 3, 10, generator=rng()), torch.tensor([0, 3, 1, 1, 2])
    network.of_actions(observations, actions).square().sum().backward()
    found = [parameter.grad for parameter in network.parameters()]
    network.zero_grad()
    values = network.layers(observations.flatten(1)).gather(1, actions.unsqueeze(1))
    values.square().sum().backward()
    for ours, parameter in zip(found, network.parameters(), strict=True):
        torch.testing.assert_close(ours, parameter.grad)
        assert ours is not None
        assert ours.is_contiguous()


def test_the_peak_is_said_before_anything_is_allocated() -> None:
    small, large = (
        memory_cost((352, 638), 100, QLearningConfig(pool_bytes=size), "flat") for size in (10**8, 4 * 10**9)
    )
    here = resident_memory()
    if here is None:
        pytest.skip("this system does not say what a process holds")
    said = [float(re.findall(r"about ([\d.]+) GB", expected_peak(cost, 18_000, 638))[0]) for cost in (small, large)]
    assert said[1] - said[0] == pytest.approx(3.9, abs=0.11)
    assert said[0] == pytest.approx(
        (here + small.total_bytes + 8 * small.weights + 4 * 4 * 18_000 * 638) / 1e9, abs=0.11
    )
