"""Asker 'check'."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from qurate.asking.base import NamedAsker, percent
from qurate.asking.neighbors import NEIGHBORS, nearest
from qurate.asking.pool import Pool

MOST_SUSPECTS = 10_000
"""Of more trusted images than this, only those that the model is least sure of are looked at. Our choice."""


class CheckAsker(NamedAsker):
    """The trusted pseudo-labels that are most likely wrong, to be confirmed or corrected.

    With y(i) the pseudo-label of image i and N(i) its k nearest images, the score is

        p_i(y(i)) * mean_{j in N(i)} p_j(y(i))

    and the lowest is asked first. The model was trained on its positives, so it is sure of most; their neighbours are
    the better witnesses. Images without a trusted label are never asked about.
    """

    def ask(self, pool: Pool, count: int, seed: int) -> Tensor:
        """Nothing is random here."""
        if pool.trusted is None:
            return torch.empty(0, dtype=torch.int64)
        suspects = pool.open[pool.trusted[pool.open] >= 0]
        if len(suspects) > MOST_SUSPECTS:
            own = pool.probabilities[suspects, pool.trusted[suspects]]
            suspects = suspects[own.argsort(stable=True)[: max(MOST_SUSPECTS, count)]].sort().values
        order = label_support(pool, suspects, pool.trusted[suspects]).argsort(stable=True)
        return suspects[order[:count]]

    def explain(self, pool: Pool, asked: Tensor, classes: Sequence[str]) -> list[str]:
        """What the neighbours say."""
        if pool.trusted is None:
            return []
        labels = pool.trusted[asked]
        shares = neighbor_shares(pool, asked, labels).tolist()
        return [
            f"It was trusted as {classes[k]}, and the images most like it are {percent(share)} in favour of that."
            for k, share in zip(labels.tolist(), shares, strict=True)
        ]


def label_support(pool: Pool, rows: Tensor, labels: Tensor) -> Tensor:
    """How far the model and the neighbourhood of each image support its label, (M,) between 0 and 1.

    Args:
        pool: All images.
        rows: Positions of those in question, (M,).
        labels: Of each, (M,).
    """
    own = pool.probabilities[rows, labels]
    return own * neighbor_shares(pool, rows, labels)


def neighbor_shares(pool: Pool, rows: Tensor, labels: Tensor) -> Tensor:
    """Mean probability of each label among the nearest images, (M,)."""
    around = nearest(pool.features, rows, NEIGHBORS)
    return pool.probabilities[around, labels.unsqueeze(1)].mean(dim=1)
