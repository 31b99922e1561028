"""Selectors: which pseudo-labels to trust. Each is one class with `select(round)`."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import ClassVar, NamedTuple, Protocol, Self

import torch
from torch import Tensor

from qurate.config import AdaptiveShareConfig, NoneConfig, RunConfig, SelectorConfig, ShareConfig
from qurate.networks.heads import Network
from qurate.registry import SELECTORS
from qurate.runtime.validation import Inside
from qurate.selection.callbacks import Callback
from qurate.selection.pseudo_labels import Positives, Round


def balance(round: Round, config: AdaptiveShareConfig) -> float:
    """How far to balance, from 1 where predicted classes are of equal size to 0 where they are long-tailed.

    d = sum over classes of |predicted share - 1/K|
    w = min(1, max(0, (imbalance_limit - d) / imbalance_width))
    """
    counts = torch.bincount(round.pseudo_labels, minlength=round.n_classes).double()
    distance = float((counts / counts.sum() - 1 / round.n_classes).abs().sum())
    return min(1.0, max(0.0, (config.imbalance_limit - distance) / config.imbalance_width))


def best_within_room(round: Round, scores: Tensor, weight: float, config: AdaptiveShareConfig) -> Tensor:
    """Positions of the best by score: the round's share of D_u, of which no class gives more than its room.

    The room of a class is share * N_u * (class_room * w / K + 1 - w), rounded up.

    Args:
        round: Pseudo-labels, and how far the run is.
        scores: The higher the sooner chosen, (N_u,).
        weight: w, see `balance`.
        config: Shares and room.
    """
    wanted = config.share_at(round.progress) * len(scores)
    room = math.ceil(wanted * (config.class_room * weight / round.n_classes + 1 - weight))
    fitting = round.best_of_each_class(scores, count=room).sort().values
    return fitting[scores[fitting].argsort(descending=True, stable=True)[: math.ceil(wanted)]]


class Selector(Protocol):
    """Chooses the positives of a round.

    A selector of your own is one small class, passed as `qurate.fit(split, config, selector=FirstHundred())`:

        class FirstHundred:
            def select(self, round: Round) -> Positives:
                return round.positives_at(torch.arange(100))
    """

    def select(self, round: Round) -> Positives:
        """D_p for line 20: the whole set, not what is added to it."""
        ...


class Sizes(NamedTuple):
    """What a selector may need to know of a problem before it begins: N_u, d and K, and how many answers reward it."""

    unlabeled: int
    features: int
    classes: int
    answers: int = 0


class NamedSelector:
    """Base of the selectors that have a name in `qurate.registry`; a subclass has a config of its own.

    Args:
        config: Its numbers, of the class `Config`.
    """

    Config: ClassVar[type[SelectorConfig]]
    config: SelectorConfig

    def __init__(self, config: SelectorConfig) -> None:
        self.config = config

    @classmethod
    def build(cls, config: RunConfig, sizes: Sizes, callbacks: Callback) -> Self:
        """The selector of a run; most need no more than their own numbers."""
        return cls(config.selection.selector)

    def select(self, round: Round) -> Positives:
        """D_p for line 20."""
        raise NotImplementedError(f"{type(self).__name__} must define select.")


def build_selector(
    config: RunConfig, network: Network, n_unlabeled: int, callbacks: Callback, *, answers: int = 0
) -> NamedSelector:
    """The selector that a config names; an agent's pool has room for the rewards of as many answers."""
    kind: type[NamedSelector] = SELECTORS.find(config.selection.selector.name).load()
    return kind.build(config, Sizes(n_unlabeled, network.n_features, network.n_classes, answers), callbacks)


class NoneSelector(NamedSelector):
    """Trusts nothing: the base model alone, without rounds."""

    Config = NoneConfig

    def select(self, round: Round) -> Positives:
        """The empty set."""
        return Positives.none()


@dataclass(frozen=True)
class ConfidenceConfig(SelectorConfig):
    """The threshold of SPL."""

    name: str = field(init=False, default="confidence")
    threshold: Inside = 0.9
    """A pseudo-label is taken where its probability is higher. Paper: 0.9."""


