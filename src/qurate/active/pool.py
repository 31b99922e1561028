"""What query strategies see: unlabelled images with the predictions of the model, and which of them are alike."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor
from torch.nn import functional as F

from qurate.errors import DataError
from qurate.losses import entropy
from qurate.neighbors import nearest_rows

NEIGHBORS = 10
"""Images in a neighbourhood besides the one in its middle. Our choice."""
MOST_IMAGES = 10_000
"""Of more images than this, features are reduced to their main directions, and only the most uncertain images are
compared with each other. Our choice."""
_DIRECTIONS = 128
_SLICE = 2**16


@dataclass(frozen=True, eq=False)
class Pool:
    """Unlabelled images and the predictions of the model for them.

    Args:
        features: Of N images, (N, d); near means alike.
        probabilities: Of K classes by the model, (N, K). Of an image that a person has labelled: 1 for its class.
        trusted: Pseudo-label of each image that the model was trained on, (N,) int64, -1 for the others; none unless
            given.
        closed: Images that nobody is to be asked about, such as those with an answer, (N,) bool; none unless given.
        baseline: Probabilities by plain training (S+T), (N, K); None where there is none.

    Example:
        >>> pool = Pool(torch.eye(3), torch.tensor([[0.9, 0.1], [0.5, 0.5], [0.6, 0.4]]))
        >>> pool.open.tolist(), pool.uncertainty.argmax().item()
        ([0, 1, 2], 1)
    """

    features: Tensor
    probabilities: Tensor
    trusted: Tensor | None = None
    closed: Tensor | None = None
    baseline: Tensor | None = None

    def __post_init__(self) -> None:
        for name in ("features", "probabilities", "baseline"):
            values = getattr(self, name)
            if name == "baseline" and values is None:
                continue
            if not isinstance(values, Tensor) or values.ndim != 2 or not values.is_floating_point():
                raise DataError(f"Pool: {name} must be a tensor of two dimensions of floats, got {_shape(values)}.")
            if not all(bool(part.isfinite().all()) for part in values.split(_SLICE)):
                raise DataError(f"Pool: {name} must be finite, got NaN or infinity in them.")
        n = len(self.features)
        if len(self.probabilities) != n or self.probabilities.shape[1] < 2:
            got = _shape(self.probabilities)
            raise DataError(f"Pool: probabilities must be ({n}, K) for {n} features and K > 1 classes, got {got}.")
        if self.baseline is not None and self.baseline.shape != self.probabilities.shape:
            raise DataError(f"Pool: baseline must be of the shape of probabilities, got {_shape(self.baseline)}.")
        for name, kind in (("trusted", torch.int64), ("closed", torch.bool)):
            values = getattr(self, name)
            if values is not None and (not isinstance(values, Tensor) or (values.shape, values.dtype) != ((n,), kind)):
                raise DataError(f"Pool: {name} must be a tensor ({n},) of {kind}, got {_shape(values)}.")

    def __len__(self) -> int:
        return len(self.features)

    @cached_property
    def open(self) -> Tensor:
        """Positions of the images that may be asked about, in order."""
        return torch.arange(len(self)) if self.closed is None else (~self.closed).nonzero().squeeze(1)

    @cached_property
    def uncertainty(self) -> Tensor:
        """Entropy of each prediction, (N,): 0 for a certain one, log K for a uniform one."""
        return entropy(self.probabilities)

    def first(self, count: int) -> Pool:
        """The pool of the first images alone."""
        others = (self.trusted, self.closed, self.baseline)
        rest = (None if values is None else values[:count] for values in others)
        return Pool(self.features[:count], self.probabilities[:count], *rest)

    def most_uncertain(self) -> Tensor:
        """Positions of the open images, the most uncertain first."""
        return self.open[self.uncertainty[self.open].argsort(descending=True, stable=True)]


def _shape(values: object) -> str:
    if isinstance(values, Tensor):
        return f"a tensor {tuple(values.shape)} of {values.dtype}"
    return type(values).__name__


@torch.no_grad()
def nearest(features: Tensor, rows: Tensor, count: int) -> Tensor:
    """The images most like each of some images, itself not among them, the nearest first.

    Args:
        features: (N, d).
        rows: Positions of those in question, (M,) int64.
        count: How many for each; N - 1 at most.

    Returns:
        Positions, (M, count) int64.
    """
    directions = main_directions(features)
    return nearest_rows(directions[rows], directions, count, rows)


def main_directions(features: Tensor) -> Tensor:
    """Features of length 1; of very many, projected on the directions in which a sample of them is largest.

    Args:
        features: (N, d).

    Returns:
        (N, d) where N is at most `MOST_IMAGES`, else (N, min(d, 128)).
    """
    if len(features) <= MOST_IMAGES or features.shape[1] <= _DIRECTIONS:
        return F.normalize(features.float(), dim=1)
    sample = F.normalize(features[torch.linspace(0, len(features) - 1, MOST_IMAGES).long()].float(), dim=1)
    _, vectors = torch.linalg.eigh(sample.T @ sample)  # in rising order
    parts = (F.normalize(part.float(), dim=1) @ vectors[:, -_DIRECTIONS:] for part in features.split(_SLICE))
    return F.normalize(torch.cat(list(parts)), dim=1)
