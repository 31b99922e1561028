"""How far to balance the classes of D_p: as far as the predicted ones are of equal size (decision 51)."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from qurate.config import AdaptiveShareConfig
from qurate.selection.pseudo_labels import Round


def balance(round: Round, config: AdaptiveShareConfig) -> float:
    """How far to balance, from 1 where predicted classes are of equal size to 0 where they are lopsided.

    d = sum over classes of |predicted share - 1/K|
    w = min(1, max(0, (lopsided_from - d) / lopsided_over))
    """
    counts = torch.bincount(round.pseudo_labels, minlength=round.n_classes).double()
    distance = float((counts / counts.sum() - 1 / round.n_classes).abs().sum())
    return min(1.0, max(0.0, (config.lopsided_from - distance) / config.lopsided_over))


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
