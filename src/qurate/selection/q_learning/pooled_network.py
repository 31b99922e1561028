"""The paper's Q-network with its first layer kept as what it gives for the states of the pool.

A state has up to a million numbers, so that layer has hundreds of millions of weights, and a step of plain gradient
descent would write a gradient as large and then pass over both. But every gradient is a sum of outer products with
states of the pool: after any number of steps

    W = W_0 + sum_k u_k s_k^T

and all that learning needs of W are its products with the states of the pool. Those are kept. A step along u_k changes
them by u_k (s_k . s), for which the states' inner products are kept too. Exact but for rounding; W_0 is read once for
each new state and written once for `_PENDING` states that left the pool.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from qurate.selection.q_learning.networks import FlatQNetwork
from qurate.selection.q_learning.pool import ExperiencePool

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
        """All but the network's weights and the pool, without which it says nothing."""
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
