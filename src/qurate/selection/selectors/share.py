"""Selector 'share'."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from qurate.config import ShareConfig
from qurate.selection.positives import Positives
from qurate.selection.pseudo_labels import Round
from qurate.selection.selectors.base import NamedSelector


@dataclass(frozen=True)
class TopShareConfig(ShareConfig):
    """The share of D_u."""

    name: str = field(init=False, default="share")


class ShareSelector(NamedSelector):
    """The best by phi of all of D_u, whatever their class, a share that grows over the rounds (decision 50)."""

    Config = TopShareConfig

    def __init__(self, config: TopShareConfig) -> None:
        self.config = config

    def select(self, round: Round) -> Positives:
        """The top share of D_u."""
        count = math.ceil(self.config.share_at(round.progress) * len(round.phi))
        return round.positives_at(round.phi.argsort(descending=True, stable=True)[:count])
