"""Asker 'density'."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from qurate.asking.base import NamedAsker
from qurate.asking.neighbors import NEIGHBORS, nearest
from qurate.asking.pool import Pool
from qurate.losses.entropy import entropy

MOST_MIDDLES = 10_000
"""Of more open images than this, only the most doubtful are looked at. Our choice."""


class DensityAsker(NamedAsker):
    """The densest doubt: images in the middle of a neighbourhood that the model cannot tell.

    With S(i) the image i and its k nearest ones, H the entropy and p the predictions, the score is

        H(mean_{j in S(i)} p_j) * mean_{j in S(i)} H(p_j)

    so the neighbourhood must be undecided as a whole, and its members in doubt themselves. The highest score is asked
    first, then the next that is no neighbour of one asked: a label for one speaks for the others. Where all that is
    left are neighbours of images asked, those follow.
    """

    def ask(self, pool: Pool, count: int, seed: int) -> Tensor:
        """Nothing is random here."""
        middles = pool.open
        if len(middles) > MOST_MIDDLES:
            middles = middles[pool.doubt[middles].argsort(descending=True, stable=True)[:MOST_MIDDLES]].sort().values
        around = nearest(pool.features, middles, NEIGHBORS)
        order = density_scores(pool, middles, around).argsort(descending=True, stable=True)
        near: list[list[int]] = around.tolist()
        asked: list[int] = []
        passed: list[int] = []
        taken: set[int] = set()
        beside: set[int] = set()
        for row, i in zip(order.tolist(), middles[order].tolist(), strict=True):
            if len(asked) == count:
                break
            if i in beside or not taken.isdisjoint(near[row]):
                passed.append(i)
            else:
                asked.append(i)
                taken.add(i)
                beside.update(near[row])
        if len(asked) + len(passed) < min(count, len(pool.open)):  # more are wanted than were looked at
            known = {*asked, *passed}
            rest = pool.open[pool.doubt[pool.open].argsort(descending=True, stable=True)].tolist()
            passed += [i for i in rest if i not in known]
        return torch.tensor((asked + passed)[:count], dtype=torch.int64)

    def explain(self, pool: Pool, asked: Tensor, classes: Sequence[str]) -> list[str]:
        """Between which classes the neighbourhood wavers."""
        around = nearest(pool.features, asked, NEIGHBORS)
        means = _mean_predictions(pool, asked, around)
        likely = means.topk(min(3, len(classes)), dim=1)
        return [
            f"Of this image and the {around.shape[1]} most like it the model cannot tell whether they are "
            f"{_list([classes[k] for k, p in zip(labels, values, strict=True) if p >= values[0] / 5], classes)}."
            for values, labels in zip(likely.values.tolist(), likely.indices.tolist(), strict=True)
        ]


def density_scores(pool: Pool, middles: Tensor, around: Tensor) -> Tensor:
    """Doubt of neighbourhoods, (M,).

    Args:
        pool: All images.
        middles: Positions of those in the middle, (M,).
        around: Of their neighbours, (M, k).
    """
    members = torch.cat([middles.unsqueeze(1), around], dim=1)
    return entropy(_mean_predictions(pool, middles, around)) * pool.doubt[members].mean(dim=1)


def _mean_predictions(pool: Pool, middles: Tensor, around: Tensor) -> Tensor:
    total = pool.probabilities[middles].clone()
    for column in around.unbind(dim=1):  # (M, k, K) at once would be large
        total += pool.probabilities[column]
    return total / (1 + around.shape[1])


def _list(likely: list[str], classes: Sequence[str]) -> str:
    if len(likely) == 1:
        return f"{likely[0]} or one of the {len(classes) - 1} other classes"
    return f"{', '.join(likely[:-1])} or {likely[-1]}"
