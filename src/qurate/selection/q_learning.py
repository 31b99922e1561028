"""Deep Q-learning with action masks (Eq. 9-11): Q-networks, exploration, the update, and what it costs.

Knows nothing of images or classifiers: an observation is a tensor, an action a number, a mask says which
actions are legal.
"""

from __future__ import annotations

import copy
import itertools
import math
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, TypeAlias

import torch
from torch import Tensor, nn

from qurate.config import QLearningConfig
from qurate.randomness import generator, seeded
from qurate.selection.pool import (
    Array,
    ExperiencePool,
    OversizeStateError,
    Transitions,
    as_tensor,
    check_capacity,
    pool_slots,
)

QNetworkKind: TypeAlias = Literal["flat", "shared"]


def _check(condition: bool, where: str, allowed: str, got: object) -> None:
    if not condition:
        raise ValueError(f"{where} must be {allowed}, got {got!r}.")


# Q-networks


def _layers(widths: tuple[int, ...], output_relu: bool) -> nn.Sequential:
    layers: list[nn.Module] = []
    for n_in, n_out in itertools.pairwise(widths):
        layers += [nn.Linear(n_in, n_out), nn.ReLU()]
    return nn.Sequential(*(layers if output_relu else layers[:-1]))


class FlatQNetwork(nn.Module):
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
        values: Tensor = self.layers(observations.flatten(1))
        return values


class SharedQNetwork(nn.Module):
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


def _widths(
    kind: QNetworkKind, observation_shape: tuple[int, ...], n_actions: int, config: QLearningConfig
) -> tuple[int, ...]:
    _check(n_actions > 0, "n_actions", "positive", n_actions)
    if kind == "flat":
        return (math.prod(observation_shape), *config.hidden, n_actions)
    _check(kind == "shared", "kind", "'flat' or 'shared'", kind)
    _check(
        len(observation_shape) == 2 and observation_shape[0] == n_actions,
        "observation_shape of a shared Q-network",
        f"(n_actions, width) with n_actions = {n_actions}",
        observation_shape,
    )
    return (observation_shape[1], *config.hidden, 1)


def build_q_network(
    kind: QNetworkKind, observation_shape: tuple[int, ...], n_actions: int, config: QLearningConfig
) -> nn.Module:
    """A Q-network, (B, *observation_shape) -> (B, n_actions), with freshly drawn weights.

    Args:
        kind: 'flat' (the paper's) or 'shared' (one row for each action).
        observation_shape: Shape of one observation; (n_actions, width) for 'shared'.
        n_actions: Number of actions.
        config: Its `hidden` and `output_relu`.
    """
    n_in = _widths(kind, observation_shape, n_actions, config)[0]
    if kind == "flat":
        return FlatQNetwork(n_in, n_actions, config.hidden, config.output_relu)
    return SharedQNetwork(n_in, config.hidden, config.output_relu)


# Eq. (9)-(11)


