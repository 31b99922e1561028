"""Selector 'balanced'."""

from __future__ import annotations

from dataclasses import dataclass, field

from qurate.config import ShareConfig
from qurate.selection.positives import Positives
from qurate.selection.pseudo_labels import Round
from qurate.selection.selectors.base import NamedSelector


@dataclass(frozen=True)
class BalancedConfig(ShareConfig):
    """The share of each pseudo-class."""

    name: str = field(init=False, default="balanced")


class BalancedSelector(NamedSelector):
    """The best by phi within each pseudo-class, a share of the class that grows over the rounds."""

    Config = BalancedConfig

    def __init__(self, config: BalancedConfig) -> None:
        self.config = config

    def select(self, round: Round) -> Positives:
        """The top share of every class."""
        return round.positives_at(round.best_of_each_class(round.phi, share=self.config.share_at(round.progress)))
