"""A source without its images: how many of each class there were, their mean embedding, and how far they scatter."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

import torch
from torch import Tensor

from qurate.data.samples import Labeled

MOST_DRAWN = 50_000
"""Embeddings that are drawn at most: 0.25 GB, 1280 wide. Our choice."""
DRAW_STREAM = 31
"""The stream of random numbers that they are drawn from."""
_SLICE = 2**14
_LARGEST_COUNT = 10**9


@dataclass(frozen=True, eq=False)
class ClassStatistics:
    """Statistics of the embeddings of a source, from which embeddings like them can be drawn.

    Args:
        counts: Images of each class, (K,) int64; 0 for one that the source lacks.
        means: Their mean embedding, (K, width) float32; 0 where there are none.
        variance: Of each number about the mean of its class, over all images, (width,) float32.
    """

    counts: Tensor
    means: Tensor
    variance: Tensor

    @classmethod
    def empty(cls, n_classes: int, width: int) -> Self:
        """Those of no images, of the shapes that a file must hold."""
        counts = torch.zeros(n_classes, dtype=torch.int64)
        return cls(counts, torch.zeros(n_classes, width), torch.zeros(width))

    @property
    def tensors(self) -> dict[str, Tensor]:
        """By name, for a file."""
        return {"counts": self.counts, "means": self.means, "variance": self.variance}

    @property
    def problem(self) -> str:
        """Why nothing can be drawn from them; empty where it can."""
        if not bool((self.counts >= 0).logical_and(self.counts <= _LARGEST_COUNT).all()) or not bool(self.counts.any()):
            return f"a class of the source must have 0 to {_LARGEST_COUNT} images, and some class one or more"
        return "" if bool((self.variance >= 0).all()) else "a variance of the source is negative"

    @property
    def drawn(self) -> Tensor:
        """How many embeddings of each class are drawn, (K,) int64: as many as it had images, or one at least.

        In proportion fewer where there were more than `MOST_DRAWN` images.
        """
        share = min(1.0, MOST_DRAWN / max(1, int(self.counts.sum())))
        return (self.counts * share).long().clamp(min=1) * (self.counts > 0)

    def of(self, classes: Sequence[str], wanted: Sequence[str]) -> Self:
        """Those of some classes, by name and in their order; of a class that they lack there are no images.

        Args:
            classes: Names of theirs.
            wanted: Names of those to give.
        """
        found = self.empty(len(wanted), len(self.variance))
        for row, name in enumerate(wanted):
            if name in classes:
                found.counts[row] = self.counts[classes.index(name)]
                found.means[row] = self.means[classes.index(name)]
        return type(self)(found.counts, found.means, self.variance)

    def draw(self, rng: torch.Generator) -> Labeled:
        """Embeddings of a Gaussian around the mean of each class: x = mean_k + sqrt(variance) z, with z ~ N(0, 1)."""
        labels = torch.arange(len(self.counts)).repeat_interleave(self.drawn)
        noise = torch.randn(len(labels), len(self.variance), generator=rng)
        return Labeled(noise.mul_(self.variance.sqrt()).add_(self.means[labels]), labels)


def class_statistics(source: Labeled, n_classes: int) -> ClassStatistics | None:
    """Statistics of a source; None where it is image files, of which nothing is known.

        mean_k = sum_{i in k} w_i x_i / sum_{i in k} w_i
        variance = sum_i w_i (x_i - mean_{y_i})^2 / (N - K)

    with the weights w of the samples adding up to N, and all 1 where there are none, so that counts are those of the
    shares that a source has in training.

    Args:
        source: D_s, embeddings (N, width).
        n_classes: K; classes without images count neither in K nor in the sums.
    """
    inputs, labels = source.inputs, source.labels.cpu()
    if not isinstance(inputs, Tensor):
        return None
    weights = torch.ones(len(labels)) if source.weights is None else source.weights
    weights = weights.double().cpu()
    weights = weights * len(labels) / weights.sum()
    sizes = torch.zeros(n_classes, dtype=torch.float64).index_add_(0, labels, weights)
    sums = torch.zeros(n_classes, inputs.shape[1], dtype=torch.float64)
    for rows in torch.arange(len(labels)).split(_SLICE):
        sums.index_add_(0, labels[rows], inputs[rows].double().cpu() * weights[rows, None])
    is_there = sizes > 0
    means = sums / sizes.where(is_there, 1)[:, None]
    squares = torch.zeros(inputs.shape[1], dtype=torch.float64)
    for rows in torch.arange(len(labels)).split(_SLICE):
        squares += weights[rows] @ (inputs[rows].double().cpu() - means[labels[rows]]).square()
    variance = squares / max(1, len(labels) - int(is_there.sum()))
    counts = torch.where(is_there, sizes.round().long().clamp(min=1), 0)
    return ClassStatistics(counts, means.float(), variance.float())
