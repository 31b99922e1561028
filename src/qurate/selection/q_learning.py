"""Deep Q-learning with action masks (Eq. 9-11): exploration, the update, the agent.

Knows nothing of images or classifiers: an observation is a tensor, an action a number, a mask says which
actions are legal.
"""

from __future__ import annotations

import copy
import functools
import math
from collections.abc import Callable, Mapping

import torch
from torch import Tensor

from qurate.config import QLearningConfig
from qurate.randomness import generator, seeded
from qurate.selection.memory import available_memory, check_memory, memory_cost
from qurate.selection.pool import Array, ExperiencePool, Places, Transitions, as_tensor
from qurate.selection.pooled_layer import PooledLayer
from qurate.selection.q_networks import FlatQNetwork, QNetwork, QNetworkKind, build_q_network


def choose_action(values: Callable[[], Tensor], mask: Tensor, exploration: float, rng: torch.Generator) -> int:
    """The best legal action, or with probability `exploration` any legal one.

    a = argmax_{a legal} Q(s, a)

    Paper: Eq. (11), with the epsilon-greedy strategy; masked (decision 4).

    Args:
        values: Gives Q(s, .), (n_actions,); not asked where the action is a random one.
        mask: Legal actions, (n_actions,) bool.
        exploration: Probability of a uniformly drawn legal action. Nothing is drawn when it is 0.
        rng: Generator of the draws, on the CPU.

    Example:
        >>> choose_action(lambda: torch.tensor([3.0, 2.0]), torch.tensor([False, True]), 0.0, torch.Generator())
        1
    """
    legal = mask.nonzero().squeeze(1)
    if len(legal) == 0:
        raise ValueError(
            f"choose_action: mask must leave at least one of {len(mask)} actions legal, got none; "
            "end the episode when no action is left."
        )
    if exploration > 0 and torch.rand((), generator=rng).item() < exploration:
        return int(legal[torch.randint(len(legal), (), generator=rng)])
    return int(legal[values()[legal].argmax()])


def exploration_at(actions_taken: int, config: QLearningConfig) -> float:
    """Probability of a random action after so many actions: linear from start to end, then constant."""
    progress = min(actions_taken / config.exploration_steps, 1.0)
    return config.exploration_start + progress * (config.exploration_end - config.exploration_start)


def bellman_targets(rewards: Tensor, next_q: Tensor, next_mask: Tensor, terminated: Tensor, discount: float) -> Tensor:
    """What Q(s, a) should be, without gradient.

    V = r + gamma max_{a' legal} Q(s', a'), and V = r where s' is terminal or no action is legal in it.
    A truncated step is not terminal: its future counts.

    Paper: Eq. (9), with a terminal case (decision 2) and masks (decision 4).

    Args:
        rewards: r, (B,).
        next_q: Q(s', .), (B, n_actions).
        next_mask: Legal actions in s', (B, n_actions) bool.
        terminated: (B,) bool.
        discount: gamma.

    Returns:
        V, (B,).

    Example:
        >>> no, yes = torch.tensor([False]), torch.tensor([[True, True]])
        >>> bellman_targets(torch.tensor([1.0]), torch.tensor([[2.0, 4.0]]), yes, no, discount=0.5)
        tensor([3.])
    """
    best = next_q.detach().masked_fill(~next_mask, -torch.inf).amax(dim=1)
    goes_on = ~terminated & next_mask.any(dim=1)
    return rewards + discount * torch.where(goes_on, best, 0.0)


def q_loss(values: Tensor, targets: Tensor) -> Tensor:
    """Half the mean squared distance of Q(s, a) from V; its gradient is the direction of Eq. (10).

    1/B sum_i 1/2 (Q(s_i, a_i) - V_i)^2, of gradient 1/B sum_i dQ(s_i, a_i)/dOmega (Q(s_i, a_i) - V_i)

    Paper: Eq. (10), whose sum is a mean here, so that the step does not grow with the batch.

    Args:
        values: Q(s, a), (B,).
        targets: V, (B,), without gradient.

    Returns:
        A scalar.
    """
    return 0.5 * (values - targets.detach()).square().mean()


