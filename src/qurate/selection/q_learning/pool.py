"""The experience pool M of Algorithm 1: a ring buffer of transitions, bounded in bytes."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from qurate.errors import QurateError

Array: TypeAlias = Tensor | NDArray[Any]

# Beside the observation and the mask: slot, action (int64 each), reward (float32), terminated (bool).
_RECORD_BYTES = 8 + 8 + 4 + 1


class OversizeStateError(QurateError, ValueError):
    """A state too large for the memory it was given; says how much is needed and the ways out."""


class Transitions(NamedTuple):
    """A batch of B recordings (s_i, a_i, r_i, s'_i).

    Attributes:
        observations: s, (B, *observation_shape).
        actions: a, (B,) int64.
        rewards: r, (B,).
        next_observations: s', (B, *observation_shape).
        next_masks: The actions that are legal in s', (B, n_actions) bool.
        terminated: s' is terminal, (B,) bool. A truncated step is not.
    """

    observations: Tensor
    actions: Tensor
    rewards: Tensor
    next_observations: Tensor
    next_masks: Tensor
    terminated: Tensor


class TransitionSlots(NamedTuple):
    """The same batch with the slots of its observations instead of copies of them.

    Attributes:
        slots: Of s, (B,) int64.
        next_slots: Of s', (B,) int64.
        actions: See `Transitions`.
        rewards: See `Transitions`.
        next_masks: See `Transitions`.
        terminated: See `Transitions`.
    """

    slots: Tensor
    next_slots: Tensor
    actions: Tensor
    rewards: Tensor
    next_masks: Tensor
    terminated: Tensor


def as_tensor(values: Array, dtype: torch.dtype) -> Tensor:
    """A tensor on the CPU, without gradient, of an array of any kind."""
    if isinstance(values, Tensor):
        return values.detach().to("cpu", dtype)
    return torch.tensor(np.asarray(values), dtype=dtype)


def pool_slots(capacity_bytes: int, observation_shape: tuple[int, ...], n_actions: int) -> tuple[int, int]:
    """How many observations a pool of that many bytes holds, and the bytes of each with its record."""
    slot_bytes = 4 * math.prod(observation_shape) + n_actions + _RECORD_BYTES
    return capacity_bytes // slot_bytes, slot_bytes


class ExperiencePool:
    """The newest transitions that fit in a number of bytes.

    The next observation of a step is the observation of the following step, so each is stored once: they
    stand in a ring buffer in the order they came, and a transition is the slot of its observation, its next one
    being in the slot after it. An episode of n steps takes n + 1 slots. Slots are overwritten in order,
    hence a transition's next observation outlives it, and those retained are always the newest ones.

    Paper: Algorithm 1, lines 3, 14 and 15.

    Args:
        capacity_bytes: Upper bound of all buffers together.
        observation_shape: Shape of one observation; stored as float32.
        n_actions: Length of the action masks.
        needed: Transitions that must fit at least.

    Raises:
        OversizeStateError: Fewer than `needed` transitions fit.

    Example:
        >>> pool = ExperiencePool(1000, (3,), n_actions=2)
        >>> mask = torch.tensor([True, False])
        >>> pool.add(torch.zeros(3), 1, 1.0, torch.ones(3), mask, terminated=False, last=True)
        >>> pool.sample(4, torch.Generator()).next_observations.shape
        torch.Size([4, 3])
    """

    def __init__(
        self, capacity_bytes: int, observation_shape: tuple[int, ...], n_actions: int, *, needed: int = 1
    ) -> None:
        slots, slot_bytes = pool_slots(capacity_bytes, observation_shape, n_actions)
        check_capacity(slots - 1, needed, capacity_bytes, slot_bytes)
        self.observation_shape = tuple(observation_shape)
        self.n_actions = n_actions
        self.slots = slots
        # Memory that is not written to is not taken from the machine: a short run pays for what it stores.
        self._observations = torch.empty(slots, *observation_shape)
        self._records = {
            "where": torch.empty(slots, dtype=torch.int64),
            "actions": torch.empty(slots, dtype=torch.int64),
            "rewards": torch.empty(slots),
            "next_masks": torch.empty(slots, n_actions, dtype=torch.bool),
            "terminated": torch.empty(slots, dtype=torch.bool),
        }
        self.written = 0  # observations ever written; the newest is in slot (written - 1) % slots
        self._oldest = 0  # transitions are counted from 0; those in [oldest, added) are retained
        self._added = 0
        self._episode_goes_on = False

    def __len__(self) -> int:
        return self._added - self._oldest

    @property
    def rows(self) -> Tensor:
        """All slots, each observation as one row; what was never written is undefined."""
        return self._observations.flatten(1)

    def next_overwritten(self) -> Tensor:
        """The slots whose observations the next `add` may overwrite, at most two."""
        coming = torch.arange(self.written, self.written + 2)
        return coming[coming >= self.slots] % self.slots

    @property
    def nbytes(self) -> int:
        """Bytes of all buffers."""
        return sum(buffer.nbytes for buffer in (self._observations, *self._records.values()))

    def add(
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
        """Insert the recording (s, a, r, s'), at the expense of the oldest ones once the pool is full.

        Args:
            observation: s. Written only if it is not the next observation of the step before.
            action: a.
            reward: r.
            next_observation: s'.
            next_mask: The actions that are legal in s', (n_actions,) bool.
            terminated: s' is terminal.
            last: The episode ends here, by termination or by truncation.
        """
        before = self._check("observation", as_tensor(observation, torch.float32), self.observation_shape)
        after = self._check("next_observation", as_tensor(next_observation, torch.float32), self.observation_shape)
        mask = self._check("next_mask", as_tensor(next_mask, torch.bool), (self.n_actions,))
        if not 0 <= action < self.n_actions:
            raise ValueError(f"ExperiencePool.add: action must be in [0, {self.n_actions}), got {action}.")
        newest = (self.written - 1) % self.slots
        if not (self._episode_goes_on and torch.equal(self._observations[newest], before)):
            newest = self._write(before)
        record: dict[str, Any] = {
            "where": newest,
            "actions": action,
            "rewards": reward,
            "next_masks": mask,
            "terminated": terminated,
        }
        for name, value in record.items():
            self._records[name][self._added % self.slots] = value
        self._added += 1
        self._write(after)
        self._episode_goes_on = not (last or terminated)

    def sample(self, batch_size: int, rng: torch.Generator) -> Transitions:
        """Draw transitions uniformly, with replacement, from those retained."""
        slots, next_slots, actions, rewards, next_masks, terminated = self.draw(batch_size, rng)
        following = self._observations[next_slots]
        return Transitions(self._observations[slots], actions, rewards, following, next_masks, terminated)

    def draw(self, batch_size: int, rng: torch.Generator) -> TransitionSlots:
        """What `sample` would give, by its slots."""
        if len(self) == 0:
            raise ValueError("ExperiencePool.sample: the pool is empty; add a transition first.")
        records = torch.randint(self._oldest, self._added, (batch_size,), generator=rng) % self.slots
        slots, *rest = (buffer[records] for buffer in self._records.values())
        return TransitionSlots(slots, (slots + 1) % self.slots, *rest)

    def state_dict(self) -> dict[str, Tensor]:
        """The transitions and where the ring stands, as a flat dictionary of copies without unused slots."""
        written, added = min(self.written, self.slots), min(self._added, self.slots)
        counters = torch.tensor([self.written, self._oldest, self._added, int(self._episode_goes_on)])
        state = {"observations": self._observations[:written], "counters": counters}
        state |= {name: buffer[:added] for name, buffer in self._records.items()}
        return {name: values.clone() for name, values in state.items()}

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Continue from a `state_dict` of a pool of the same shape."""
        self._observations[: len(state["observations"])] = state["observations"]
        for name, buffer in self._records.items():
            buffer[: len(state[name])] = state[name]
        self.written, self._oldest, self._added, goes_on = state["counters"].tolist()
        self._episode_goes_on = bool(goes_on)

    def _write(self, observation: Tensor) -> int:
        slot = self.written % self.slots
        if len(self) and int(self._records["where"][self._oldest % self.slots]) == slot:
            self._oldest += 1
        self._observations[slot] = observation
        self.written += 1
        return slot

    def _check(self, name: str, values: Tensor, shape: tuple[int, ...]) -> Tensor:
        if values.shape != shape:
            raise ValueError(f"ExperiencePool.add: {name} must have shape {shape}, got {tuple(values.shape)}.")
        return values


def check_capacity(transitions: int, needed: int, capacity_bytes: int, slot_bytes: int) -> None:
    """Refuse a pool in which fewer than `needed` transitions fit."""
    if transitions < needed:
        raise OversizeStateError(
            f"The experience pool of {capacity_bytes:,} bytes holds {max(transitions, 0):,} transitions of "
            f"{slot_bytes:,} bytes each, and {needed:,} are needed ({(needed + 1) * slot_bytes:,} bytes). Ways out: "
            "a larger QLearningConfig.pool_bytes or a smaller batch_size; fewer EpisodeConfig.candidates; narrower "
            "states by EpisodeConfig.state_features, such as 64 (a fixed projection); or preset 'qurate', whose states "
            "are small."
        )
