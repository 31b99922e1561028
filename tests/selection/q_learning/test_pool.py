"""The experience pool against a plain list, and within its bytes."""

from __future__ import annotations

import itertools
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from qurate.selection.q_learning.pool import ExperiencePool, OversizeStateError, Transitions, pool_slots

SHAPE = (2,)
N_ACTIONS = 3
SLOT_BYTES = 4 * 2 + 3 + 21

Recording = tuple[tuple[float, ...], int, float, tuple[float, ...], tuple[bool, ...], bool]


@dataclass(frozen=True)
class Episode:
    steps: int
    terminated: bool
    declared: bool  # False: nobody says `last`, the next episode just begins with another observation


def recordings(batch: Transitions) -> list[Recording]:
    columns = [values.tolist() for values in batch]
    return [(tuple(s), a, r, tuple(n), tuple(m), t) for s, a, r, n, m, t in zip(*columns, strict=True)]


def play(pool: ExperiencePool, episodes: list[Episode], slots: int) -> list[Recording]:
    """Fill the pool; return what a plain list says it must retain: those whose observation is among the newest."""
    numbers = itertools.count()
    written = 0
    added: list[tuple[int, Recording]] = []
    for episode in episodes:
        before = (float(next(numbers)), 0.5)
        written += 1
        for step in range(episode.steps):
            end = step == episode.steps - 1
            n = next(numbers)
            after = (float(n), 0.5)
            mask = (n % 2 == 0, n % 3 == 0, True)
            terminated = end and episode.terminated and episode.declared
            recording = (before, n % N_ACTIONS, float(-n), after, mask, terminated)
            pool.add(
                torch.tensor(before),
                recording[1],
                recording[2],
                torch.tensor(after),
                torch.tensor(mask),
                terminated=terminated,
                last=end and episode.declared,
            )
            added.append((written - 1, recording))
            written += 1
            before = after
    return [recording for index, recording in added if index >= written - slots]


@given(
    episodes=st.lists(
        st.builds(Episode, steps=st.integers(1, 5), terminated=st.booleans(), declared=st.booleans()),
        min_size=1,
        max_size=8,
    ),
    slots=st.integers(2, 12),
    seed=st.integers(0, 2**31),
)
def test_the_pool_equals_a_plain_list(episodes: list[Episode], slots: int, seed: int) -> None:
    pool = ExperiencePool(slots * SLOT_BYTES, SHAPE, N_ACTIONS)
    retained = play(pool, episodes, slots)
    assert len(pool) == len(retained) > 0
    drawn = recordings(pool.sample(100 * slots, torch.Generator().manual_seed(seed)))
    assert set(drawn) == set(retained)


def test_one_episode_fills_all_slots_but_one() -> None:
    pool = ExperiencePool(10 * SLOT_BYTES, SHAPE, N_ACTIONS)
    play(pool, [Episode(50, terminated=True, declared=True)], slots=10)
    assert len(pool) == pool.slots - 1 == 9


def test_transitions_are_drawn_evenly() -> None:
    pool = ExperiencePool(8 * SLOT_BYTES, SHAPE, N_ACTIONS)
    play(pool, [Episode(3, terminated=True, declared=True), Episode(9, terminated=True, declared=True)], slots=8)
    rewards = pool.sample(7000, torch.Generator().manual_seed(0)).rewards
    counts = rewards.unique(return_counts=True)[1]
    assert len(counts) == 7
    assert bool(((counts - 1000).abs() < 150).all())


@given(
    capacity=st.integers(0, 20_000),
    shape=st.lists(st.integers(1, 6), min_size=1, max_size=3).map(tuple),
    n_actions=st.integers(1, 20),
)
def test_the_bytes_are_bounded_and_well_used(capacity: int, shape: tuple[int, ...], n_actions: int) -> None:
    slots, slot_bytes = pool_slots(capacity, shape, n_actions)
    if slots < 2:
        with pytest.raises(OversizeStateError):
            ExperiencePool(capacity, shape, n_actions)
        return
    pool = ExperiencePool(capacity, shape, n_actions)
    assert capacity - slot_bytes < pool.nbytes <= capacity


def test_each_observation_is_stored_once() -> None:
    wide = 10_000
    pool = ExperiencePool(100 * 4 * wide + 100 * 30, (wide,), 1)
    assert pool.slots - 1 == 99  # two observations per transition would leave room for half as many


def test_numpy_arrays_and_wider_floats_are_taken() -> None:
    pool = ExperiencePool(1000, SHAPE, N_ACTIONS)
    third = np.array([1 / 3, 2 / 3])  # float64, not exact in float32
    third.flags.writeable = False
    mask = np.array([1, 0, 1], dtype=np.int8)
    pool.add(np.zeros(2), 0, 1, third, mask, terminated=False, last=False)
    pool.add(third, 1, 2, np.ones(2), mask, terminated=True, last=True)
    drawn = pool.sample(50, torch.Generator().manual_seed(0))
    assert drawn.observations.dtype == drawn.rewards.dtype == torch.float32
    assert drawn.next_masks.unique(dim=0).tolist() == [[True, False, True]]
    assert pool.written == 3  # the shared observation was recognised


def test_a_batch_is_a_copy() -> None:
    pool = ExperiencePool(3 * SLOT_BYTES, SHAPE, N_ACTIONS)
    play(pool, [Episode(2, terminated=True, declared=True)], slots=3)
    batch = pool.sample(5, torch.Generator().manual_seed(0))
    before = [values.clone() for values in batch]
    play(pool, [Episode(9, terminated=True, declared=True)], slots=3)
    assert all(torch.equal(old, new) for old, new in zip(before, batch, strict=True))


def test_too_few_bytes_fail_with_the_numbers_and_the_ways_out() -> None:
    with pytest.raises(OversizeStateError) as caught:
        ExperiencePool(10_000_000, (1000, 1000), 10, needed=64)
    message = str(caught.value)
    assert "10,000,000 bytes" in message
    assert "holds 1 transitions of 4,000,031 bytes" in message
    assert "64 are needed (260,002,015 bytes)" in message
    assert all(way in message for way in ("pool_bytes", "batch_size", "EpisodeConfig.candidates", "state_features"))
    ExperiencePool(65 * SLOT_BYTES, SHAPE, N_ACTIONS, needed=64)


@pytest.mark.parametrize(
    ("observation", "action", "next_mask", "complaint"),
    [
        (torch.zeros(3), 0, torch.ones(3), r"observation must have shape \(2,\), got \(3,\)"),
        (torch.zeros(2), 3, torch.ones(3), r"action must be in \[0, 3\), got 3"),
        (torch.zeros(2), -1, torch.ones(3), r"action must be in \[0, 3\), got -1"),
        (torch.zeros(2), 0, torch.ones(2), r"next_mask must have shape \(3,\), got \(2,\)"),
    ],
)
def test_a_wrong_recording_is_refused(observation: Tensor, action: int, next_mask: Tensor, complaint: str) -> None:
    pool = ExperiencePool(1000, SHAPE, N_ACTIONS)
    with pytest.raises(ValueError, match=complaint):
        pool.add(observation, action, 0.0, torch.zeros(2), next_mask, terminated=False, last=False)
    assert len(pool) == 0


def test_an_empty_pool_has_nothing_to_sample() -> None:
    with pytest.raises(ValueError, match="the pool is empty"):
        ExperiencePool(1000, SHAPE, N_ACTIONS).sample(1, torch.Generator())
