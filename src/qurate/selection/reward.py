"""How good a pseudo-labelled sample is (Eq. 4-7) and what the agent gets for it (Eq. 8)."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

_SMALLEST_PROBABILITY = 1e-12
_SLICE = 2**16  # rows whose neighbours are gathered at a time
_SMALLEST_SHARE = 1e-3  # of an equal share: what a class that is hardly ever predicted is divided by


class ClassSums(NamedTuple):
    """The rows of each class, added up: one row more or less is one addition, not a pass over all of them.

    Args:
        sums: Sum of the rows of each class, (K, w).
        counts: How many there are, (K,).
    """

    sums: Tensor
    counts: Tensor

    @classmethod
    def of(cls, rows: Tensor, labels: Tensor, n_classes: int) -> ClassSums:
        """The sums of rows (N, w) by their labels (N,) int64."""
        return cls(rows.new_zeros(n_classes, rows.shape[1]), rows.new_zeros(n_classes)).plus(rows, labels)

    def plus(self, rows: Tensor, labels: Tensor, times: float = 1.0) -> ClassSums:
        """With these rows too, or without them if `times` is -1."""
        counted = torch.full_like(labels, times, dtype=self.counts.dtype)
        return ClassSums(self.sums.index_add(0, labels, rows, alpha=times), self.counts.index_add(0, labels, counted))

    def means(self) -> Tensor:
        """z_j = mean of the rows of class j, (K, w); a class without any has the zero vector (decision 16).

        Paper: Eq. (6), where the samples are those of D_t and D_p.
        """
        return self.sums / self.counts.clamp_min(1).unsqueeze(1)

    def features(self, d: int) -> ClassSums:
        """The same for the first d numbers of each row."""
        return ClassSums(self.sums[:, :d], self.counts)


def center_probabilities(features: Tensor, centers: Tensor, scale: float) -> Tensor:
    """p_f(y = j | x) = softmax over the classes of s cos(F(x), z_j): (N, d), (K, d) to (N, K).

    Paper: Eq. (5).
    """
    return F.softmax(scale * F.normalize(features, dim=1) @ F.normalize(centers, dim=1).T, dim=1)


def leave_one_out_center_probabilities(features: Tensor, labels: Tensor, classes: ClassSums, scale: float) -> Tensor:
    """Eq. (5) for samples that are in their class's centre, with each taken out of it (decision 10).

    Args:
        features: Samples that take part in the sums, (N, d).
        labels: The class each takes part in, (N,) int64.
        classes: Sums of the features of each class, (K, d).
        scale: s.

    Returns:
        (N, K).
    """
    sums, counts = classes
    directions = F.normalize(features, dim=1)
    cosines = directions @ F.normalize(sums, dim=1).T
    others = F.normalize(sums[labels] - features, dim=1)
    own = torch.where(counts[labels] > 1, (directions * others).sum(dim=1), cosines.new_zeros(len(labels)))
    return F.softmax(scale * cosines.scatter(1, labels.unsqueeze(1), own.unsqueeze(1)), dim=1)


def neighbor_probabilities(probabilities: Tensor, neighbors: Tensor) -> Tensor:
    """Mean prediction of each sample's nearest target samples, itself not among them (decision 22).

    Args:
        probabilities: Of all target samples that can be a neighbour, labelled ones one-hot, (M, K).
        neighbors: Positions of each sample's neighbours in them, (N, k) int64.

    Returns:
        (N, K).
    """
    return torch.cat([probabilities[part].mean(dim=1) for part in neighbors.split(_SLICE)])


def assortativity(labels: Tensor, neighbors: Tensor, neighbor_labels: Tensor, n_classes: int) -> float:
    """How far neighbours have the same label beyond chance: 1 where all do, 0 where chance explains it.

    r = (e - c) / (1 - c), e the share of neighbours with their sample's label, c = sum over classes of (share among
    samples) (share among neighbours). Newman, "Mixing patterns in networks", 2003, Eq. (2).

    Args:
        labels: Pseudo-labels of the samples, (N,) int64.
        neighbors: Positions of each sample's neighbours in `neighbor_labels`, (N, k) int64.
        neighbor_labels: Labels of all that can be a neighbour, (M,) int64.
        n_classes: K.
    """
    of_neighbors = neighbor_labels[neighbors]
    equal = float((of_neighbors == labels.unsqueeze(1)).double().mean())
    shares = [
        torch.bincount(each.flatten(), minlength=n_classes).double() / each.numel() for each in (labels, of_neighbors)
    ]
    by_chance = float(shares[0] @ shares[1])
    return 1.0 if by_chance >= 1 else (equal - by_chance) / (1 - by_chance)


def product_of_experts(probabilities: Tensor, other: Tensor) -> Tensor:
    """P q / sum over classes of p q, (N, K). Hinton, "Products of experts", 1999.

    Args:
        probabilities: p, (N, K).
        other: log q, (N, K).
    """
    return F.softmax(probabilities.clamp_min(_SMALLEST_PROBABILITY).log() + other, dim=1)


def align_distribution(probabilities: Tensor) -> Tensor:
    """Predictions of D_u divided by their mean over D_u, and by their sum, (N, K) to (N, K) (decision 57).

    What is nearly as probable elsewhere leaves a class that is predicted too often: distribution alignment with equal
    shares, Berthelot et al., "ReMixMatch", 2020.
    """
    aligned = probabilities / probabilities.mean(dim=0).clamp_min(_SMALLEST_SHARE / probabilities.shape[1])
    return aligned / aligned.sum(dim=1, keepdim=True)


def entropy_drop(before: float, after: float) -> float:
    """Delta_e = H - H': how far an action lowers the mean entropy of the trial network's predictions on D_u.

    Paper: Eq. (7).

    Args:
        before: Mean entropy on D_u of the trial network before the action.
        after: The same after it.
    """
    return before - after


def quality(
    classifier_prob: Tensor,
    center_prob: Tensor,
    entropy_drop: Tensor | float,
    *,
    center_weight: float,
    entropy_drop_weight: float,
) -> Tensor:
    """The quality phi = log p_c + beta log p_f + lambda Delta_e.

    Paper: Eq. (4).

    Args:
        classifier_prob: p_c of the pseudo-label, (N,).
        center_prob: p_f of the pseudo-label, (N,).
        entropy_drop: Delta_e = H - H', Eq. (7); a number or (N,).
        center_weight: beta.
        entropy_drop_weight: lambda.

    Returns:
        (N,).
    """
    certain = classifier_prob.clamp_min(_SMALLEST_PROBABILITY).log()
    central = center_prob.clamp_min(_SMALLEST_PROBABILITY).log()
    return certain + center_weight * central + entropy_drop_weight * entropy_drop


def true_reward(pseudo_label: int, label: int) -> float:
    """+1 if a person gave the same label, otherwise -1: Eq. (8) where the truth is known (decision 52)."""
    return 1.0 if pseudo_label == label else -1.0


def reward(phi: float, threshold: float) -> float:
    """+1 if phi > tau, otherwise -1; phi = tau gives -1.

    Paper: Eq. (8).
    """
    return 1.0 if phi > threshold else -1.0