def choose_action(q_values: Tensor, mask: Tensor, exploration: float, rng: torch.Generator) -> int:
    """The best legal action, or with probability `exploration` any legal one.

    a = argmax_{a legal} Q(s, a)

    Paper: Eq. (11), with the epsilon-greedy strategy; masked (decision 4).

    Args:
        q_values: Q(s, .), (n_actions,).
        mask: Legal actions, (n_actions,) bool.
        exploration: Probability of a uniformly drawn legal action. Nothing is drawn when it is 0.
        rng: Generator of the draws, on the CPU.

    Example:
        >>> choose_action(torch.tensor([3.0, 2.0]), torch.tensor([False, True]), 0.0, torch.Generator())
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
    return int(legal[q_values[legal].argmax()])


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


def q_loss(q_values: Tensor, actions: Tensor, targets: Tensor) -> Tensor:
    """Half the mean squared distance of Q(s, a) from V; its gradient is the direction of Eq. (10).

    1/B sum_i 1/2 (Q(s_i, a_i) - V_i)^2, of gradient 1/B sum_i dQ(s_i, a_i)/dOmega (Q(s_i, a_i) - V_i)

    Paper: Eq. (10), whose sum is a mean here, so that the step does not grow with the batch.

    Args:
        q_values: Q(s, .), (B, n_actions).
        actions: a, (B,) int64.
        targets: V, (B,), without gradient.

    Returns:
        A scalar.
    """
    chosen = q_values.gather(1, actions.unsqueeze(1)).squeeze(1)
    return 0.5 * (chosen - targets.detach()).square().mean()


def update_q_network(
    network: nn.Module,
    optimizer: torch.optim.Optimizer,
    batch: Transitions,
    discount: float,
    target_network: nn.Module | None = None,
) -> float:
    """One step of the Q-network towards the Bellman targets of a batch.

    Paper: Eq. (9) and (10); Algorithm 1, line 15.

    Args:
        network: Q; its parameters are what `optimizer` steps.
        optimizer: SGD for the printed step.
        batch: Sampled transitions.
        discount: gamma.
        target_network: Makes Q(s', .) instead of `network` (decision 3).

    Returns:
        The loss before the step.
    """
    with torch.no_grad():
        next_q = (target_network or network)(batch.next_observations)
    targets = bellman_targets(batch.rewards, next_q, batch.next_masks, batch.terminated, discount)
    loss = q_loss(network(batch.observations), batch.actions, targets)
    value = loss.item()
    if not math.isfinite(value):
        raise FloatingPointError(
            f"The loss of the Q-network is {value}. Lower QLearningConfig.learning_rate, or check the "
            "observations and rewards for NaN or huge values."
        )
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    return value


# What it costs


def readable_size(n_bytes: int) -> str:
    """Bytes as '0.9 MB' or '3.7 GB' (powers of 1000)."""
    scale, unit = next(
        ((scale, unit) for scale, unit in ((10**9, "GB"), (10**6, "MB")) if n_bytes >= 0.1 * scale), (10**3, "kB")
    )
    return f"{n_bytes / scale:,.1f} {unit}"


@dataclass(frozen=True)
class Cost:
    """What a Q-learner needs in memory, in bytes, known before anything is allocated."""

    kind: QNetworkKind
    """Kind of the Q-network."""
    state_numbers: int
    """Numbers in one observation."""
    state_bytes: int
    """One observation in float32."""
    weights: int
    """Weights of the Q-network."""
    network_bytes: int
    """Weights with their gradients, the optimiser's state and the target network."""
    batch_bytes: int
    """One update's observations, and the activations kept for the gradient."""
    pool_bytes: int
    """The configured bound of all the pool's buffers."""
    pool_slot_bytes: int
    """One transition in the pool."""
    pool_transitions: int
    """Transitions that fit in the pool."""
    pool_needed: int
    """Transitions that must fit: two batches."""

    @property
    def total_bytes(self) -> int:
        """Network, batch and pool together."""
        return self.network_bytes + self.batch_bytes + self.pool_bytes

    def lines(self) -> list[str]:
        """The cost in words, one line for each part and the total."""
        weights = f"{self.weights / 1e6:,.0f} M" if self.weights >= 10**7 else f"{self.weights:,}"
        return [
            f"state: {self.state_numbers:,} numbers, {readable_size(self.state_bytes)}",
            f"Q-network ({self.kind}): {weights} weights, {readable_size(self.network_bytes)} "
            "with gradients and optimiser",
            f"batch: {readable_size(self.batch_bytes)}",
            f"pool: {self.pool_transitions:,} transitions, {readable_size(self.pool_bytes)}",
            f"total: {readable_size(self.total_bytes)}",
        ]


def memory_cost(
    observation_shape: tuple[int, ...], n_actions: int, config: QLearningConfig, kind: QNetworkKind = "flat"
) -> Cost:
    """Compute what a Q-learner needs in memory; allocates nothing.

    Args:
        observation_shape: Shape of one observation.
        n_actions: Number of actions.
        config: Widths, optimiser, batch and pool.
        kind: 'flat' or 'shared'.

    Example:
        >>> memory_cost((352, 638), 100, QLearningConfig()).lines()[0]
        'state: 224,576 numbers, 0.9 MB'
    """
    widths = _widths(kind, observation_shape, n_actions, config)
    weights = sum((n_in + 1) * n_out for n_in, n_out in itertools.pairwise(widths))
    copies = 2 + (2 if config.optimizer == "adam" else 0) + (1 if config.target_update else 0)
    numbers = math.prod(observation_shape)
    rows = n_actions if kind == "shared" else 1
    activations = 2 * rows * sum(widths[1:])  # before and after each ReLU
    slots, slot_bytes = pool_slots(config.pool_bytes, observation_shape, n_actions)
    return Cost(
        kind=kind,
        state_numbers=numbers,
        state_bytes=4 * numbers,
        weights=weights,
        network_bytes=4 * weights * copies,
        batch_bytes=4 * config.batch_size * (2 * numbers + activations),
        pool_bytes=config.pool_bytes,
        pool_slot_bytes=slot_bytes,
        pool_transitions=max(slots - 1, 0),
        pool_needed=2 * config.batch_size,
    )


def available_memory() -> int | None:
    """Bytes of memory this machine has to give, or None where it does not say."""
    try:
        for line in Path("/proc/meminfo").read_text().splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    except OSError:
        pass  # not Linux
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError, OSError):
        return None


