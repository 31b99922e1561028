"""The Q-networks: layers, order, gradients."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from qurate.config import QLearningConfig
from qurate.runtime.randomness import seeded
from qurate.selection.q_learning.networks import FlatQNetwork, QNetworkKind, SharedQNetwork, build_q_network
from qurate.selection.q_learning.pool import Transitions
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
