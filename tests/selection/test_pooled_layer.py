"""The first layer kept as products: equal to plain gradient descent with a whole gradient, and cheaper."""

from __future__ import annotations

import dataclasses
import itertools

import pytest
import torch
from torch import Tensor

from qurate.config import QLearningConfig
from qurate.selection import q_learning
from qurate.selection.memory import memory_cost
from qurate.selection.pool import pool_slots
from qurate.selection.q_learning import DeepQAgent

SHAPE, ACTIONS = (6, 70), 4


def config(slots: int, **numbers: float) -> QLearningConfig:
    _, slot = pool_slots(1, SHAPE, ACTIONS)
    chosen = QLearningConfig(
        hidden=(64, 8), optimizer="sgd", learning_rate=0.05, batch_size=5, exploration_steps=10, pool_bytes=slots * slot
    )
    return dataclasses.replace(chosen, **numbers)  # type: ignore[arg-type]  # mixed numbers


def whole_gradient_agent(config: QLearningConfig, monkeypatch: pytest.MonkeyPatch) -> DeepQAgent:
    with monkeypatch.context() as patch:
        patch.setattr(
            q_learning, "memory_cost", lambda *a: dataclasses.replace(memory_cost(*a), pooled=False), raising=True
        )
        agent = DeepQAgent("flat", SHAPE, ACTIONS, config, seed=1)
    assert agent.first is None
    return agent


def live(agent: DeepQAgent, steps: int, seed: int = 0, first: int = 0) -> tuple[list[int], list[float], Tensor]:
    """Episodes of four steps with random states: actions, losses, and the values of a state nobody has seen."""
    actions, losses = [], []
    for number in range(first, first + steps):
        rng = torch.Generator().manual_seed(1000 * seed + number)
        before, after = (torch.randn(SHAPE, generator=torch.Generator().manual_seed(n)) for n in (number, number + 1))
        mask = torch.rand(ACTIONS, generator=rng) < 0.8
        mask[0] = True
        actions.append(agent.act(before, mask))
        last = number % 4 == 3
        reward = float(torch.randn((), generator=rng))
        agent.remember(before, actions[-1], reward, after, mask, terminated=last and number % 8 == 7, last=last)
        loss = agent.learn()
        assert loss is not None
        losses.append(loss)
    return actions, losses, agent.q_values(torch.linspace(-1, 1, SHAPE[0] * SHAPE[1]).view(SHAPE))


@pytest.mark.parametrize("largest_gradient", [0.05, 1e9])
@pytest.mark.parametrize("slots", [12, 30])
def test_it_learns_what_a_whole_gradient_teaches(
    largest_gradient: float, slots: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Over more steps than the pool holds, and more departures from it than are held back."""
    chosen = config(slots, largest_gradient=largest_gradient)
    pooled, whole = DeepQAgent("flat", SHAPE, ACTIONS, chosen, seed=1), whole_gradient_agent(chosen, monkeypatch)
    assert pooled.first is not None
    before = pooled.first.weight.clone()
    actions, losses, values = live(pooled, 90)
    assert not torch.equal(before, pooled.first.weight)  # departures were folded in
    expected_actions, expected_losses, expected_values = live(whole, 90)
    assert actions == expected_actions
    assert losses == pytest.approx(expected_losses, rel=1e-3, abs=1e-5)
    assert losses[0] != losses[-1]
    torch.testing.assert_close(values, expected_values, rtol=1e-3, atol=1e-4)
    for mine, theirs in itertools.islice(
        zip(pooled.network.parameters(), whole.network.parameters(), strict=True), 1, None
    ):
        torch.testing.assert_close(mine, theirs, rtol=1e-3, atol=1e-5)


def test_the_weight_is_what_the_products_say() -> None:
    agent = DeepQAgent("flat", SHAPE, ACTIONS, config(12), seed=1)
    live(agent, 50)
    first = agent.first
    assert first is not None
    state = first.state_dict()
    weight = first.weight + state["steps"].T @ agent.pool.rows + state["pending_steps"].T @ state["pending_states"]
    torch.testing.assert_close(state["products"], agent.pool.rows @ weight.T, rtol=1e-3, atol=1e-4)
    torch.testing.assert_close(state["inner"], agent.pool.rows @ agent.pool.rows.T)
    gradient = torch.randn(3, 64)
    slots = torch.tensor([2, 2, 7])
    whole = gradient.T @ agent.pool.rows[slots]
    assert float(first.squared_length(slots, gradient)) == pytest.approx(float(whole.square().sum()), rel=1e-5)


def test_a_resumed_agent_goes_on_exactly() -> None:
    chosen = config(12)
    agent = DeepQAgent("flat", SHAPE, ACTIONS, chosen, seed=1)
    live(agent, 45)
    state, stored = agent.state_dict(), agent.pool.state_dict()
    expected = live(agent, 25, first=45)
    resumed = DeepQAgent("flat", SHAPE, ACTIONS, chosen, seed=2)
    resumed.load_state_dict(state)
    resumed.pool.load_state_dict(stored)
    actions, losses, values = live(resumed, 25, first=45)
    assert (actions, losses) == expected[:2]
    assert torch.equal(values, expected[2])


def test_it_is_used_where_it_takes_less_than_a_gradient() -> None:
    assert memory_cost(SHAPE, ACTIONS, config(30)).pooled
    assert not memory_cost(SHAPE, ACTIONS, config(300)).pooled  # the inner products of 300 states are more
    assert not memory_cost(SHAPE, ACTIONS, config(30, target_update=5)).pooled
    adam = dataclasses.replace(config(30), optimizer="adam")
    assert not memory_cost(SHAPE, ACTIONS, adam).pooled
    assert not memory_cost((ACTIONS, 70), ACTIONS, config(30), "shared").pooled


def test_its_cost_is_that_of_its_tensors() -> None:
    chosen = config(30)
    cost, agent = memory_cost(SHAPE, ACTIONS, chosen), DeepQAgent("flat", SHAPE, ACTIONS, chosen, seed=0)
    live(agent, 3)
    first = agent.first
    assert first is not None
    kept = [value for value in vars(first).values() if isinstance(value, Tensor) and value is not first.weight]
    weights = list(agent.network.parameters())
    assert all(parameter.grad is None for parameter in weights)
    assert cost.network_bytes == sum(tensor.nbytes for tensor in (*kept, *weights))
    assert cost.lines()[1].endswith("with products")