def check_memory(cost: Cost, available_bytes: int | None) -> None:
    """Stop before training when the Q-learner cannot fit.

    Args:
        cost: From `memory_cost`.
        available_bytes: From `available_memory`, or a limit of your own; None skips that comparison.

    Raises:
        OversizeStateError: Too few transitions fit in the pool, or the total exceeds what is available.
    """
    check_capacity(cost.pool_transitions, cost.pool_needed, cost.pool_bytes, cost.pool_slot_bytes)
    if available_bytes is not None and cost.total_bytes > available_bytes:
        shared = "" if cost.kind == "shared" else ", a 'shared' Q-network (weights for one row)"
        raise OversizeStateError(
            f"Q-learning needs {cost.total_bytes:,} bytes ({readable_size(cost.total_bytes)}) and "
            f"{available_bytes:,} bytes ({readable_size(available_bytes)}) are available. {'; '.join(cost.lines())}. "
            "Ways out: fewer candidates, narrower states by state_features (a fixed projection)"
            f"{shared}, smaller hidden layers, or a smaller pool_bytes."
        )


# The agent


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
        self.target_network: nn.Module | None = None
        if config.target_update:
            self.target_network = copy.deepcopy(self.network).requires_grad_(False)
        self.optimizer = self._build_optimizer()
        self.pool = ExperiencePool(config.pool_bytes, observation_shape, n_actions, needed=self.cost.pool_needed)
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
        batch = as_tensor(observation, torch.float32).unsqueeze(0).to(self.device)
        values: Tensor = self.network(batch)[0]
        return values.cpu()

    def act(self, observation: Array, mask: Array, *, greedy: bool = False) -> int:
        """Choose a legal action; a greedy one neither explores nor counts towards the end of exploration."""
        legal = as_tensor(mask, torch.bool)
        values = self.q_values(observation)
        if greedy:
            return choose_action(values, legal, 0.0, self._acting)
        action = choose_action(values, legal, self.exploration, self._acting)
        self.actions_taken += 1
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
        self.pool.add(observation, action, reward, next_observation, next_mask, terminated=terminated, last=last)

    def learn(self) -> float | None:
        """One update on a sampled batch; its loss, or None while the pool is empty.

        A pool smaller than the batch is sampled all the same, with replacement: Algorithm 1 learns from
        its first step on.
        """
        if len(self.pool) == 0:
            return None
        batch = self.pool.sample(self.config.batch_size, self._sampling)
        batch = Transitions(*(values.to(self.device) for values in batch))
        loss = update_q_network(self.network, self.optimizer, batch, self.config.discount, self.target_network)
        self.updates += 1
        if self.target_network is not None and self.updates % self.config.target_update == 0:
            self.target_network.load_state_dict(self.network.state_dict())
        return loss

    def state_dict(self) -> dict[str, Tensor]:
        """Weights, optimiser, counters and generators as a flat dictionary of tensors; not the pool."""
        state = {f"network.{name}": values for name, values in self.network.state_dict().items()}
        if self.target_network is not None:
            state |= {f"target.{name}": values for name, values in self.target_network.state_dict().items()}
        for index, slots in self.optimizer.state_dict()["state"].items():
            state |= {f"optimizer.{index}.{name}": values for name, values in slots.items() if values is not None}
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
