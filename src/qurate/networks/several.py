"""Several backbones side by side: each sees the image in its own way, and their vectors are put after one another."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from qurate.data.images import Transform


def join_vectors(vectors: Sequence[Tensor]) -> Tensor:
    """One row of several, each scaled to the same length, so that none drowns the others.

    joined = sqrt(width / M) * [v_1 / ||v_1||, ..., v_M / ||v_M||], whose numbers are 1 in the mean square.

    Args:
        vectors: M times (N, width_m).

    Returns:
        (N, width), the sum of the widths wide.
    """
    scale = math.sqrt(sum(rows.shape[1] for rows in vectors) / len(vectors))
    return torch.cat([scale * F.normalize(rows, dim=1) for rows in vectors], dim=1)


class SideBySide(nn.Module):
    """Backbones side by side.

    Args:
        members: Each images (N, 3, crop, crop) to (N, width_m).
        widths: Length of the vectors of each.
        transforms: How images are prepared for each.
    """

    def __init__(self, members: Sequence[nn.Module], widths: Sequence[int], transforms: Sequence[Transform]) -> None:
        super().__init__()
        self.members = nn.ModuleList(members)
        self.widths = tuple(widths)
        self.transforms = tuple(transforms)

    def forward(self, *images: Tensor) -> Tensor:
        """The images as each member wants them to (N, width)."""
        return join_vectors([member(inputs) for member, inputs in zip(self.members, images, strict=True)])
