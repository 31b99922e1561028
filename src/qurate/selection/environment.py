"""Lines 6, 7 and 10-13 as a Gymnasium environment; knows nothing of Q-learning."""

from __future__ import annotations

import copy
import math
from dataclasses import replace
from functools import cached_property
from typing import Any

import gymnasium
import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional as F

from qurate.config import EpisodeConfig, RewardConfig
from qurate.data.samples import take
from qurate.distributed import make_fabric
from qurate.losses import entropy
from qurate.networks.heads import hold_statistics
from qurate.selection import reward
from qurate.selection.pseudo_labels import Positives, Round, view
from qurate.selection.reward import ClassSums
from qurate.selection.state import (
    RELATIONS,
    build_state,
    fixed_projection,
    moments,
    project,
    relate,
    standardize,
    state_size,
)
from qurate.training import Trainer


def draw_candidates(
    round: Round,
    positives: Positives,
    config: EpisodeConfig,
    rng: torch.Generator,
    *,
    among: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Line 7: positions in D_u of N_c candidates, and which slots are empty and so spent from the start.

    Candidates come from D_u without D_p (decision 6), or from all of D_u when the round ends with a harvest, which
    chooses D_p again from scratch. Even candidates take the same number from each pseudo-class as far as it has them.

    Args:
        round: Pseudo-labels of D_u.
        positives: D_p.
        config: How many, and whether even.
        rng: Decides which.
        among: Which samples of D_u to draw from, (N_u,) bool; all unless given.
    """
    n = min(config.candidates, len(round.pseudo_labels))
    open_to_choice = torch.ones(len(round.pseudo_labels), dtype=torch.bool)
    if config.harvest == "none":
        open_to_choice[positives.indices] = False
    if among is not None:
        open_to_choice &= among
    available = open_to_choice.nonzero().squeeze(1)
    order = available[torch.randperm(len(available), generator=rng)]
    if config.even_candidates:
        order = order[_rank_in_class(round.pseudo_labels[order]).argsort(stable=True)]
    chosen = order[:n]
    spent = torch.zeros(n, dtype=torch.bool)
    spent[len(chosen) :] = True
    return F.pad(chosen, (0, n - len(chosen))), spent


def _rank_in_class(labels: Tensor) -> Tensor:
    """How many of the same label come before each, (N,) to (N,)."""
    by_label = labels.argsort(stable=True)
    counts = torch.bincount(labels)
    firsts = counts.cumsum(0) - counts
    rank = torch.empty_like(labels)
    rank[by_label] = torch.arange(len(labels)) - firsts[labels[by_label]]
    return rank


Observation = NDArray[np.float32]


class SelectionEnv(gymnasium.Env[Observation, np.int64]):
    """Choosing pseudo-labelled samples one by one, as a Markov decision process.

    State: three parts (see `state.State`): [F(x), C(x)] of the N_c candidates, spent ones zero; class means of the
    same over D_t and D_p; class means over D_u by pseudo-label. The observation is that state, flat:
    (N_c + 2K)(d + K) numbers; with `agent="relational"` it is each candidate's relations to it, (N_c, 9), and to its
    neighbours where the reward judges these, (N_c, 10).

    Actions: a in {0, ..., N_c - 1} moves the a-th candidate from D_c to D_p. A spent candidate is no legal action:
    `info["action_mask"]` is 1 where an action is legal, and an illegal one is an error.

    Transition: the trial network F', C' trains on D_s, D_t and D_p with the labelled loss only (line 11).

    Reward: +1 if phi > tau, else -1 (Eq. 4-8); `info` holds phi and its three terms.

    Episode end: terminated when no candidate is left, and never truncated. That a reward of -1 ends an episode too is
    lines 16-18 of Algorithm 1, which are those of the agent's loop.

    Args:
        round: F, C, their pseudo-labels and view of D_u; the network is copied at every reset, never changed.
        config: Candidates, trial steps, state.
        seed: For episodes that are reset without one.
        truth: The class of each sample of D_u by people's answers, -1 where it is not known, (N_u,) int64. Those that
            are known are the candidates, and the reward is +1 for a right pseudo-label, -1 for a wrong one.
    """

    def __init__(self, round: Round, config: EpisodeConfig, *, seed: int, truth: Tensor | None = None) -> None:
        self.round = round
        self.config = config
        self.truth = truth
        self._rng = torch.Generator().manual_seed(seed)
        self.positives = round.positives
        self._labeled = round.labeled_sums
        self._buffers: tuple[Tensor, Tensor] | None = None
        self._moments = moments(_relate_all(round)) if config.agent == "relational" else None
        self._trial_sees = config.state_network == "trial" or round.config.network == "trial"
        n_unlabeled, d = round.unlabeled.features.shape
        self._projection = fixed_projection(d, config.state_features) if config.state_features else None
        shape = observation_shape(config, round.config, n_unlabeled, d, round.n_classes)
        self.action_space = gymnasium.spaces.Discrete(min(config.candidates, n_unlabeled))
        self.observation_space = gymnasium.spaces.Box(-np.inf, np.inf, shape, np.float32)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Observation, dict[str, Any]]:
        """Lines 6-7: copy F and C, draw D_c, build s_0.

        Args:
            seed: For this episode and those after it.
            options: 'positives' is D_p to start from; the round's unless given.
        """
        super().reset(seed=seed)
        if seed is not None:
            self._rng = torch.Generator().manual_seed(seed)
        round = self.round
        positives: Positives = (options or {}).get("positives", round.positives)
        if positives is not self.positives:  # an episode mostly continues with what the one before it left
            self._labeled = round.sums_of(positives, round.target, round.unlabeled)
        self.positives = positives
        self.trial.start_over(round.trainer)
        among = None if self.truth is None else self.truth >= 0
        self.candidates, self.spent = draw_candidates(round, positives, self.config, self._rng, among=among)
        n, count = len(round.pseudo_labels), self.config.entropy_samples
        self._entropy_at = None if count in (0, n) else torch.randperm(n, generator=self._rng)[:count]
        self._unlabeled, self._trial_labeled = round.unlabeled, self._labeled
        self._entropy = self._mean_entropy(round.entropy)
        return self._observe(), {"action_mask": self._mask()}

    def step(self, action: np.int64) -> tuple[Observation, float, bool, bool, dict[str, Any]]:
        """Lines 10-13: move the candidate, train the trial network, build s', judge."""
        slot = int(action)
        if bool(self.spent[slot]):
            raise ValueError(f"SelectionEnv.step: candidate {slot} is spent; legal are those with action_mask 1.")
        index = self.candidates[slot : slot + 1]
        self.spent[slot] = True
        before = self._without(index)
        # 10: update D_c and D_p
        self._move(before, index)
        # 11: update F' and C' with D_s, D_t and D_p by the labelled loss
        self._train_trial()
        # 12: the next state s'
        next_observation = self._next_state()
        # 13: the reward, with F' and C'
        judged = self._judge(index)
        if bool(judged.rewards[0] < 0) and not self.config.keep_rejected:
            self.positives, self._labeled = before
        else:
            self.positives = before[0].joined_with(judged)
        info = {"action_mask": self._mask(), **judged.first()}
        return next_observation, float(judged.rewards[0]), bool(self.spent.all()), False, info

    @cached_property
    def trial(self) -> Trainer:
        """F' and C'; every reset sets them back to F and C, with an optimiser that has not stepped yet."""
        trainer = self.round.trainer
        method = copy.deepcopy(trainer.method)
        hold_statistics(method)  # else they alone would move the entropy of Eq. (7)
        config, execution = trainer.config, trainer.execution
        fabric = make_fabric(
            execution, config.precision
        )  # of this process alone; it has the scale of 16-mixed gradients
        return Trainer(method, config, fabric, execution, total_steps=trainer.total_steps)

    def _without(self, index: Tensor) -> tuple[Positives, ClassSums]:
        """D_p and the class sums without this sample; a harvest may offer one again that is in D_p."""
        same = self.positives.indices == index
        if not bool(same.any()):
            return self.positives, self._labeled
        labels = self.positives.labels[same]
        return self.positives.take(~same), self._labeled.plus(self.round.unlabeled.rows[index], labels, times=-1)

    def _move(self, before: tuple[Positives, ClassSums], index: Tensor) -> None:
        positives, sums = before
        positive = self.round.positives_at(index)
        self.positives = positives.joined_with(positive)
        self._labeled = sums.plus(self.round.unlabeled.rows[index], positive.labels)

    def _train_trial(self) -> None:
        size = self.trial.config.batch_source
        steps = self.config.trial_steps or math.ceil(len(self.round.data.source) / size)
        data = self.round.data.with_positives(self.positives.indices, self.positives.labels)
        seed = int(torch.randint(2**31, (1,), generator=self._rng))
        self.trial.run(data, steps=steps, seed=seed, labeled_only=True)

    def _next_state(self) -> Observation:
        """s', after F' and C' have seen D_t, D_p and D_u again where state or reward are made of that."""
        if self._trial_sees:
            data, network = self.round.data, self.trial.method.network
            if self._buffers is None:
                self._buffers = torch.empty_like(self.round.target.rows), torch.empty_like(self.round.unlabeled.rows)
            target = view(network, data.target.inputs, self._buffers[0])
            self._unlabeled = view(network, data.unlabeled, self._buffers[1])
            self._trial_labeled = self.round.sums_of(self.positives, target, self._unlabeled)
        return self._observe()

    def _trial_entropy(self) -> float:
        """The mean entropy of F', C' on D_u, or on some of it."""
        if self._trial_sees:
            return self._mean_entropy(entropy(self._unlabeled.probabilities))
        inputs = self.round.data.unlabeled
        chosen = inputs if self._entropy_at is None else take(inputs, self._entropy_at)
        return float(entropy(view(self.trial.method.network, chosen).probabilities).mean())

    def _mean_entropy(self, of_all: Tensor) -> float:
        return float((of_all if self._entropy_at is None else of_all[self._entropy_at]).mean())

    def _judge(self, index: Tensor) -> Positives:
        """The chosen sample with phi, its terms and its reward, Eq. (4)-(8)."""
        before, self._entropy = self._entropy, self._trial_entropy()
        drop = reward.entropy_drop(before, self._entropy)
        positive = self.round.positives_at(index)
        classifier_prob, center_prob = positive.classifier_prob, positive.center_prob
        if self.round.config.network == "trial":
            classifier_prob, center_prob = self._trial_probabilities(index)
        phi = self.round.quality(classifier_prob, center_prob, drop)
        if self.truth is None:
            earned = reward.reward(float(phi), float(self.round.threshold[index]))
        else:
            earned = reward.true_reward(int(positive.labels), int(self.truth[index]))
        return replace(
            positive,
            rewards=torch.tensor([earned]),
            phi=phi,
            classifier_prob=classifier_prob,
            center_prob=center_prob,
            entropy_drop=torch.tensor([drop]),
        )

    def _trial_probabilities(self, index: Tensor) -> tuple[Tensor, Tensor]:
        """p_c and p_f of the chosen sample by F', C', with centres over D_t and D_p (Eq. 5, 6)."""
        label = self.round.pseudo_labels[index]
        features = self._unlabeled.features[index]
        classes = self._trial_labeled.features(self._unlabeled.d)
        if self.round.config.leave_one_out_centers:
            center = reward.leave_one_out_center_probabilities(features, label, classes, self.round.scale)
        else:
            center = reward.center_probabilities(features, classes.means(), self.round.scale)
        return self._unlabeled.probabilities[index, label], center[:, label].squeeze(1)

    def _observe(self) -> Observation:
        if self.config.state_network == "frozen" or self._unlabeled is self.round.unlabeled:
            unlabeled, labeled, sums = self.round.unlabeled, self._labeled, self.round.unlabeled_sums
        else:
            unlabeled, labeled = self._unlabeled, self._trial_labeled
            sums = ClassSums.of(unlabeled.rows, self.round.pseudo_labels, self.round.n_classes)
        state = build_state(unlabeled.rows[self.candidates], self.spent, labeled, sums)
        if self._moments is not None:
            rows = standardize(relate(state, self.round.scale), *self._moments)
            rows = _with_neighbors(rows, self.round, self.candidates)
            return rows.masked_fill(self.spent.unsqueeze(1), 0.0).numpy()
        if self._projection is not None:
            state = project(state, self._projection)
        return state.flat().numpy()

    def _mask(self) -> NDArray[np.int8]:
        return (~self.spent).numpy().astype(np.int8)


def observation_shape(
    config: EpisodeConfig, reward: RewardConfig, n_unlabeled: int, features: int, classes: int
) -> tuple[int, ...]:
    """What the agent is shown: the flat state, or a row of relations for each candidate."""
    candidates = min(config.candidates, n_unlabeled)
    if config.agent == "relational":
        return (candidates, RELATIONS + reward.judges_neighbors)
    return (state_size(candidates, config.state_features or features, classes),)


def relations_of_all(round: Round) -> Tensor:
    """The standardised relations of every sample of D_u, as if all were candidates, (N_u, 9) or (N_u, 10)."""
    relations = _relate_all(round)
    return _with_neighbors(standardize(relations, *moments(relations)), round, torch.arange(len(relations)))


def _with_neighbors(relations: Tensor, round: Round, samples: Tensor) -> Tensor:
    """The relations of some samples of D_u with p_f by their neighbours, standardised, times how far it is believed."""
    if not round.config.judges_neighbors:
        return relations
    by_neighbors = round.center_prob.unsqueeze(1)
    column = round.neighbor_trust * standardize(by_neighbors, *moments(by_neighbors))
    return torch.cat([relations, column[samples]], dim=1)


def _relate_all(round: Round) -> Tensor:
    spent = torch.zeros(len(round.pseudo_labels), dtype=torch.bool)
    state = build_state(round.unlabeled.rows, spent, round.labeled_sums, round.unlabeled_sums)
    return relate(state, round.scale)
