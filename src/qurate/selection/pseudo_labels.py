"""Line 5: pseudo-labels of D_u, everything needed to judge them, and the ones that are trusted (D_p)."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property, partial

import pandas as pd
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from qurate.config import DQNConfig, EpisodeConfig, RewardConfig, RunConfig
from qurate.data.batches import TrainingData
from qurate.data.samples import Inputs, Labeled, check_positions, take
from qurate.distributed import ProcessGroup
from qurate.losses import entropy
from qurate.neighbors import nearest_rows
from qurate.networks.heads import Network
from qurate.networks.inference import backbone_output, infer
from qurate.runtime.compute import at_least_float32
from qurate.runtime.randomness import generator
from qurate.selection import reward
from qurate.selection.reward import ClassSums
from qurate.selection.state import View
from qurate.training import Trainer


@dataclass(frozen=True, eq=False)
class Positives:
    """D_p: samples of D_u with trusted pseudo-labels, and why each was trusted.

    Args:
        indices: Positions in D_u, (N_p,) int64.
        labels: Pseudo-labels, (N_p,) int64.
        rounds: The round each came in, (N_p,) int64.
        rewards: +1 or -1 where an agent was rewarded, else NaN, (N_p,).
        phi: Quality, Eq. (4), (N_p,).
        classifier_prob: p_c, (N_p,).
        center_prob: p_f, (N_p,).
        entropy_drop: Delta_e, 0 where it was not measured, (N_p,).
    """

    indices: Tensor
    labels: Tensor
    rounds: Tensor
    rewards: Tensor
    phi: Tensor
    classifier_prob: Tensor
    center_prob: Tensor
    entropy_drop: Tensor

    @classmethod
    def none(cls) -> Positives:
        """The empty set, line 2."""
        return cls(*[torch.empty(0, dtype=torch.int64)] * 3, *[torch.empty(0)] * 5)

    def __len__(self) -> int:
        return len(self.indices)

    def joined_with(self, other: Positives) -> Positives:
        """These, then the other's."""
        columns = zip(vars(self).values(), vars(other).values(), strict=True)
        return Positives(*(torch.cat(pair) for pair in columns))

    def first(self) -> dict[str, float]:
        """The first positive as plain numbers, by the columns of `table`."""
        return {column: values[0].item() for column, values in self._columns().items()}

    def take(self, chosen: Tensor) -> Positives:
        """The positives at these positions, or where this mask is true."""
        return Positives(*(values[chosen] for values in vars(self).values()))

    def among(self, kept: Tensor) -> Positives:
        """Those that are at some positions of D_u, as positions among these; `kept` is sorted, (N,) int64."""
        places = torch.searchsorted(kept, self.indices).clamp(max=max(0, len(kept) - 1))
        there = kept[places] == self.indices
        return replace(self, indices=places).take(there)

    def remembering(self, earlier: Positives) -> Positives:
        """These positives with the round they first came in, and the reward and entropy drop they were given then.

        Args:
            earlier: Earlier positives; those that are here too, under the same label, are remembered.
        """
        places = {pair: i for i, pair in enumerate(zip(earlier.indices.tolist(), earlier.labels.tolist(), strict=True))}
        rounds, rewards, drops = self.rounds.clone(), self.rewards.clone(), self.entropy_drop.clone()
        for i, pair in enumerate(zip(self.indices.tolist(), self.labels.tolist(), strict=True)):
            before = places.get(pair)
            if before is None:
                continue
            rounds[i] = min(rounds[i], earlier.rounds[before])
            if rewards[i].isnan():
                rewards[i], drops[i] = earlier.rewards[before], earlier.entropy_drop[before]
        return replace(self, rounds=rounds, rewards=rewards, entropy_drop=drops)

    def relabeled(self, pseudo_labels: Tensor) -> Positives:
        """The same samples under the current pseudo-labels of D_u."""
        return replace(self, labels=pseudo_labels[self.indices])

    def same_as(self, other: Positives) -> bool:
        """Whether both hold the same samples under the same labels."""
        return self.pairs() == other.pairs()

    def pairs(self) -> set[tuple[int, int]]:
        """The set of (position in D_u, label)."""
        return set(zip(self.indices.tolist(), self.labels.tolist(), strict=True))

    def table(self, classes: tuple[str, ...]) -> pd.DataFrame:
        """One row per positive, as it is saved beside the model."""
        frame = pd.DataFrame({column: values.tolist() for column, values in self._columns().items()})
        frame["label"] = [classes[label] for label in self.labels.tolist()]
        return frame

    def _columns(self) -> dict[str, Tensor]:
        names = {"indices": "sample", "labels": "label", "rounds": "round", "rewards": "reward"}
        return {names.get(name, name): values for name, values in vars(self).items()}


