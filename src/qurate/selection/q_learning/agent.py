"""The agent of Algorithm 1: a Q-network with its experience."""

from __future__ import annotations

import copy
import math
from collections.abc import Mapping

import torch
from torch import Tensor

from qurate.config import QLearningConfig
from qurate.runtime.randomness import generator, seeded
from qurate.runtime.tensors import below, load_optimizer, optimizer_tensors
from qurate.selection.q_learning.memory import available_memory, check_memory, memory_cost
from qurate.selection.q_learning.networks import FlatQNetwork, PooledNetwork, QNetwork, QNetworkKind, build_q_network
from qurate.selection.q_learning.pool import Array, ExperiencePool, as_tensor
from qurate.selection.q_learning.update import choose_action, update_pooled, update_q_network


class DeepQAgent:
    """A Q-network that acts, remembers and learns.

    Algorithm 1 calls `act` in line 9, `remember` in line 14 and `learn` in line 15.

    Args:
        kind: 'flat' (the paper's Q-network) or 'relational'.
        observation_shape: Shape of one observation; (n_actions, width) for 'relational'.
        n_actions: Number of actions.
        config: Everything else.
        seed: Decides weights, exploration and batches.
        available_bytes: Memory the agent may take; all that the machine has to give if None.

    Raises:
        OversizeStateError: It does not fit; raised before anything is allocated.

    Example:
        >>> agent = DeepQAgent("flat", (3,), 2, QLearningConfig(hidden=(8,), pool_bytes=10_000), seed=0)
        >>> agent.act(torch.zeros(3), torch.tensor([False, True]), exploration=0.5)
        1
    """

    def __init__(
        self,
        kind: QNetworkKind,
        observation_shape: tuple[int, ...],
        n_actions: int,
        config: QLearningConfig,
        seed: int,
        *,
        available_bytes: int | None = None,
    ) -> None:
        self.config = config
        self.cost = memory_cost(observation_shape, n_actions, config, kind)
        check_memory(self.cost, available_memory() if available_bytes is None else available_bytes)
        with seeded(seed):
            self.network = build_q_network(kind, observation_shape, n_actions, config)
        self.target_network: QNetwork | None = None
        if config.target_update:
            self.target_network = copy.deepcopy(self.network).requires_grad_(False)
        self.optimizer: torch.optim.Optimizer
        if config.optimizer == "sgd":
            self.optimizer = torch.optim.SGD(self.network.parameters(), lr=config.learning_rate)
        else:  # fused: no temporaries as large as the first layer, which `memory_cost` would have to count
            self.optimizer = torch.optim.Adam(self.network.parameters(), lr=config.learning_rate, fused=True)
        self.pool = ExperiencePool(config.pool_bytes, observation_shape, n_actions, needed=self.cost.pool_needed)
        self.pooled: PooledNetwork | None = None
        if self.cost.pooled:
            assert isinstance(self.network, FlatQNetwork)
            self.pooled = PooledNetwork(self.network, self.pool)
        self.updates = 0
        self._acting = generator(seed, 1)
        self._sampling = generator(seed, 2)

    @torch.no_grad()
    def q_values(self, observation: Array) -> Tensor:
        """Q(s, .) of one observation, (n_actions,). This is Q; `network` may hold a part of its weights only."""
        observed = as_tensor(observation, torch.float32)
        if self.pooled is not None:
            return self.pooled.q_values(observed)
        values: Tensor = self.network(observed.unsqueeze(0))[0]
        return values

    def act(self, observation: Array, mask: Array, *, exploration: float) -> int:
        """Choose a legal action: with that probability any, else the best."""
        legal = as_tensor(mask, torch.bool)
        return choose_action(lambda: self.q_values(observation), legal, exploration, self._acting)

    def remember(
        self,
        observation: Array,
        action: int,
        reward: float,
        next_observation: Array,
        next_mask: Array,
        *,
        terminated: bool,
        last: bool,
    ) -> None:
        """Insert a recording into the pool; see `ExperiencePool.add`."""
        if self.pooled is not None:
            self.pooled.release(self.pool.next_overwritten())
        self.pool.add(observation, action, reward, next_observation, next_mask, terminated=terminated, last=last)

    def learn(self) -> float | None:
        """One update on a sampled batch; its loss, or None while the pool is empty.

        A pool smaller than the batch is sampled all the same, with replacement: Algorithm 1 learns from
        its first step on.
        """
        if len(self.pool) == 0:
            return None
        config = self.config
        if self.pooled is not None:
            loss = update_pooled(self.pooled, self.pool.draw(config.batch_size, self._sampling), config)
        else:
            batch = self.pool.sample(config.batch_size, self._sampling)
            longest = config.largest_gradient if config.optimizer == "sgd" else math.inf  # Adam scales by itself
            loss = update_q_network(
                self.network, self.optimizer, batch, config.discount, self.target_network, largest_gradient=longest
            )
        self.updates += 1
        if self.target_network is not None and self.updates % config.target_update == 0:
            self.target_network.load_state_dict(self.network.state_dict())
        return loss

    def state_dict(self) -> dict[str, Tensor]:
        """Weights, optimiser, counters, generators and pool as a flat dictionary of tensors."""
        state = {f"network.{name}": values for name, values in self.network.state_dict().items()}
        if self.target_network is not None:
            state |= {f"target.{name}": values for name, values in self.target_network.state_dict().items()}
        state |= optimizer_tensors(self.optimizer)
        if self.pooled is not None:
            state |= {f"pooled.{name}": values for name, values in self.pooled.state_dict().items()}
        state |= {f"pool.{name}": values for name, values in self.pool.state_dict().items()}
        state["updates"] = torch.tensor(self.updates)
        state["acting"] = self._acting.get_state()
        state["sampling"] = self._sampling.get_state()
        return {name: values.detach().clone() for name, values in state.items()}

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Continue from a `state_dict` of an agent of the same shape and config."""
        self.pool.load_state_dict(below("pool.", state))
        self.network.load_state_dict(below("network.", state))
        if self.target_network is not None:
            self.target_network.load_state_dict(below("target.", state))
        load_optimizer(self.optimizer, state)
        pooled = below("pooled.", state)
        if self.pooled is not None:
            self.pooled.load_state_dict(pooled)
        elif pooled:
            raise ValueError("DeepQAgent: the state is of an agent with a smaller pool_bytes; use the same config.")
        self.updates = int(state["updates"])
        self._acting.set_state(state["acting"])
        self._sampling.set_state(state["sampling"])
