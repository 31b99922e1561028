"""Selector 'adaptive'."""

from __future__ import annotations

from dataclasses import dataclass, field

from qurate.config import AdaptiveShareConfig
from qurate.selection.balance import balance, best_within_room
from qurate.selection.positives import Positives
from qurate.selection.pseudo_labels import Round
from qurate.selection.selectors.base import NamedSelector


@dataclass(frozen=True)
class AdaptiveConfig(AdaptiveShareConfig):
    """The share of D_u, and how far to balance it."""

    name: str = field(init=False, default="adaptive")


class AdaptiveSelector(NamedSelector):
    """The best by phi - w * (median phi of the pseudo-class), a share of D_u that grows over the rounds (decision 51).

    w says how far to balance, and no class gives more than its room; see `qurate.selection.balance`. With w = 0 it is
    the selector 'share'.
    """

    Config = AdaptiveConfig

    def __init__(self, config: AdaptiveConfig) -> None:
        self.config = config

    def select(self, round: Round) -> Positives:
        """The top share of D_u, within the room of each class."""
        weight = balance(round, self.config)
        scores = round.phi - weight * round.class_quantile(round.phi, 0.5)
        return round.positives_at(best_within_room(round, scores, weight, self.config))