def view(network: Network, inputs: Inputs, out: Tensor | None = None, *, group: ProcessGroup | None = None) -> View:
    """F(x) and C(x) of all inputs, in evaluation mode, on the CPU.

    Args:
        network: F and C.
        inputs: N samples.
        out: Rows (N, d + K) of an earlier view to write into, where a process computes alone; new ones unless given.
        group: Processes that compute a share each; all of them call this.
    """

    def compute(batch: Tensor) -> Tensor:
        features = network.features(batch)
        return torch.cat([features, F.softmax(network.classifier(features), dim=1)], dim=1)

    def share(part: Inputs) -> Tensor:
        rows = torch.empty(len(part), network.n_features + network.n_classes) if out is None else out
        return infer(network, part, compute, threads=int(isinstance(part, Tensor)), out=rows)

    return View(_share(share, inputs, group), network.n_features)


def _share(compute: Callable[[Inputs], Tensor], inputs: Inputs, group: ProcessGroup | None) -> Tensor:
    return compute(inputs) if group is None else group.in_shares(compute, inputs)


def find_neighbors(network: Network, data: TrainingData, count: int, *, group: ProcessGroup | None = None) -> Tensor:
    """The nearest target samples of each sample of D_u, by cosine of the backbone's output, itself not among them.

    Args:
        network: Has the backbone.
        data: D_t and D_u.
        count: How many.
        group: See `view`.

    Returns:
        Positions in D_t followed by D_u, (N_u, count) int64.
    """
    is_half = isinstance(data.unlabeled, Tensor) and data.unlabeled.dtype == torch.float16

    def unit(batch: Tensor) -> Tensor:
        rows = F.normalize(at_least_float32(network.backbone(batch)).float(), dim=1)
        return rows.half() if is_half else rows  # they are as large as D_u

    known = _share(partial(infer, network, compute=unit), data.target.inputs, group)
    start = len(known)
    if group is None:
        vectors = known.new_empty(start + len(data.unlabeled), known.shape[1])
        vectors[:start] = known
        infer(network, data.unlabeled, unit, out=vectors[start:])
    else:
        vectors = torch.cat([known, _share(partial(infer, network, compute=unit), data.unlabeled, group)])
    return nearest_rows(vectors[start:], vectors, count, torch.arange(start, len(vectors)))


def on_embeddings(
    trainer: Trainer, data: TrainingData, config: EpisodeConfig, rng: torch.Generator
) -> tuple[Trainer, TrainingData]:
    """F and C of a round without their backbone, and the data as that backbone embeds it now (decision 27).

    Where the inputs are embeddings already, both as they are. Of D_s no more is embedded than the actions of a round
    can draw; whole epochs take all of it.

    Args:
        trainer: F and C of the round; not changed.
        data: D_s, D_t, D_u as the backbone takes them.
        config: How many actions, of how many steps.
        rng: Chooses the part of D_s.

    Returns:
        A trainer that has not stepped yet, at the same place of the schedule, and the embedded data.
    """
    method, source, training = trainer.method, data.source, trainer.config
    if not any(True for _ in method.network.backbone.parameters()):
        return trainer, data
    most = config.actions * config.trial_steps * training.batch_source
    if 0 < most < len(source):
        chosen = torch.randperm(len(source), generator=rng)[:most]
        weights = None if source.weights is None else source.weights[chosen]
        source = Labeled(take(source.inputs, chosen), source.labels[chosen], weights)

    def embed(inputs: Inputs) -> Tensor:
        threads = trainer.execution.threads or int(isinstance(inputs, Tensor))
        compute = partial(backbone_output, method.network, workers=trainer.execution.workers, threads=threads)
        return _share(compute, inputs, trainer.group)

    embedded = TrainingData(
        replace(source, inputs=embed(source.inputs)),
        Labeled(embed(data.target.inputs), data.target.labels),
        embed(data.unlabeled),
    )
    head = copy.deepcopy(method, {id(method.network.backbone): nn.Identity()})
    head.network.transform = None
    at, of = trainer.step, trainer.total_steps
    return Trainer(head, training, trainer.fabric, trainer.execution, step=at, total_steps=of), embedded


