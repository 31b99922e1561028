"""Line 5: pseudo-labels of D_u, and everything needed to judge them."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor
from torch.nn import functional as F

from qurate.config import DQNConfig, RewardConfig, RunConfig
from qurate.data.batches import TrainingData
from qurate.data.samples import check_positions
from qurate.runtime.randomness import generator
from qurate.selection import reward
from qurate.selection.positives import Positives
from qurate.selection.refresh import on_embeddings
from qurate.selection.reward import ClassSums
from qurate.selection.state import View
from qurate.selection.views import view
from qurate.training import Trainer


@dataclass(frozen=True, eq=False)
class Round:
    """What a selector sees in one round: pseudo-labels of D_u and everything needed to judge them.

    Args:
        number: 0, 1, ...
        progress: 0 in the first round, 1 in the last of the budget.
        trainer: F and C of the round.
        data: D_s, D_t, D_u without positives.
        target: The network's view of D_t.
        unlabeled: Its view of D_u.
        pseudo_labels: Line 5, (N_u,) int64.
        positives: D_p so far.
        neighbors: Of each sample of D_u among D_t and D_u, (N_u, k); None unless the reward asks for them.
        config: How quality is measured.
        rng: For random choices.
    """

    number: int
    progress: float
    trainer: Trainer
    data: TrainingData
    target: View
    unlabeled: View
    pseudo_labels: Tensor
    positives: Positives
    neighbors: Tensor | None
    config: RewardConfig
    rng: torch.Generator

    @property
    def n_classes(self) -> int:
        """Number K of classes."""
        return self.unlabeled.probabilities.shape[1]

    @property
    def scale(self) -> float:
        """Logit scale s of the classifier."""
        return self.trainer.method.network.classifier.scale

    @cached_property
    def labeled_sums(self) -> ClassSums:
        """Rows of D_t and D_p by their labels, true and pseudo."""
        return self.sums_of(self.positives, self.target, self.unlabeled)

    @cached_property
    def unlabeled_sums(self) -> ClassSums:
        """Rows of D_u by pseudo-label."""
        return ClassSums.of(self.unlabeled.rows, self.pseudo_labels, self.n_classes)

    def sums_of(self, positives: Positives, target: View, unlabeled: View) -> ClassSums:
        """Rows of D_t and these positives by their labels, as some network sees them."""
        known = ClassSums.of(target.rows, self.data.target.labels.cpu(), self.n_classes)
        return known.plus(unlabeled.rows[positives.indices], positives.labels)

    @cached_property
    def classifier_prob(self) -> Tensor:
        """p_c of each pseudo-label in D_u, (N_u,)."""
        return self._of_pseudo_label(self.unlabeled.probabilities)

    @cached_property
    def center_prob(self) -> Tensor:
        """p_f of each pseudo-label in D_u by the network of the round, (N_u,)."""
        if self.config.center == "neighbors":
            return self._neighbor_prob()
        classes = self.labeled_sums.features(self.unlabeled.d)
        probabilities = reward.center_probabilities(self.unlabeled.features, classes.means(), self.scale)
        if self.config.leave_one_out_centers and len(self.positives):
            inside = self.positives.indices
            probabilities[inside] = reward.leave_one_out_center_probabilities(
                self.unlabeled.features[inside], self.positives.labels, classes, self.scale
            )
        return self._of_pseudo_label(probabilities)

    @cached_property
    def phi(self) -> Tensor:
        """Quality of each pseudo-label in D_u with no drop in entropy, Eq. (4), (N_u,)."""
        return self.quality(self.classifier_prob, self.center_prob, 0.0)

    @cached_property
    def threshold(self) -> Tensor:
        """What phi must exceed, (N_u,)."""
        if self.config.threshold == "fixed":
            return torch.full_like(self.phi, self.config.tau)
        return self.class_quantile(self.phi, 0.5)

    def quality(self, classifier_prob: Tensor, center_prob: Tensor, entropy_drop: float) -> Tensor:
        """Eq. (4) with the weights of the config."""
        return reward.quality(
            classifier_prob,
            center_prob,
            entropy_drop,
            center_weight=self.config.center_weight,
            entropy_drop_weight=self.config.entropy_drop_weight,
        )

    def class_quantile(self, values: Tensor, level: float) -> Tensor:
        """The quantile of a sample's own pseudo-class, for each sample: (N_u,) to (N_u,)."""
        quantiles = torch.zeros_like(values)
        for label in self.pseudo_labels.unique():
            members = self.pseudo_labels == label
            quantiles[members] = values[members].quantile(level)
        return quantiles

    def best_of_each_class(self, scores: Tensor, count: int | None = None, share: float | None = None) -> Tensor:
        """Positions of the best by score within each pseudo-class, at most `count` or a share of it, rounded up."""
        chosen = []
        for label in self.pseudo_labels.unique():
            members = (self.pseudo_labels == label).nonzero().squeeze(1)
            most = count if count is not None else math.ceil((share or 1.0) * len(members))
            chosen.append(members[scores[members].argsort(descending=True, stable=True)[:most]])
        return torch.cat(chosen)

    def positives_at(self, indices: Tensor) -> Positives:
        """These samples of D_u as positives of this round, with their quality by the network of the round.

        Raises:
            DataError: If the indices are no positions in D_u.
        """
        check_positions(indices, len(self.pseudo_labels), "positives_at: indices")
        n = len(indices)
        return Positives(
            indices=indices,
            labels=self.pseudo_labels[indices],
            rounds=torch.full((n,), self.number),
            rewards=torch.full((n,), float("nan")),
            phi=self.phi[indices],
            classifier_prob=self.classifier_prob[indices],
            center_prob=self.center_prob[indices],
            entropy_drop=torch.zeros(n),
        )

    def _neighbor_prob(self) -> Tensor:
        assert self.neighbors is not None, "a round with center='neighbors' is built with its neighbours"
        certain = F.one_hot(self.data.target.labels.cpu(), self.n_classes).float()
        known = torch.cat([certain, self.unlabeled.probabilities])
        mean = self._of_pseudo_label(reward.neighbor_probabilities(known, self.neighbors))
        floor = self.config.neighbor_floor
        return (mean + floor) / (1 + floor)

    def _of_pseudo_label(self, probabilities: Tensor) -> Tensor:
        return probabilities.gather(1, self.pseudo_labels.unsqueeze(1)).squeeze(1)


def pseudo_label(
    trainer: Trainer,
    data: TrainingData,
    positives: Positives,
    number: int,
    config: RunConfig,
    neighbors: Tensor | None,
) -> Round:
    """Line 5: label D_u by F and C, and gather what selectors need."""
    chosen = config.selection
    if isinstance(chosen.selector, DQNConfig) and chosen.selector.episode.trial_layers == "head":
        trainer, data = on_embeddings(trainer, data, chosen.selector.episode, generator(config.seed, 11, number))
    unlabeled = view(trainer.method, data.unlabeled)
    labels = unlabeled.probabilities.argmax(dim=1)
    return Round(
        number=number,
        progress=number / max(1, chosen.rounds - 1),
        trainer=trainer,
        data=data,
        target=view(trainer.method, data.target.inputs),
        unlabeled=unlabeled,
        pseudo_labels=labels,
        positives=positives.relabeled(labels) if chosen.relabel_positives else positives,
        neighbors=neighbors,
        config=chosen.reward,
        rng=generator(config.seed, 5, number),
    )
