"""The agent of a run, and what it will cost in memory, said before anything is allocated."""

from __future__ import annotations

from dataclasses import replace

from qurate.config import DQNConfig, QLearningConfig, RunConfig
from qurate.runtime.randomness import stream_seed
from qurate.selection.callbacks import Callback
from qurate.selection.environment import observation_shape
from qurate.selection.q_learning.agent import DeepQAgent
from qurate.selection.q_learning.memory import expected_peak, memory_cost
from qurate.selection.q_learning.pool import pool_slots
from qurate.selection.selectors import Sizes


def build_agent(config: RunConfig, sizes: Sizes, tell: Callback) -> DeepQAgent:
    """The agent of a config, built for the states of a problem.

    Args:
        config: Its selector is the agent's.
        sizes: N_u, d and K, and how many answers it will be rewarded by before it begins.
        tell: Told the expected peak of memory.

    Raises:
        OversizeStateError: If state, network and pool do not fit in memory; raised before anything is allocated.
    """
    chosen = config.selection.selector
    assert isinstance(chosen, DQNConfig)
    shape = observation_shape(chosen.episode, sizes.unlabeled, sizes.features, sizes.classes)
    n_actions = min(chosen.episode.candidates, sizes.unlabeled)
    learning = pool_for_run(chosen, config.selection.rounds, shape, n_actions, sizes.answers)
    cost = memory_cost(shape, n_actions, learning, chosen.episode.agent)
    tell.on_memory(expected_peak(cost, sizes.unlabeled, sizes.features + sizes.classes))
    return DeepQAgent(chosen.episode.agent, shape, n_actions, learning, stream_seed(config.seed, 3))


def pool_for_run(
    config: DQNConfig, rounds: int, shape: tuple[int, ...], n_actions: int, answers: int = 0
) -> QLearningConfig:
    """The numbers of Q-learning with a pool no larger than all transitions of the run need."""
    episode, learning = config.episode, config.q_learning
    _, slot = pool_slots(learning.pool_bytes, shape, n_actions)
    of_a_round = 2 * episode.actions if episode.repeat_episodes else episode.actions + 1
    most = max(rounds * of_a_round + 2 * answers, 2 * learning.batch_size) + 2
    return replace(learning, pool_bytes=min(learning.pool_bytes, most * slot))