def update_q_network(
    network: QNetwork,
    optimizer: torch.optim.Optimizer,
    batch: Transitions,
    discount: float,
    target_network: QNetwork | None = None,
    largest_gradient: float = math.inf,
) -> float:
    """One step of the Q-network towards the Bellman targets of a batch.

    Paper: Eq. (9) and (10); Algorithm 1, line 15.

    Args:
        network: Q; its parameters are what `optimizer` steps.
        optimizer: SGD for the printed step.
        batch: Sampled transitions.
        discount: gamma.
        target_network: Makes Q(s', .) instead of `network` (decision 3).
        largest_gradient: A longer gradient is cut to this length (decision 28).

    Returns:
        The loss before the step.
    """
    next_q = batch.next_observations.new_zeros(batch.next_masks.shape)
    goes_on = ~batch.terminated
    with torch.no_grad():  # a terminal state's values are not used, so they are not computed
        next_q[goes_on] = (target_network or network)(batch.next_observations[goes_on])
    targets = bellman_targets(batch.rewards, next_q, batch.next_masks, batch.terminated, discount)
    loss = q_loss(network.of_actions(batch.observations, batch.actions), targets)
    value = _finite(loss.item())
    optimizer.zero_grad()
    loss.backward()
    if largest_gradient < math.inf:
        torch.nn.utils.clip_grad_norm_(network.parameters(), largest_gradient)
    optimizer.step()
    return value


def update_pooled(network: FlatQNetwork, first: PooledLayer, batch: Places, config: QLearningConfig) -> float:
    """The same step of plain gradient descent where the first layer is kept as its products with the pool's states.

    Paper: Eq. (9) and (10); Algorithm 1, line 15.

    Args:
        network: Q; all but the weight of its first layer is stepped here.
        first: That layer.
        batch: Sampled transitions, by their places in the pool.
        config: Discount, step size, largest gradient.

    Returns:
        The loss before the step.
    """
    with torch.no_grad():
        next_q = network.of_products(first.of_slots(batch.following))
    targets = bellman_targets(batch.rewards, next_q, batch.next_masks, batch.terminated, config.discount)
    products = first.of_slots(batch.slots).requires_grad_()
    values = network.of_products(products).gather(1, batch.actions.unsqueeze(1)).squeeze(1)
    loss = q_loss(values, targets)
    value = _finite(loss.item())
    others = [parameter for parameter in network.parameters() if parameter is not network.first.weight]
    gradient, *gradients = torch.autograd.grad(loss, [products, *others])
    squared = first.squared_length(batch.slots, gradient) + sum(part.square().sum() for part in gradients)
    rate = config.learning_rate * min(1.0, config.largest_gradient / (math.sqrt(squared) + 1e-6))
    with torch.no_grad():
        for parameter, part in zip(others, gradients, strict=True):
            parameter.sub_(part, alpha=rate)
    first.step(batch.slots, -rate * gradient)
    return value


def _finite(loss: float) -> float:
    if not math.isfinite(loss):
        raise FloatingPointError(
            f"The loss of the Q-network is {loss}. Lower QLearningConfig.learning_rate, or check the "
            "observations and rewards for NaN or huge values."
        )
    return loss


