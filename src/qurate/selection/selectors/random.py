"""Selector 'random'."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import torch

from qurate.config import ShareConfig
from qurate.selection.positives import Positives
from qurate.selection.pseudo_labels import Round
from qurate.selection.selectors.base import NamedSelector


@dataclass(frozen=True)
class RandomConfig(ShareConfig):
    """The share of D_u."""

    name: str = field(init=False, default="random")


class RandomSelector(NamedSelector):
    """Any pseudo-labels, as many as the balanced rule takes: what selection must beat."""

    Config = RandomConfig

    def __init__(self, config: RandomConfig) -> None:
        self.config = config

    def select(self, round: Round) -> Positives:
        """A random share of D_u."""
        n = len(round.pseudo_labels)
        count = math.ceil(self.config.share_at(round.progress) * n)
        return round.positives_at(torch.randperm(n, generator=round.rng)[:count])
