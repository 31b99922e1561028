"""Selector 'quality'."""

from __future__ import annotations

from dataclasses import dataclass, field

from qurate.config import SelectorConfig
from qurate.selection.positives import Positives
from qurate.selection.pseudo_labels import Round
from qurate.selection.selectors.base import NamedSelector


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