class DeepQAgent:
    """A Q-network that acts, remembers and learns.

    Algorithm 1 calls `act` in line 9, `remember` in line 14 and `learn` in line 15.

    Args:
        kind: 'flat' (the paper's Q-network) or 'shared'.
        observation_shape: Shape of one observation; (n_actions, width) for 'shared'.
        n_actions: Number of actions.
        config: Everything else.
        seed: Decides weights, exploration and batches.
        device: Where the Q-network lives; the pool stays in main memory.
        available_bytes: Memory the agent may take; all that the machine has to give if None.

    Raises:
        OversizeStateError: It does not fit; raised before anything is allocated.

    Example:
        >>> agent = DeepQAgent("flat", (3,), 2, QLearningConfig(hidden=(8,), pool_bytes=10_000), seed=0)
        >>> agent.act(torch.zeros(3), torch.tensor([False, True]))
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
        device: torch.device | str = "cpu",
        available_bytes: int | None = None,
    ) -> None:
        self.config = config
        self.device = torch.device(device)
        self.cost = memory_cost(observation_shape, n_actions, config, kind)
        check_memory(self.cost, available_memory() if available_bytes is None else available_bytes)
        with seeded(seed):
            self.network = build_q_network(kind, observation_shape, n_actions, config).to(self.device)
        self.target_network: QNetwork | None = None
        if config.target_update:
            self.target_network = copy.deepcopy(self.network).requires_grad_(False)
        self.optimizer = self._build_optimizer()
        self.pool = ExperiencePool(config.pool_bytes, observation_shape, n_actions, needed=self.cost.pool_needed)
        self.first: PooledLayer | None = None
        if self.cost.pooled and self.device.type == "cpu":
            assert isinstance(self.network, FlatQNetwork)
            self.first = PooledLayer(self.network.first, self.pool)
        self.actions_taken = 0
        self.updates = 0
        self._acting = generator(seed, 1)
        self._sampling = generator(seed, 2)

    @property
    def exploration(self) -> float:
        """Probability that the next action is a random one."""
        return exploration_at(self.actions_taken, self.config)

    @torch.no_grad()
    def q_values(self, observation: Array) -> Tensor:
        """Q(s, .) of one observation, (n_actions,) on the CPU."""
        observed = as_tensor(observation, torch.float32)
        if self.first is not None:
            assert isinstance(self.network, FlatQNetwork)
            return self.network.of_products(self.first.of_observation(observed).unsqueeze(0))[0]
        values: Tensor = self.network(observed.unsqueeze(0).to(self.device))[0]
        return values.cpu()

    def act(self, observation: Array, mask: Array, *, greedy: bool = False) -> int:
        """Choose a legal action; a greedy one neither explores nor counts towards the end of exploration."""
        exploration = 0.0 if greedy else self.exploration
        values = functools.partial(self.q_values, observation)
        action = choose_action(values, as_tensor(mask, torch.bool), exploration, self._acting)
        self.actions_taken += not greedy
        return action

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
        if self.first is not None:
            self.first.release(self.pool.next_overwritten())
        self.pool.add(observation, action, reward, next_observation, next_mask, terminated=terminated, last=last)

    def learn(self) -> float | None:
        """One update on a sampled batch; its loss, or None while the pool is empty.

        A pool smaller than the batch is sampled all the same, with replacement: Algorithm 1 learns from
        its first step on.
        """
        if len(self.pool) == 0:
            return None
        loss = self._update()
        self.updates += 1
        if self.target_network is not None and self.updates % self.config.target_update == 0:
            self.target_network.load_state_dict(self.network.state_dict())
        return loss

    def _update(self) -> float:
        config = self.config
        if self.first is not None:
            assert isinstance(self.network, FlatQNetwork)
            return update_pooled(self.network, self.first, self.pool.draw(config.batch_size, self._sampling), config)
        batch = self.pool.sample(config.batch_size, self._sampling)
        batch = Transitions(*(values.to(self.device) for values in batch))
        longest = config.largest_gradient if config.optimizer == "sgd" else math.inf  # Adam scales by itself
        return update_q_network(
            self.network, self.optimizer, batch, config.discount, self.target_network, largest_gradient=longest
        )

    def state_dict(self) -> dict[str, Tensor]:
        """Weights, optimiser, counters and generators as a flat dictionary of tensors; not the pool."""
        state = {f"network.{name}": values for name, values in self.network.state_dict().items()}
        if self.target_network is not None:
            state |= {f"target.{name}": values for name, values in self.target_network.state_dict().items()}
        for index, slots in self.optimizer.state_dict()["state"].items():
            state |= {f"optimizer.{index}.{name}": values for name, values in slots.items() if values is not None}
        if self.first is not None:
            state |= {f"first.{name}": values for name, values in self.first.state_dict().items()}
        state["actions_taken"] = torch.tensor(self.actions_taken)
        state["updates"] = torch.tensor(self.updates)
        state["acting"] = self._acting.get_state()
        state["sampling"] = self._sampling.get_state()
        return {name: values.detach().clone() for name, values in state.items()}

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Go on from a `state_dict` of an agent of the same shape and config; the pool is left as it is."""
        self.network.load_state_dict(_below("network.", state))
        if self.target_network is not None:
            self.target_network.load_state_dict(_below("target.", state))
        slots: dict[int, dict[str, Tensor]] = {}
        for name, values in _below("optimizer.", state).items():
            index, slot = name.split(".", 1)
            slots.setdefault(int(index), {})[slot] = values.clone()
        groups = self.optimizer.state_dict()["param_groups"]
        self.optimizer.load_state_dict({"state": slots, "param_groups": groups})
        if self.first is not None:
            self.first.load_state_dict(_below("first.", state))
        self.actions_taken = int(state["actions_taken"])
        self.updates = int(state["updates"])
        self._acting.set_state(state["acting"])
        self._sampling.set_state(state["sampling"])

    def _build_optimizer(self) -> torch.optim.Optimizer:
        if self.config.optimizer == "sgd":
            return torch.optim.SGD(self.network.parameters(), lr=self.config.learning_rate)
        # Fused: no temporaries as large as the first layer, which `memory_cost` would have to count.
        fused = self.device.type in ("cpu", "cuda")
        return torch.optim.Adam(self.network.parameters(), lr=self.config.learning_rate, fused=fused)


def _below(prefix: str, state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {name.removeprefix(prefix): values for name, values in state.items() if name.startswith(prefix)}
