"""The entropy loss (Eq. 2)."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F


def sample_entropy(logits: Tensor) -> Tensor:
    """H_i = - sum_j p_ij log p_ij with p = softmax(logits): (N, K) to (N,).

    Computed from log-probabilities, so a probability of zero counts zero and has a finite gradient.
    """
    log_probabilities = F.log_softmax(logits, dim=1)
    return -(log_probabilities.exp() * log_probabilities).sum(dim=1)


def entropy(probabilities: Tensor) -> Tensor:
    """H_i = - sum_j p_ij log p_ij of given probabilities, where a zero counts zero: (N, K) to (N,)."""
    return -torch.xlogy(probabilities, probabilities).sum(dim=1)


def entropy_loss(logits: Tensor) -> Tensor:
    """Mean entropy of the predictions.

    L_ent = - 1/N_u sum_i sum_j p(y = j | x_i) log p(y = j | x_i)

    Paper: Eq. (2).

    Args:
        logits: (N_u, K).

    Returns:
        A scalar between 0 (all certain) and log K (all uniform).
    """
    return sample_entropy(logits).mean()
