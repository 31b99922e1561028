"""Selector 'adaptive'."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import torch

from qurate.config import ShareConfig
from qurate.runtime.checked import Rate
from qurate.selection.positives import Positives
from qurate.selection.pseudo_labels import Round
from qurate.selection.selectors.base import NamedSelector


@dataclass(frozen=True)
class AdaptiveConfig(ShareConfig):
    """The share of D_u, and how far to balance it."""

    name: str = field(init=False, default="adaptive")
    lopsided_from: Rate = 0.6
    """From this distance d between predicted shares and equal ones on, nothing is balanced. Our choice."""
    lopsided_over: Rate = 0.35
    """How far d must fall below that until everything is balanced. Our choice."""
    class_room: Rate = 1.15
    """Where all is balanced, a class gives at most this many times an equal part. Our choice."""


class AdaptiveSelector(NamedSelector):
    """A share of D_u, balanced as far as the predicted classes are of equal size (decision 51).

    d = sum over classes of |predicted share - 1/K|
    w = min(1, max(0, (lopsided_from - d) / lopsided_over))

    The best by phi - w * (median phi of the pseudo-class) are taken, a share of all of D_u that grows over the rounds.
    No class gives more than share * N_u * (class_room * w / K + 1 - w), rounded up. With w = 0 it is the selector
    'share'.
    """

    Config = AdaptiveConfig

    def __init__(self, config: AdaptiveConfig) -> None:
        self.config = config

    def balance(self, round: Round) -> float:
        """w: 1 where predicted classes are of equal size, 0 where they are lopsided."""
        counts = torch.bincount(round.pseudo_labels, minlength=round.n_classes).double()
        distance = float((counts / counts.sum() - 1 / round.n_classes).abs().sum())
        return min(1.0, max(0.0, (self.config.lopsided_from - distance) / self.config.lopsided_over))

    def select(self, round: Round) -> Positives:
        """The top share of D_u, within the room of each class."""
        w, wanted = self.balance(round), self.config.share_at(round.progress) * len(round.phi)
        scores = round.phi - w * round.class_quantile(round.phi, 0.5)
        room = math.ceil(wanted * (self.config.class_room * w / round.n_classes + 1 - w))
        fitting = round.best_of_each_class(scores, count=room).sort().values
        best = scores[fitting].argsort(descending=True, stable=True)[: math.ceil(wanted)]
        return round.positives_at(fitting[best])