class ConfidenceSelector(NamedSelector):
    """All pseudo-labels with a probability above the threshold. Paper: TML_SPL."""

    Config = ConfidenceConfig
    config: ConfidenceConfig

    def select(self, round: Round) -> Positives:
        """Where p_c > threshold."""
        return round.positives_at((round.classifier_prob > self.config.threshold).nonzero().squeeze(1))


@dataclass(frozen=True)
class QualityConfig(SelectorConfig):
    """No numbers of its own: phi and tau are those of `RewardConfig`."""

    name: str = field(init=False, default="quality")


class QualitySelector(NamedSelector):
    """All pseudo-labels that would earn a positive reward: phi > tau, Eq. (4) and (8), without the entropy term."""

    Config = QualityConfig

    def select(self, round: Round) -> Positives:
        """Where phi > tau."""
        return round.positives_at((round.phi > round.threshold).nonzero().squeeze(1))


@dataclass(frozen=True)
class BalancedConfig(ShareConfig):
    """The share of each pseudo-class."""

    name: str = field(init=False, default="balanced")


class BalancedSelector(NamedSelector):
    """The best by phi within each pseudo-class, a share of the class that grows over the rounds."""

    Config = BalancedConfig
    config: BalancedConfig

    def select(self, round: Round) -> Positives:
        """The top share of every class."""
        return round.positives_at(round.best_of_each_class(round.phi, share=self.config.share_at(round.progress)))


@dataclass(frozen=True)
class TopShareConfig(ShareConfig):
    """The share of D_u."""

    name: str = field(init=False, default="share")


class ShareSelector(NamedSelector):
    """The best by phi of all of D_u, whatever their class, a share that grows over the rounds (decision 50)."""

    Config = TopShareConfig
    config: TopShareConfig

    def select(self, round: Round) -> Positives:
        """The top share of D_u."""
        count = math.ceil(self.config.share_at(round.progress) * len(round.phi))
        return round.positives_at(round.phi.argsort(descending=True, stable=True)[:count])


@dataclass(frozen=True)
class AdaptiveConfig(AdaptiveShareConfig):
    """The share of D_u, and how far to balance it."""

    name: str = field(init=False, default="adaptive")


class AdaptiveSelector(NamedSelector):
    """The best by phi - w * (median phi of the pseudo-class), a share of D_u that grows over the rounds (decision 51).

    w says how far to balance, and no class gives more than its room; see `balance` and `best_within_room`. With w = 0
    it is the selector 'share'.
    """

    Config = AdaptiveConfig
    config: AdaptiveConfig

    def select(self, round: Round) -> Positives:
        """The top share of D_u, within the room of each class."""
        weight = balance(round, self.config)
        scores = round.phi - weight * round.class_quantile(round.phi, 0.5)
        return round.positives_at(best_within_room(round, scores, weight, self.config))


@dataclass(frozen=True)
class RandomConfig(ShareConfig):
    """The share of D_u."""

    name: str = field(init=False, default="random")


class RandomSelector(NamedSelector):
    """Any pseudo-labels, as many as the balanced rule takes: what selection must beat."""

    Config = RandomConfig
    config: RandomConfig

    def select(self, round: Round) -> Positives:
        """A random share of D_u."""
        n = len(round.pseudo_labels)
        count = math.ceil(self.config.share_at(round.progress) * n)
        return round.positives_at(torch.randperm(n, generator=round.rng)[:count])


@dataclass(frozen=True)
class OracleConfig(SelectorConfig):
    """No numbers: it knows the truth."""

    name: str = field(init=False, default="oracle")


class OracleSelector:
    """All pseudo-labels that are right.

    Args:
        labels: True labels of D_u, which only `qurate.evaluation` can open, (N_u,) int64.
    """

    def __init__(self, labels: Tensor) -> None:
        self.labels = labels

    def select(self, round: Round) -> Positives:
        """Where pseudo-label and truth agree."""
        return round.positives_at((round.pseudo_labels == self.labels).nonzero().squeeze(1))
