"""Asker 'clusters'."""

from __future__ import annotations

import warnings
from collections.abc import Sequence

import torch
from sklearn.cluster import KMeans
from sklearn.exceptions import ConvergenceWarning
from torch import Tensor

from qurate.asking.base import NamedAsker, percent
from qurate.asking.neighbors import main_directions
from qurate.asking.pool import Pool
from qurate.runtime.randomness import stream_seed

MOST_POINTS = 10_000
"""Of more open images than this, the most doubtful are put into groups. Our choice."""
_LEAST_WEIGHT = 1e-6  # so that certain predictions can be grouped too


class ClustersAsker(NamedAsker):
    """K-means weighted by doubt: as many groups as questions, and of each group the image nearest to its middle.

    The weight of an image is the entropy of its prediction, so groups gather where doubt is, and cover all of it. The
    group with most doubt, by the sum of its weights, is asked about first.
    """

    def ask(self, pool: Pool, count: int, seed: int) -> Tensor:
        """The seed decides where the groups begin."""
        order = pool.open[pool.doubt[pool.open].argsort(descending=True, stable=True)]
        if count == 0 or count >= len(order):
            return order[:count]
        points = order[: max(MOST_POINTS, count)].sort().values
        rows = main_directions(pool.features)[points].double()
        weights = pool.doubt[points].double() + _LEAST_WEIGHT
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ConvergenceWarning)  # fewer different images than groups
            groups = KMeans(count, n_init=1, max_iter=50, random_state=stream_seed(seed, 22) % 2**32)
            labels = torch.from_numpy(groups.fit(rows.numpy(), sample_weight=weights.numpy()).labels_).long()
        centers = torch.from_numpy(groups.cluster_centers_)
        away = (rows - centers[labels]).norm(dim=1)
        middles: dict[int, int] = {}
        for i in away.argsort(stable=True).tolist():
            middles.setdefault(int(labels[i]), int(points[i]))
        doubt = torch.zeros(count, dtype=torch.float64).index_add_(0, labels, weights)
        asked = [middles[group] for group in doubt.argsort(descending=True, stable=True).tolist() if group in middles]
        chosen = set(asked)
        asked += [i for i in order.tolist() if i not in chosen][: count - len(asked)]
        return torch.tensor(asked, dtype=torch.int64)

    def explain(self, pool: Pool, asked: Tensor, classes: Sequence[str]) -> list[str]:
        """The class in doubt."""
        sure, best = pool.probabilities[asked].max(dim=1)
        return [
            f"It stands in the middle of a group of doubtful images: {classes[k]} has {percent(p)}."
            for p, k in zip(sure.tolist(), best.tolist(), strict=True)
        ]
