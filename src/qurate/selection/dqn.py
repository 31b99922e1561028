"""Lines 6-18 of Algorithm 1: a deep Q-network selects. Here the environment and Q-learning meet."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Self

import numpy as np
from torch import Tensor

from qurate.config import DQNConfig, QLearningConfig, RunConfig
from qurate.runtime.compute import torch_threads
from qurate.runtime.randomness import stream_seed
from qurate.selection.callbacks import Action, Callback
from qurate.selection.environment import SelectionEnv, observation_shape, relations_of_all
from qurate.selection.pseudo_labels import Positives, Round
from qurate.selection.q_learning.agent import DeepQAgent
from qurate.selection.q_learning.memory import expected_peak, memory_cost
from qurate.selection.q_learning.pool import pool_slots
from qurate.selection.q_learning.update import exploration_at
from qurate.selection.selectors import NamedSelector, Sizes, balance, best_within_room


class DQNSelector(NamedSelector):
    """A deep Q-network chooses: lines 6-18. The paper's TML_DQNPL with method 'tml'.

    Args:
        config: Episodes, Q-learning, harvest.
        agent: Acts, remembers and learns.
        rounds: The budget, over which exploration falls.
        seed: Decides the candidates.
        callbacks: Called after each action.
    """

    Config = DQNConfig
    config: DQNConfig

    def __init__(self, config: DQNConfig, agent: DeepQAgent, rounds: int, seed: int, callbacks: Callback) -> None:
        self.config = config
        self.agent = agent
        self.rounds = rounds
        self.seed = seed
        self._callbacks = callbacks

    @classmethod
    def build(cls, config: RunConfig, sizes: Sizes, callbacks: Callback) -> Self:
        """With the agent of a run; see `build_agent`."""
        chosen = config.selection.selector
        assert isinstance(chosen, DQNConfig)
        return cls(chosen, build_agent(config, sizes, callbacks), config.selection.rounds, config.seed, callbacks)

    def select(self, round: Round) -> Positives:
        """Lines 6-18, then the harvest if the config asks for one."""
        episode = self.config.episode
        env = self.environment(round)
        positives = self._run_episodes(env, episode.actions, repeat=episode.repeat_episodes, callbacks=self._callbacks)
        if episode.harvest == "none":
            return positives
        chosen = harvest(round, self.agent.q_values(relations_of_all(round)), self.config)
        return chosen.remembering(positives).remembering(round.positives)

    def environment(self, round: Round) -> SelectionEnv:
        """The selection problem of a round."""
        return SelectionEnv(round, self.config.episode, seed=stream_seed(self.seed, 6, round.number))

    def learn_from_answers(self, round: Round, truth: Tensor) -> None:
        """Lines 6-18 over samples that people have labelled, with true rewards; D_p stays as it is (decision 52).

        As many actions as there are answers. Callbacks are not told of them, for that D_u no longer exists.

        Args:
            round: Pseudo-labels of D_u as it was before the answers.
            truth: The class of each sample of D_u, -1 where it is not known, (N_u,) int64.
        """
        episode = replace(self.config.episode, candidates=self.agent.pool.n_actions)  # of the smaller D_u that is left
        env = SelectionEnv(round, episode, seed=stream_seed(self.seed, 6, round.number, 1), truth=truth)
        self._run_episodes(env, int((truth >= 0).sum()), repeat=True, callbacks=Callback())

    def _run_episodes(self, env: SelectionEnv, actions: int, *, repeat: bool, callbacks: Callback) -> Positives:
        """Lines 6-18 with this many actions, in one episode or in as many as that takes; D_p afterwards."""
        agent, positives, exploration = self.agent, env.round.positives, self.exploration(env.round.number)
        left = actions
        with torch_threads(1):
            while left > 0:  # more than one episode per round is ours (decision 25)
                # 6: copy F and C to F' and C'    7: draw D_c, build s_0
                observation, info = env.reset(options={"positives": positives})
                mask = info["action_mask"]
                if not mask.any():
                    break
                # 8: while D_c is not empty
                while mask.any() and left > 0:
                    # 9: choose an action, Eq. (11)
                    action = agent.act(observation, mask, exploration=exploration)
                    # 10: update D_c and D_p    11: train F' and C'    12: next state    13: reward, Eq. (8)
                    next_observation, reward, terminated, _, info = env.step(np.int64(action))
                    mask, left = info["action_mask"], left - 1
                    ends = terminated or reward < 0
                    # 14: insert the recording into M
                    agent.remember(
                        observation, action, reward, next_observation, mask, terminated=ends, last=ends or left == 0
                    )
                    # 15: sample recordings from M, update Q, Eq. (10)
                    loss = agent.learn()
                    observation = next_observation
                    measured = info["sample"], info["label"], reward, info["phi"], info["entropy_drop"]
                    callbacks.on_action(Action(env.round.number, *measured, loss, exploration))
                    # 16-18: if the reward is negative, break
                    if reward < 0:
                        break
                positives = env.positives
                if not repeat:
                    break
        return positives

    def exploration(self, number: int) -> float:
        """Probability of a random action in a round: the first explores most, the last not at all (decision 33)."""
        progress = number / (self.rounds - 1) if self.rounds > 1 else 1.0
        return exploration_at(progress, self.config.q_learning)

    def state_dict(self) -> dict[str, Tensor]:
        """The agent and its pool."""
        return self.agent.state_dict()

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Continue from a `state_dict`."""
        self.agent.load_state_dict(state)


