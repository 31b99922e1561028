"""The losses of the paper, as pure functions of tensors.

Entropy (Eq. 2), target margin (Eq. 1), complete margin (Eq. 12).
"""

from __future__ import annotations

import math

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


# sqrt(1 - cos^2) has an infinite slope at cos = +-1; below this the sine is held constant.
SMALLEST_SINE_SQUARED = 1e-6


def margin_cosines(cosines: Tensor, labels: Tensor, margin: float, *, monotone: bool = True) -> Tensor:
    """Cosines with the angle to the true class widened by the margin.

    cos(theta_y + m) = cos(theta_y) cos(m) - sin(theta_y) sin(m) in the true class's column, the others as
    they are. That falls with theta only until theta = pi - m; beyond, `monotone` continues with
    cos(theta_y) - m sin(m) (decision 11 in docs/paper.md).

    Paper: the target term of Eq. (1).

    Args:
        cosines: cos(theta_j) of each sample to each class weight, (N, K).
        labels: True classes, (N,) int64; or the probability of each, (N, K), and each is widened in proportion.
        margin: m in radians, in [0, pi / 2]; beyond 2.33, where cos(m) + m sin(m) < 1, the continuation would jump up.
        monotone: Continue past pi - m so that a worse angle is never a better logit.

    Returns:
        (N, K), a new tensor.

    Example:
        >>> margin_cosines(torch.tensor([[1.0, 0.0]]), torch.tensor([0]), margin=0.0)
        tensor([[1., 0.]])
    """
    if margin == 0:
        return cosines.clone()
    if labels.ndim == 2:
        return torch.lerp(cosines, _widen(cosines, margin, monotone), labels)
    columns = labels.unsqueeze(1)
    return cosines.scatter(1, columns, _widen(cosines.gather(1, columns), margin, monotone))


def _widen(cosine: Tensor, margin: float, monotone: bool) -> Tensor:
    sine = (1 - cosine.square()).clamp_min(SMALLEST_SINE_SQUARED).sqrt()
    widened = cosine * math.cos(margin) - sine * math.sin(margin)
    if monotone:
        turned = cosine < math.cos(math.pi - margin)
        widened = torch.where(turned, cosine - margin * math.sin(margin), widened)
    return widened


def target_margin_loss(
    source_cosines: Tensor,
    source_labels: Tensor,
    target_cosines: Tensor,
    target_labels: Tensor,
    *,
    scale: float,
    margin: float,
    monotone: bool = True,
) -> Tensor:
    """Cosine cross-entropy on the source plus margin cross-entropy on the labelled target.

    L_tml = - 1/N_s sum_i log softmax(s cos(theta^s))_{y_i}
            - 1/N_t sum_i log softmax(s cos(theta^t + m [j = y_i]))_{y_i}

    Paper: Eq. (1).

    Args:
        source_cosines: (N_s, K).
        source_labels: (N_s,) int64; or the probability of each class, (N_s, K).
        target_cosines: (N_t, K).
        target_labels: (N_t,) int64.
        scale: s.
        margin: m in radians.
        monotone: See `margin_cosines`.

    Returns:
        A scalar.
    """
    widened = margin_cosines(target_cosines, target_labels, margin, monotone=monotone)
    source_term = F.cross_entropy(scale * source_cosines, source_labels)
    target_term = F.cross_entropy(scale * widened, target_labels)
    return source_term + target_term


def complete_margin_loss(
    cosines: Tensor, labels: Tensor, *, scale: float, margin: float, monotone: bool = True
) -> Tensor:
    """Margin cross-entropy on all labelled samples, source and target alike.

    L_cml = - 1/N_{s+t} sum_i log softmax(s cos(theta + m [j = y_i]))_{y_i}

    Paper: Eq. (12), whose minus sign is missing in print (decision 12).

    Args:
        cosines: Of source and labelled target together, (N, K).
        labels: (N,) int64; or the probability of each class, (N, K).
        scale: s.
        margin: m in radians.
        monotone: See `margin_cosines`.

    Returns:
        A scalar.
    """
    return F.cross_entropy(scale * margin_cosines(cosines, labels, margin, monotone=monotone), labels)
