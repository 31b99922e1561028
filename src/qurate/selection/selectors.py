"""One interface for selectors, and the simple rules; the agent is in `algorithm`."""

from __future__ import annotations

import math
from typing import Protocol

import torch
from torch import Tensor

from qurate.config import SelectionConfig
from qurate.selection.pseudo_labels import Positives, Round


class Selector(Protocol):
    """Chooses the positives of a round.

    A selector of your own is one small class:

        class FirstHundred:
            def select(self, round: Round) -> Positives:
                return round.positives_at(torch.arange(100))
    """

    def select(self, round: Round) -> Positives:
        """D_p for line 20: the whole set, not what is added to it."""
        ...


def share_now(config: SelectionConfig, progress: float) -> float:
    """Share of D_u to take, growing linearly over the rounds."""
    return config.share_start + (config.share_end - config.share_start) * progress


def harvest(round: Round, scores: Tensor, share: float) -> Positives:
    """D_p chosen anew from all of D_u by score: as many from each pseudo-class as balance allows (decision 24).

    Each class may give ceil(share * N_u / K) samples, so that no class outweighs another, and none from the
    worst (1 - share) / 2 of it by phi.

    Args:
        round: Pseudo-labels and their quality.
        scores: The higher the sooner chosen, (N_u,).
        share: Share of D_u wanted.
    """
    most = math.ceil(share * len(scores) / round.n_classes)
    good = round.phi >= round.class_quantile(round.phi, (1 - share) / 2)
    chosen = round.best_of_each_class(scores.masked_fill(~good, -math.inf), count=most)
    return round.positives_at(chosen[good[chosen]])


class NoneSelector:
    """Trusts nothing: the base model alone."""

    def __init__(self, config: SelectionConfig) -> None:
        pass

    def select(self, round: Round) -> Positives:
        """The empty set."""
        return Positives.none()


class ConfidenceSelector:
    """All pseudo-labels with probability above a threshold. Paper: TML_SPL, threshold 0.9."""

    def __init__(self, config: SelectionConfig) -> None:
        self.threshold = config.confidence

    def select(self, round: Round) -> Positives:
        """Where p_c > threshold."""
        return round.positives_at((round.classifier_prob > self.threshold).nonzero().squeeze(1))


class QualitySelector:
    """All pseudo-labels that would earn a positive reward: phi > tau, Eq. (4) and (8), without the entropy term."""

    def __init__(self, config: SelectionConfig) -> None:
        pass

    def select(self, round: Round) -> Positives:
        """Where phi > tau."""
        return round.positives_at((round.phi > round.threshold).nonzero().squeeze(1))


class BalancedSelector:
    """The best by phi within each pseudo-class, a share of the class that grows over the rounds."""

    def __init__(self, config: SelectionConfig) -> None:
        self.config = config

    def select(self, round: Round) -> Positives:
        """The top share of every class."""
        return round.positives_at(round.best_of_each_class(round.phi, share=share_now(self.config, round.progress)))


class RandomSelector:
    """Any pseudo-labels, as many as the balanced rule takes: what selection must beat."""

    def __init__(self, config: SelectionConfig) -> None:
        self.config = config

    def select(self, round: Round) -> Positives:
        """A random share of D_u."""
        n = len(round.pseudo_labels)
        count = math.ceil(share_now(self.config, round.progress) * n)
        return round.positives_at(torch.randperm(n, generator=round.rng)[:count])


class OracleSelector:
    """All pseudo-labels that are right. Not a method: it shows the room that is left.

    Args:
        labels: True labels of D_u, which only `qurate.evaluation` can open, (N_u,) int64.
    """

    def __init__(self, labels: Tensor) -> None:
        self.labels = labels

    def select(self, round: Round) -> Positives:
        """Where pseudo-label and truth agree."""
        return round.positives_at((round.pseudo_labels == self.labels).nonzero().squeeze(1))
