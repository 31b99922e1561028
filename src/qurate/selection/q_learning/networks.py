"""Q-networks: fully connected layers on the whole state, or shared by the candidates.

`PooledNetwork` keeps the first layer of the former as its products with the states of the pool.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping
from typing import Any, Literal, TypeAlias

import torch
from torch import Tensor, nn

from qurate.config import QLearningConfig
from qurate.runtime.validation import check
from qurate.selection.q_learning.pool import ExperiencePool

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
        values: Tensor = _WideLinear.apply(observations.flatten(1), self.first.weight, self.first.bias)
        return self.layers[1:](values)  # type: ignore[no-any-return]

    def of_products(self, products: Tensor) -> Tensor:
        """The same of W s with the weight W of the first layer: (B, width) to (B, n_actions)."""
        return self.layers[1:](products + self.first.bias)  # type: ignore[no-any-return]

    @property
    def first(self) -> nn.Linear:
        """The first layer."""
        layer = self.layers[0]
        assert isinstance(layer, nn.Linear)
        return layer


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


_PENDING = 32


def pooled_bytes(slots: int, width: int, observation_size: int) -> int:
    """Bytes of a `PooledNetwork` beside the weights: products, steps, inner products, and states that left the pool."""
    return 4 * slots * (2 * width + slots) + 4 * _PENDING * (width + observation_size)


class PooledNetwork:
    """Q of the observations in a pool, and steps of its first weight W along outer products with them.

    Args:
        network: Its first weight is W_0 from now on, which is not W: ask here for values, not there.
        pool: Where the observations are; call `release` before it overwrites any.
    """

    def __init__(self, network: FlatQNetwork, pool: ExperiencePool) -> None:
        self.network = network
        self.pool = pool
        width, size = network.first.weight.shape
        # Zeros that are not written to are not taken from the machine.
        self._products = torch.zeros(pool.slots, width)
        self._steps = torch.zeros(pool.slots, width)  # u of each slot
        self._inner = torch.zeros(pool.slots, pool.slots)
        self._pending_states = torch.zeros(_PENDING, size)
        self._pending_steps = torch.zeros(_PENDING, width)
        self._pending = 0
        self._admitted = 0

    def products(self, slots: Tensor) -> Tensor:
        """W s of the observations in these slots, (B, width)."""
        self._admit()
        return self._products[slots]

    @torch.no_grad()
    def q_values(self, observation: Tensor) -> Tensor:
        """Q(s, .) of any observation, (n_actions,)."""
        self._admit()
        newest = (self.pool.written - 1) % self.pool.slots
        if self.pool.written and torch.equal(self.pool.rows[newest], observation.flatten()):
            products = self._products[newest : newest + 1]
        else:
            products = self._multiply(observation.reshape(1, -1))
        return self.network.of_products(products)[0]

    def squared_length(self, slots: Tensor, gradient: Tensor) -> Tensor:
        """Squared Frobenius norm of sum_i gradient_i s_i^T, a scalar.

        Args:
            slots: Of the observations s_i, (B,).
            gradient: (B, width).
        """
        self._admit()
        return (gradient @ gradient.T * self._inner[slots][:, slots]).sum().clamp_min(0)  # rounding may go below

    def step(self, slots: Tensor, change: Tensor) -> None:
        """W += sum_i change_i s_i^T.

        Args:
            slots: Of the observations s_i, (B,).
            change: (B, width).
        """
        self._admit()
        used = self._used
        self._steps.index_add_(0, slots, change)
        self._products[:used].addmm_(self._inner[:used, slots], change)

    def release(self, slots: Tensor) -> None:
        """Keep what W has of the observations in these slots, which may be overwritten from now on."""
        self._admit()
        for slot in slots.tolist():
            if bool(self._steps[slot].any()):
                self._pending_states[self._pending] = self.pool.rows[slot]
                self._pending_steps[self._pending] = self._steps[slot]
                self._steps[slot] = 0
                self._pending += 1
            if self._pending == _PENDING:
                self._first_weight.addmm_(self._pending_steps.T, self._pending_states)
                self._pending = 0

    def state_dict(self) -> dict[str, Tensor]:
        """All but the network's weights and the pool, with which it is to be loaded."""
        used = self._used
        return {
            "products": self._products[:used],
            "steps": self._steps[:used],
            "inner": self._inner[:used, :used],
            "pending_states": self._pending_states[: self._pending],
            "pending_steps": self._pending_steps[: self._pending],
            "admitted": torch.tensor(self._admitted),
        }

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Continue from a `state_dict`; load the network and the pool it belongs to as well.

        From an empty one it starts from scratch: W_0 is all of W then.
        """
        self._steps.zero_()
        self._admitted = self._pending = 0
        if not state:
            return
        used, self._pending = len(state["products"]), len(state["pending_steps"])
        self._products[:used], self._steps[:used] = state["products"], state["steps"]
        self._inner[:used, :used] = state["inner"]
        self._pending_states[: self._pending] = state["pending_states"]
        self._pending_steps[: self._pending] = state["pending_steps"]
        self._admitted = int(state["admitted"])

    @property
    def _first_weight(self) -> Tensor:
        return self.network.first.weight.detach()

    @property
    def _used(self) -> int:
        return min(self._admitted, self.pool.slots)

    def _admit(self) -> None:
        """Products of the observations that came since the last time."""
        written, slots = self.pool.written, self.pool.slots
        if written < self._admitted:
            raise ValueError(
                f"PooledNetwork: {self._admitted} observations were seen and the pool has had {written}; "
                "load the pool together with the network."
            )
        new = torch.arange(max(self._admitted, written - slots), written) % slots
        if len(new) == 0:
            return
        self._admitted = written
        states = self.pool.rows[new]
        inner = states @ self.pool.rows[: self._used].T
        self._inner[new, : self._used] = inner
        self._inner[: self._used, new] = inner.T
        self._products[new] = self._multiply(states, inner)

    def _multiply(self, states: Tensor, inner: Tensor | None = None) -> Tensor:
        used, pending = self._used, self._pending
        if inner is None:
            inner = states @ self.pool.rows[:used].T
        products = states @ self._first_weight.T
        products.addmm_(inner, self._steps[:used])
        return products.addmm_(states @ self._pending_states[:pending].T, self._pending_steps[:pending])
