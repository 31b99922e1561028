"""How good a pseudo-labelled sample is (Eq. 4-7) and what the agent gets for it (Eq. 8)."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

_SMALLEST_PROBABILITY = 1e-12


def class_sums(features: Tensor, labels: Tensor, n_classes: int) -> tuple[Tensor, Tensor]:
    """Sum of the features of each class, (K, d), and how many there are, (K,)."""
    sums = features.new_zeros(n_classes, features.shape[1]).index_add_(0, labels, features)
    counts = torch.bincount(labels, minlength=n_classes).to(features.dtype)
    return sums, counts


def class_means(features: Tensor, labels: Tensor, n_classes: int) -> Tensor:
    """z_j = mean of the features of class j; a class without samples has the zero vector (decision 16).

    Paper: Eq. (6), where the samples are those of D_t and D_p.

    Args:
        features: (N, d).
        labels: (N,) int64.
        n_classes: K.

    Returns:
        (K, d).
    """
    sums, counts = class_sums(features, labels, n_classes)
    return sums / counts.clamp_min(1).unsqueeze(1)


def center_probabilities(features: Tensor, centers: Tensor, scale: float) -> Tensor:
    """p_f(y = j | x) = softmax over the classes of s cos(F(x), z_j): (N, d), (K, d) to (N, K).

    Paper: Eq. (5).
    """
    return F.softmax(scale * F.normalize(features, dim=1) @ F.normalize(centers, dim=1).T, dim=1)


def leave_one_out_center_probabilities(
    features: Tensor, labels: Tensor, sums: Tensor, counts: Tensor, scale: float
) -> Tensor:
    """Eq. (5) for samples that are in their class's centre, with each taken out of it (decision 10).

    Args:
        features: Samples that take part in the sums, (N, d).
        labels: The class each takes part in, (N,) int64.
        sums: Sum of the features of each class, (K, d).
        counts: Samples in each class, (K,).
        scale: s.

    Returns:
        (N, K).
    """
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
    return probabilities[neighbors].mean(dim=1)


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


def reward(phi: float, threshold: float) -> float:
    """+1 if phi > tau, otherwise -1; phi = tau gives -1.

    Paper: Eq. (8).
    """
    return 1.0 if phi > threshold else -1.0
