"""Deep Q-learning by hand: targets, the update, exploration."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from qurate.config import QLearningConfig
from qurate.runtime.randomness import seeded
from qurate.selection.q_learning.networks import QNetworkKind, build_q_network
from qurate.selection.q_learning.pool import Transitions
from qurate.selection.q_learning.update import bellman_targets, choose_action, exploration_at, q_loss, update_q_network

KINDS: list[QNetworkKind] = ["flat", "relational"]
SMALL = QLearningConfig(hidden=(16, 8), batch_size=4, learning_rate=1e-2, pool_bytes=100_000)


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
    assert [exploration_at(p, QLearningConfig()) for p in (0, 0.25, 0.5, 1)] == pytest.approx([1.0, 0.75, 0.5, 0.0])
    some = QLearningConfig(exploration_start=0.8, exploration_end=0.2)
    assert [exploration_at(p, some) for p in (0, 0.5, 1)] == pytest.approx([0.8, 0.5, 0.2])


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
        {"target_update": -1},
        {"optimizer": "lbfgs"},
        {"pool_bytes": 0},
    ],
)
def test_a_wrong_config_names_its_field(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=rf"QLearningConfig\.{next(iter(wrong))} must be .*, got "):
        QLearningConfig(**wrong)
