"""Which of the models of a run is its result: named rules, of which only 'oracle' sees test labels.

Loads no torch before a rule is applied: reports name the rules.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor

TEMPERATURE = 0.05
"""Of the softmax over neighbours in `soft_neighborhood_density`. Saito et al. (2021): 0.05."""
_ROWS = 1024  # of the N x N similarities at a time


def certainty(probabilities: Tensor) -> float:
    """Minus the mean entropy of the predictions: high when all are certain.

    - 1/N sum_i H(p_i) with H(p) = - sum_k p_k log p_k

    Args:
        probabilities: (N, K).
    """
    from qurate.losses import entropy

    return -float(entropy(probabilities.double()).mean())


def information(probabilities: Tensor) -> float:
    """Information that inputs give about classes: certain predictions, spread over all classes.

    H(1/N sum_i p_i) - 1/N sum_i H(p_i)

    Paper: Krause, Perona, Gomes (2010), the objective of information maximisation.

    Args:
        probabilities: (N, K).
    """
    from qurate.losses import entropy

    of_mean = entropy(probabilities.double().mean(dim=0, keepdim=True))
    return float(of_mean.mean() - entropy(probabilities.double()).mean())


def soft_neighborhood_density(probabilities: Tensor, temperature: float = TEMPERATURE) -> float:
    """How many neighbours a prediction has, softly counted: high when predictions form dense clusters.

    q_ij = softmax over j != i of <f_i, f_j> / temperature, with f_i = p_i / |p_i|; the mean over i of H(q_i)

    Paper: Saito et al., Tune it the Right Way: Unsupervised Validation of Domain Adaptation via Soft Neighborhood
    Density (2021).

    Args:
        probabilities: (N, K), N at least 2.
        temperature: Of the softmax.
    """
    import torch

    from qurate.losses import entropy

    directions = torch.nn.functional.normalize(probabilities.double(), dim=1)
    total = 0.0
    for start in range(0, len(directions), _ROWS):
        rows = directions[start : start + _ROWS]
        similarities = rows @ directions.T / temperature
        itself = torch.arange(start, start + len(rows), device=rows.device)
        similarities.scatter_(1, itself[:, None], -torch.inf)
        total += float(entropy(similarities.softmax(dim=1)).sum())
    return total / len(directions)


LABEL_FREE: Mapping[str, Callable[[Tensor], float]] = {
    "entropy": certainty,
    "snd": soft_neighborhood_density,
    "information_maximization": information,
}
"""Rules that score a model by its predictions on D_u alone; the highest score is chosen."""

RULES = ("last", "validation", *LABEL_FREE, "oracle")
"""All rules: the last model, accuracy on a validation list, the label-free scores, accuracy on the test labels."""


def choose_model(scores: Sequence[float]) -> int:
    """Position of the model with the highest score; the latest of equals, which trained longest."""
    best = max(scores)
    return max(i for i, score in enumerate(scores) if score == best)


def describe_rule(rule: str, protocol: str) -> str:
    """A rule in words, for the foot of a table.

    Args:
        rule: One of `RULES`.
        protocol: How the data were split; under 'mme' validation is no independent list.
    """
    inside = " (under protocol mme that list lies inside the unlabelled test list)" if protocol == "mme" else ""
    return {
        "last": "the last model",
        "validation": f"the model with the best accuracy on the validation list{inside}",
        "entropy": "the model with the lowest mean entropy on the unlabelled target, without labels",
        "snd": "the model with the highest soft neighbourhood density on the unlabelled target, without labels",
        "information_maximization": "the model with the highest information of its predictions on the unlabelled "
        "target, without labels",
        "oracle": "ORACLE: the model with the best accuracy on the test labels, which nobody has in practice",
    }[rule]