@dataclass(frozen=True, eq=False)
class Round:
    """What a selector sees in one round: pseudo-labels of D_u and everything needed to judge them.

    Args:
        number: 0, 1, ...
        progress: 0 in the first round, 1 in the last of the budget.
        trainer: F and C of the round.
        data: D_s, D_t, D_u without positives.
        target: The network's view of D_t.
        unlabeled: Its view of D_u; C(x) is the labeler's (decision 57).
        entropy: Entropy of the network's own prediction of each sample of D_u, (N_u,).
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
    entropy: Tensor
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
            assert self.neighbors is not None, "a round with center='neighbors' is built with its neighbours"
            certain = F.one_hot(self.data.target.labels.cpu(), self.n_classes).float()
            known = torch.cat([certain, self.unlabeled.probabilities])
            mean = self._of_pseudo_label(reward.neighbor_probabilities(known, self.neighbors))
            floor = self.config.neighbor_floor
            return (mean + floor) / (1 + floor)
        classes = self.labeled_sums.features(self.unlabeled.d)
        probabilities = reward.center_probabilities(self.unlabeled.features, classes.means(), self.scale)
        if self.config.leave_one_out_centers and len(self.positives):
            inside = self.positives.indices
            probabilities[inside] = reward.leave_one_out_center_probabilities(
                self.unlabeled.features[inside], self.positives.labels, classes, self.scale
            )
        return self._of_pseudo_label(probabilities)

    @property
    def center_weight(self) -> float:
        """Weight beta of log p_f; less where the neighbours, who make p_f, are often of other classes (decision 58)."""
        return self.config.center_weight * self.neighbor_trust

    @cached_property
    def neighbor_trust(self) -> float:
        """How far p_f is believed: 1 where it is not made of neighbours, or whatever these are (decision 58)."""
        config = self.config
        if not config.judges_neighbors:
            return 1.0
        assert self.neighbors is not None, "a round with center='neighbors' is built with its neighbours"
        everyone = torch.cat([self.data.target.labels.cpu(), self.pseudo_labels])
        agreement = reward.assortativity(self.pseudo_labels, self.neighbors, everyone, self.n_classes)
        low, high = config.assortativity_low, config.assortativity_high
        return min(1.0, max(0.0, (agreement - low) / (high - low)))

    @cached_property
    def phi(self) -> Tensor:
        """Quality of each pseudo-label in D_u with no drop in entropy, Eq. (4), (N_u,)."""
        return self.quality(self.classifier_prob, self.center_prob, 0.0)

    @cached_property
    def threshold(self) -> Tensor:
        """What phi must exceed, (N_u,)."""
        if self.config.threshold == "fixed":
            return torch.full_like(self.phi, (1 + self.center_weight) * math.log(self.config.threshold_prob))
        return self.class_quantile(self.phi, 0.5)

    def quality(self, classifier_prob: Tensor, center_prob: Tensor, entropy_drop: float) -> Tensor:
        """Eq. (4) with the weights of the config."""
        return reward.quality(
            classifier_prob,
            center_prob,
            entropy_drop,
            center_weight=self.center_weight,
            entropy_drop_weight=self.config.entropy_drop_weight,
        )

    def class_quantile(self, values: Tensor, level: float) -> Tensor:
        """The quantile of a sample's own pseudo-class, for each sample: (N_u,) to (N_u,)."""
        quantiles = torch.zeros_like(values)
        for label in self.pseudo_labels.unique():
            members = self.pseudo_labels == label
            quantiles[members] = values[members].quantile(level)
        return quantiles

    def best_of_each_class(self, scores: Tensor, count: int | None = None, share: float = 1.0) -> Tensor:
        """Positions of the best by score within each pseudo-class, at most `count`, or else a share, rounded up."""
        chosen = []
        for label in self.pseudo_labels.unique():
            members = (self.pseudo_labels == label).nonzero().squeeze(1)
            most = count if count is not None else math.ceil(share * len(members))
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

    def _of_pseudo_label(self, probabilities: Tensor) -> Tensor:
        return probabilities.gather(1, self.pseudo_labels.unsqueeze(1)).squeeze(1)


def pseudo_label(
    trainer: Trainer,
    data: TrainingData,
    positives: Positives,
    number: int,
    config: RunConfig,
    neighbors: Tensor | None,
    baseline: Tensor | None = None,
) -> Round:
    """Line 5: label D_u by F and C, and gather what selectors need.

    Args:
        trainer: F and C.
        data: D_s, D_t, D_u.
        positives: D_p so far.
        number: Of the round.
        config: The run.
        neighbors: See `find_neighbors`; None unless the reward asks for them.
        baseline: Log-probabilities of D_u by S+T, (N_u, K), if they are at hand; for labeler 'combined'.
    """
    chosen = config.selection
    if isinstance(chosen.selector, DQNConfig) and chosen.selector.episode.trial_layers == "head":
        trainer, data = on_embeddings(trainer, data, chosen.selector.episode, generator(config.seed, 11, number))
    look = partial(view, trainer.method.network, group=trainer.group)
    unlabeled = look(data.unlabeled)
    uncertainty = entropy(unlabeled.probabilities)
    if chosen.labeler == "combined":
        combined = unlabeled.probabilities
        if baseline is not None:
            combined = reward.product_of_experts(combined, baseline)
        combined = reward.align_distribution(combined)
        unlabeled.probabilities.copy_(combined)
    labels = unlabeled.probabilities.argmax(dim=1)
    return Round(
        number=number,
        progress=number / max(1, chosen.rounds - 1),
        trainer=trainer,
        data=data,
        target=look(data.target.inputs),
        unlabeled=unlabeled,
        entropy=uncertainty,
        pseudo_labels=labels,
        positives=positives.relabeled(labels) if chosen.relabel_positives else positives,
        neighbors=neighbors,
        config=chosen.reward,
        rng=generator(config.seed, 5, number),
    )
