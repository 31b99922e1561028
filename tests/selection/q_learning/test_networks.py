"""Q-networks, whole and as products with the observations of the pool."""

from __future__ import annotations

import copy
import dataclasses
import itertools

import pytest
import torch
from torch import Tensor, nn

from qurate.config import QLearningConfig
from qurate.runtime.randomness import seeded
from qurate.selection.q_learning import agent as agent_module
from qurate.selection.q_learning.agent import DeepQAgent
from qurate.selection.q_learning.memory import memory_cost
from qurate.selection.q_learning.networks import FlatQNetwork, QNetworkKind, SharedQNetwork, build_q_network
from qurate.selection.q_learning.pool import Transitions, pool_slots
from qurate.selection.q_learning.update import update_q_network

KINDS: list[QNetworkKind] = ["flat", "relational"]
SMALL = QLearningConfig(hidden=(16, 8), batch_size=4, learning_rate=1e-2, pool_bytes=100_000)


def rng(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


@pytest.mark.parametrize(("kind", "widths"), [("flat", [42, 1024, 512, 6]), ("relational", [7, 1024, 512, 1])])
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
        build_q_network("relational", shape, 3, SMALL)


@pytest.mark.parametrize("kind", KINDS)
def test_the_value_of_an_action_is_its_entry_in_all_values(kind: QNetworkKind) -> None:
    network = build_q_network(kind, (4, 6), 4, SMALL)
    observations, actions = torch.randn(9, 4, 6, generator=rng()), torch.randint(4, (9,), generator=rng())
    expected = network(observations)[torch.arange(9), actions]
    torch.testing.assert_close(network.of_actions(observations, actions), expected)


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


SHAPE, ACTIONS = (6, 70), 4


def config(slots: int, **numbers: float) -> QLearningConfig:
    _, slot = pool_slots(1, SHAPE, ACTIONS)
    chosen = QLearningConfig(hidden=(64, 8), optimizer="sgd", learning_rate=0.05, batch_size=5, pool_bytes=slots * slot)
    return dataclasses.replace(chosen, **numbers)  # type: ignore[arg-type]  # mixed numbers


def whole_gradient_agent(config: QLearningConfig, monkeypatch: pytest.MonkeyPatch) -> DeepQAgent:
    with monkeypatch.context() as patch:
        patch.setattr(
            agent_module, "memory_cost", lambda *a: dataclasses.replace(memory_cost(*a), pooled=False), raising=True
        )
        agent = DeepQAgent("flat", SHAPE, ACTIONS, config, seed=1)
    assert agent.pooled is None
    return agent


def live(agent: DeepQAgent, steps: int, seed: int = 0, first: int = 0) -> tuple[list[int], list[float], Tensor]:
    """Episodes of four steps with random states: actions, losses, and the values of a state nobody has seen."""
    actions, losses = [], []
    for number in range(first, first + steps):
        rng = torch.Generator().manual_seed(1000 * seed + number)
        before, after = (torch.randn(SHAPE, generator=torch.Generator().manual_seed(n)) for n in (number, number + 1))
        mask = torch.rand(ACTIONS, generator=rng) < 0.8
        mask[0] = True
        actions.append(agent.act(before, mask, exploration=max(0.0, 1 - number / 10)))
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
    assert pooled.pooled is not None
    first = pooled.pooled.network.first
    before = first.weight.clone()
    actions, losses, values = live(pooled, 90)
    assert not torch.equal(before, first.weight)  # departures were folded in
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
    pooled = agent.pooled
    assert pooled is not None
    state, first = pooled.state_dict(), pooled.network.first.weight.detach()
    weight = first + state["steps"].T @ agent.pool.rows + state["pending_steps"].T @ state["pending_states"]
    torch.testing.assert_close(state["products"], agent.pool.rows @ weight.T, rtol=1e-3, atol=1e-4)
    torch.testing.assert_close(state["inner"], agent.pool.rows @ agent.pool.rows.T)
    gradient = torch.randn(3, 64)
    slots = torch.tensor([2, 2, 7])
    whole = gradient.T @ agent.pool.rows[slots]
    assert float(pooled.squared_length(slots, gradient)) == pytest.approx(float(whole.square().sum()), rel=1e-5)


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


def test_a_state_from_before_there_were_products_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """As of a run that was begun with an earlier version: its first weight is all of W."""
    chosen = config(12)
    whole = whole_gradient_agent(chosen, monkeypatch)
    live(whole, 30)
    state, stored = whole.state_dict(), whole.pool.state_dict()
    expected = live(whole, 25, first=30)
    pooled = DeepQAgent("flat", SHAPE, ACTIONS, chosen, seed=2)
    live(pooled, 50)  # what it had is forgotten
    pooled.load_state_dict(state)
    pooled.pool.load_state_dict(stored)
    actions, losses, values = live(pooled, 25, first=30)
    assert actions == expected[0]
    assert losses == pytest.approx(expected[1], rel=1e-3, abs=1e-5)
    torch.testing.assert_close(values, expected[2], rtol=1e-3, atol=1e-4)


def test_a_state_loaded_over_a_longer_life_forgets_it() -> None:
    chosen = config(30)
    agent, other = (DeepQAgent("flat", SHAPE, ACTIONS, chosen, seed=seed) for seed in (1, 2))
    live(agent, 5)
    live(other, 40)
    other.load_state_dict(agent.state_dict())
    other.pool.load_state_dict(agent.pool.state_dict())
    actions, losses, values = live(agent, 30, first=5)
    again = live(other, 30, first=5)
    assert (actions, losses) == again[:2]
    assert torch.equal(values, again[2])


def test_a_state_comes_with_its_pool_and_one_for_another_kind_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    chosen = config(12)
    agent = DeepQAgent("flat", SHAPE, ACTIONS, chosen, seed=1)
    live(agent, 20)
    fresh = DeepQAgent("flat", SHAPE, ACTIONS, chosen, seed=2)
    fresh.load_state_dict(agent.state_dict())
    assert torch.equal(fresh.q_values(torch.ones(SHAPE)), agent.q_values(torch.ones(SHAPE)))
    with pytest.raises(ValueError, match="use the same config"):
        whole_gradient_agent(chosen, monkeypatch).load_state_dict(agent.state_dict())


def test_a_copy_lives_on_by_itself() -> None:
    agent = DeepQAgent("flat", SHAPE, ACTIONS, config(12), seed=1)
    live(agent, 20)
    twin = copy.deepcopy(agent)
    expected, again = live(agent, 60, first=20), live(twin, 60, first=20)
    assert expected[:2] == again[:2]
    assert torch.equal(expected[2], again[2])
    for mine, theirs in zip(agent.state_dict().values(), twin.state_dict().values(), strict=True):
        assert torch.equal(mine, theirs)


def test_many_memories_between_two_lessons(monkeypatch: pytest.MonkeyPatch) -> None:
    chosen = config(12)
    agents = DeepQAgent("flat", SHAPE, ACTIONS, chosen, seed=1), whole_gradient_agent(chosen, monkeypatch)
    mask, values = torch.ones(ACTIONS, dtype=torch.bool), []
    for agent in agents:
        live(agent, 10)
        for number in range(30):
            states = [torch.randn(SHAPE, generator=torch.Generator().manual_seed(n)) for n in (number, number + 99)]
            agent.remember(states[0], number % ACTIONS, 1.0, states[1], mask, terminated=False, last=True)
        values.append(live(agent, 10, first=10)[2])
    torch.testing.assert_close(*values, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("scale", [1.0, 10.0])
def test_gradients_that_cancel_have_a_length_all_the_same(scale: float) -> None:
    """One state, rewarded on both sides of its value: rounding may put the squared length below zero."""
    shape = (3000,)
    _, slot = pool_slots(1, shape, 2)
    chosen = dataclasses.replace(config(1), learning_rate=1e-4, batch_size=2, pool_bytes=30 * slot)
    for seed in range(4):
        agent = DeepQAgent("flat", shape, 2, chosen, seed=seed)
        state = scale * torch.randn(shape, generator=torch.Generator().manual_seed(seed))
        value, mask = float(agent.q_values(state)[0]), torch.ones(2, dtype=torch.bool)
        for reward in (1.0, -1.0):
            agent.remember(state, 0, value + reward, state, mask, terminated=True, last=True)
        for _ in range(200):
            agent.learn()
        assert float(agent.q_values(state)[0]) == pytest.approx(value, abs=0.5)


def test_it_is_used_where_it_takes_less_than_a_gradient() -> None:
    assert memory_cost(SHAPE, ACTIONS, config(30)).pooled
    assert not memory_cost(SHAPE, ACTIONS, config(300)).pooled  # the inner products of 300 states are more
    assert not memory_cost(SHAPE, ACTIONS, config(30, target_update=5)).pooled
    adam = dataclasses.replace(config(30), optimizer="adam")
    assert not memory_cost(SHAPE, ACTIONS, adam).pooled
    assert not memory_cost((ACTIONS, 70), ACTIONS, config(30), "relational").pooled


def test_its_cost_is_that_of_its_tensors() -> None:
    chosen = config(30)
    cost, agent = memory_cost(SHAPE, ACTIONS, chosen), DeepQAgent("flat", SHAPE, ACTIONS, chosen, seed=0)
    live(agent, 3)
    assert agent.pooled is not None
    kept = [value for value in vars(agent.pooled).values() if isinstance(value, Tensor)]
    weights = list(agent.network.parameters())
    assert all(parameter.grad is None for parameter in weights)
    assert cost.network_bytes == sum(tensor.nbytes for tensor in (*kept, *weights))
    assert cost.lines()[1].endswith("with products")
