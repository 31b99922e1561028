"""What Q-learning costs in memory, known before anything is allocated."""

from __future__ import annotations

import itertools
import math
import os
from dataclasses import dataclass
from pathlib import Path

from qurate.config import QLearningConfig
from qurate.selection.q_learning.networks import QNetworkKind, layer_widths, pooled_bytes
from qurate.selection.q_learning.pool import OversizeStateError, check_capacity, pool_slots


def readable_size(n_bytes: int) -> str:
    """Bytes as '0.9 MB' or '3.7 GB' (powers of 1000)."""
    for scale, unit in ((10**9, "GB"), (10**6, "MB")):
        if n_bytes >= 0.1 * scale:
            return f"{n_bytes / scale:,.1f} {unit}"
    return f"{n_bytes / 10**3:,.1f} kB"


@dataclass(frozen=True)
class Cost:
    """What a Q-learner needs in memory, in bytes, known before anything is allocated."""

    kind: QNetworkKind
    """Kind of the Q-network."""
    state_numbers: int
    """Numbers in one observation, of float32."""
    weights: int
    """Weights of the Q-network."""
    pooled: bool
    """Whether the first layer is kept as its products with the pool's states, without a gradient."""
    network_bytes: int
    """Weights with their gradients, the optimiser's state and the target network; pooled, with products instead."""
    freed_bytes: int
    """Gradients of earlier updates: freed, but kept by the allocator, and in pieces."""
    batch_bytes: int
    """One update's observations, unless pooled, and the activations kept for the gradient."""
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
            f"state: {self.state_numbers:,} numbers, {readable_size(4 * self.state_numbers)}",
            f"Q-network ({self.kind}): {weights} weights, {readable_size(self.network_bytes)} "
            + ("with products" if self.pooled else "with gradients and optimiser"),
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
        kind: 'flat' or 'relational'.

    Example:
        >>> memory_cost((352, 638), 100, QLearningConfig()).lines()[0]
        'state: 224,576 numbers, 0.9 MB'
    """
    widths = layer_widths(kind, observation_shape, n_actions, config)
    weights = sum((n_in + 1) * n_out for n_in, n_out in itertools.pairwise(widths))
    copies = 2 + (2 if config.optimizer == "adam" else 0) + (1 if config.target_update else 0)
    numbers = math.prod(observation_shape)
    rows = n_actions if kind == "relational" else 1
    activations = 2 * rows * sum(widths[1:])  # before and after each ReLU
    slots, slot_bytes = pool_slots(config.pool_bytes, observation_shape, n_actions)
    beside = pooled_bytes(slots, widths[1], numbers)
    plain = kind == "flat" and config.optimizer == "sgd" and config.target_update == 0
    pooled = plain and beside < 4 * weights  # where it takes less than the gradient
    return Cost(
        kind=kind,
        state_numbers=numbers,
        weights=weights,
        pooled=pooled,
        network_bytes=4 * weights + beside if pooled else 4 * weights * copies,
        freed_bytes=0 if pooled else 2 * 4 * weights,
        batch_bytes=4 * config.batch_size * (activations if pooled else 2 * numbers + activations),
        pool_bytes=config.pool_bytes,
        pool_slot_bytes=slot_bytes,
        pool_transitions=max(slots - 1, 0),
        pool_needed=2 * config.batch_size,
    )


def available_memory() -> int | None:
    """Bytes of memory that this machine has available, or None where it is not known."""
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


def resident_memory() -> int | None:
    """Bytes of main memory that this process holds now, or None where it is not known."""
    try:
        pages = int(Path("/proc/self/statm").read_text().split()[1])
        return pages * os.sysconf("SC_PAGE_SIZE")
    except (OSError, AttributeError, ValueError):
        return None  # not Linux


def expected_peak(cost: Cost, samples: int, row: int) -> int:
    """Bytes that a run will hold at most, before it has begun, with what data and program hold already.

    Args:
        cost: Of the Q-learner, which is not there yet.
        samples: N_u.
        row: d + K, numbers per sample that a view of D_u keeps. Two views are held at once, and about as much again in
            passing: neighbours, relations, slices of a pass.
    """
    views = 4 * 4 * samples * row
    return (resident_memory() or 0) + cost.total_bytes + views + cost.freed_bytes


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
        small = "" if cost.kind == "relational" else "preset 'qurate' or EpisodeConfig.agent='relational'; "
        raise OversizeStateError(
            f"Q-learning needs {cost.total_bytes:,} bytes ({readable_size(cost.total_bytes)}) and "
            f"{available_bytes:,} bytes ({readable_size(available_bytes)}) are available. {'; '.join(cost.lines())}. "
            f"Ways out: {small}fewer EpisodeConfig.candidates; narrower states by EpisodeConfig.state_features, such "
            "as 64 (a fixed projection); a smaller QLearningConfig.hidden or pool_bytes."
        )
