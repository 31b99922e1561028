"""Q-networks: fully connected layers on the whole state, or shared by the candidates."""

from __future__ import annotations

import itertools
import math
from typing import Any, Literal, TypeAlias

import torch
from torch import Tensor, nn

from qurate.config import QLearningConfig
from qurate.runtime.checked import check

QNetworkKind: TypeAlias = Literal["flat", "relational"]


def _layers(widths: tuple[int, ...], output_relu: bool) -> nn.Sequential:
    layers: list[nn.Module] = []
    for n_in, n_out in itertools.pairwise(widths):
        layers += [nn.Linear(n_in, n_out), nn.ReLU()]
    return nn.Sequential(*(layers if output_relu else layers[:-1]))


class QNetwork(nn.Module):
    """Q(s, .) of a batch of observations by `forward`, and Q(s, a) of given actions by `of_actions`."""

    def of_actions(self, observations: Tensor, actions: Tensor) -> Tensor:
        """Q(s, a) of each observation's own action: (B, *observation_shape), (B,) to (B,)."""
        values: Tensor = self(observations)
        return values.gather(1, actions.unsqueeze(1)).squeeze(1)


class FlatQNetwork(QNetwork):
    """Fully connected layers on the whole observation, one output for each action.

    Paper: section 3.2, "a three-layer fully connected network", with a linear last layer (decision 1).

    Args:
        observation_size: Numbers in one observation.
        n_actions: Outputs.
        hidden: Widths of the hidden layers.
        output_relu: Also after the last layer, as printed; Q-values cannot be negative then.
    """

    def __init__(self, observation_size: int, n_actions: int, hidden: tuple[int, ...], output_relu: bool) -> None:
        super().__init__()
        self.layers = _layers((observation_size, *hidden, n_actions), output_relu)

    def forward(self, observations: Tensor) -> Tensor:
        """Q(s, a) of observations (B, *observation_shape), as (B, n_actions)."""
        first = self.first
        values: Tensor = _WideLinear.apply(observations.flatten(1), first.weight, first.bias)
        return self._after_first(values)

    def of_products(self, products: Tensor) -> Tensor:
        """The same of W s with the weight W of the first layer: (B, width) to (B, n_actions)."""
        return self._after_first(products + self.first.bias)

    @property
    def first(self) -> nn.Linear:
        """The first layer."""
        layer = self.layers[0]
        assert isinstance(layer, nn.Linear)
        return layer

    def _after_first(self, values: Tensor) -> Tensor:
        for layer in self.layers[1:]:
            values = layer(values)
        return values


class _WideLinear(torch.autograd.Function):
    """A linear layer on inputs without gradient, whose weight's gradient is laid out as the weight is.

    Torch's own is its transpose, which is then copied: a second time the memory of up to a billion numbers.
    """

    @staticmethod
    def forward(ctx: Any, inputs: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        ctx.save_for_backward(inputs)
        return torch.addmm(bias, inputs, weight.T)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[None, Tensor, Tensor]:
        (inputs,) = ctx.saved_tensors
        return None, gradient.T @ inputs, gradient.sum(dim=0)


class SharedQNetwork(QNetwork):
    """The same layers applied to each action's own row of the observation.

    Actions in another order have their Q-values in that order, and weights do not grow with their number.
    Ours; the paper's is `FlatQNetwork`.

    Args:
        width: Numbers in one row.
        hidden: Widths of the hidden layers.
        output_relu: See `FlatQNetwork`.
    """

    def __init__(self, width: int, hidden: tuple[int, ...], output_relu: bool) -> None:
        super().__init__()
        self.layers = _layers((width, *hidden, 1), output_relu)

    def forward(self, observations: Tensor) -> Tensor:
        """Q(s, a) of observations (B, n_actions, width), as (B, n_actions)."""
        values: Tensor = self.layers(observations)
        return values.squeeze(-1)

    def of_actions(self, observations: Tensor, actions: Tensor) -> Tensor:
        """The same numbers from the chosen rows alone, which is all that an update needs."""
        rows = observations[torch.arange(len(actions), device=actions.device), actions]
        values: Tensor = self.layers(rows)
        return values.squeeze(-1)


def layer_widths(
    kind: QNetworkKind, observation_shape: tuple[int, ...], n_actions: int, config: QLearningConfig
) -> tuple[int, ...]:
    """Widths of input, hidden layers and output of a Q-network of that kind."""
    check(n_actions > 0, "n_actions", "positive", n_actions)
    if kind == "flat":
        return (math.prod(observation_shape), *config.hidden, n_actions)
    check(kind == "relational", "kind", "'flat' or 'relational'", kind)
    check(
        len(observation_shape) == 2 and observation_shape[0] == n_actions,
        "observation_shape of a shared Q-network",
        f"(n_actions, width) with n_actions = {n_actions}",
        observation_shape,
    )
    return (observation_shape[1], *config.hidden, 1)


def build_q_network(
    kind: QNetworkKind, observation_shape: tuple[int, ...], n_actions: int, config: QLearningConfig
) -> QNetwork:
    """A Q-network, (B, *observation_shape) -> (B, n_actions), with freshly drawn weights.

    Args:
        kind: 'flat' (the paper's) or 'relational' (one row for each action).
        observation_shape: Shape of one observation; (n_actions, width) for 'relational'.
        n_actions: Number of actions.
        config: Its `hidden` and `output_relu`.
    """
    n_in = layer_widths(kind, observation_shape, n_actions, config)[0]
    if kind == "flat":
        return FlatQNetwork(n_in, n_actions, config.hidden, config.output_relu)
    return SharedQNetwork(n_in, config.hidden, config.output_relu)
