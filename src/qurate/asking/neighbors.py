"""Which images are alike: the nearest by cosine, in slices, so that N x N cosines never need to fit in memory."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

NEIGHBORS = 10
"""Images in a neighbourhood besides the one in its middle. Our choice."""
MOST_EXACT = 10_000
"""Of more images than this, features are first reduced to their main directions. Our choice."""
_DIRECTIONS = 128
_CELLS = 2**24  # cosines at a time: 64 MB


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
    count = min(count, len(features) - 1)
    found = [torch.empty(0, count, dtype=torch.int64)]
    for part in rows.split(max(1, _CELLS // len(features))):
        cosines = directions[part] @ directions.T
        cosines[torch.arange(len(part)), part] = -2.0
        found.append(cosines.topk(count, dim=1).indices)
    return torch.cat(found)


def main_directions(features: Tensor) -> Tensor:
    """Features of length 1; of very many, projected on the directions in which a sample of them is largest.

    Args:
        features: (N, d).

    Returns:
        (N, d) where N is at most `MOST_EXACT`, else (N, min(d, 128)).
    """
    unit = F.normalize(features.float(), dim=1)
    if len(unit) <= MOST_EXACT or unit.shape[1] <= _DIRECTIONS:
        return unit
    sample = unit[torch.linspace(0, len(unit) - 1, MOST_EXACT).long()]
    _, vectors = torch.linalg.eigh(sample.T @ sample)  # in rising order
    return F.normalize(unit @ vectors[:, -_DIRECTIONS:], dim=1)