def build_agent(config: RunConfig, sizes: Sizes, callbacks: Callback) -> DeepQAgent:
    """The agent of a config, built for the states of a problem.

    Args:
        config: Its selector is the agent's.
        sizes: N_u, d and K, and how many answers will reward it before it begins.
        callbacks: Called with the expected peak of memory.

    Raises:
        OversizeStateError: If state, network and pool do not fit in memory; raised before anything is allocated.
    """
    chosen = config.selection.selector
    assert isinstance(chosen, DQNConfig)
    shape = observation_shape(chosen.episode, config.selection.reward, sizes.unlabeled, sizes.features, sizes.classes)
    n_actions = min(chosen.episode.candidates, sizes.unlabeled)
    learning = pool_for_run(chosen, config.selection.rounds, shape, n_actions, sizes.answers)
    cost = memory_cost(shape, n_actions, learning, chosen.episode.agent)
    callbacks.on_memory(expected_peak(cost, sizes.unlabeled, sizes.features + sizes.classes))
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


def harvest(round: Round, scores: Tensor, config: DQNConfig) -> Positives:
    """D_p chosen again from all of D_u at the end of a round (decision 24).

    The best by score, a share of D_u that grows over the rounds; the worst (1 - share) / 2 by phi are left out.

    'adaptive': no class gives more than its room, which is nearly equal for all where the predicted classes are, and
    without bound where they are not; see `balance`. The worst are those of their class as far as it is balanced, else
    of all.

    'equal': each class gives at most ceil(share * N_u / K) samples, and the worst are those of their class.

    Args:
        round: Pseudo-labels and their quality.
        scores: The higher the sooner chosen, (N_u,).
        config: Which of the two, and its shares.
    """
    share = config.share_at(round.progress)
    worst = (1 - share) / 2
    gate = round.class_quantile(round.phi, worst)
    weight = balance(round, config) if config.episode.harvest == "adaptive" else 1.0
    good = round.phi >= weight * gate + (1 - weight) * round.phi.quantile(worst)
    scores = scores.masked_fill(~good, -math.inf)
    if config.episode.harvest == "adaptive":
        chosen = best_within_room(round, scores, weight, config)
    else:
        chosen = round.best_of_each_class(scores, count=math.ceil(share * len(scores) / round.n_classes))
    return round.positives_at(chosen[good[chosen]])
