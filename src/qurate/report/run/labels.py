"""Names on a map: which colours to give, and where to write so that names do not cover each other.

matplotlib does neither.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

Points = NDArray[np.float64]

_ROUNDS = 300
_MARGIN = 4.0
_TOUCH = 1.0


def spread_colors(maps: Sequence[Points], n_colors: int) -> list[int]:
    """A colour for each class such that classes of one colour lie far apart, in every map.

    Greedy: each class takes a colour not used yet, else the one whose nearest user is farthest.

    Args:
        maps: Positions of the same classes, each (K, 2).
        n_colors: How many colours there are.
    """
    distances = np.min([np.linalg.norm(places[:, None] - places, axis=2) for places in maps], axis=0)
    colors: list[int] = []
    for i, row in enumerate(distances):
        users = [[row[j] for j in range(i) if colors[j] == color] for color in range(n_colors)]
        colors.append(int(np.argmax([min(found, default=np.inf) for found in users])))
    return colors


def place_labels(
    anchors: Points, widths: Sequence[float], height: float, side: float
) -> list[tuple[float, float] | None]:
    """Middles of boxes that begin at their anchors and are pushed apart until none overlaps, within a square.

    Args:
        anchors: Where each name belongs, (K, 2).
        widths: Of the names.
        height: Of a line.
        side: Of the square.

    Returns:
        The middle of each box; None for one that would still cover an earlier one.
    """
    centers = [[float(x), float(y)] for x, y in anchors]
    sizes = [(width, height) for width in widths]
    for _ in range(_ROUNDS):
        moved = [_push_apart(centers, sizes, i, j) for i in range(len(centers)) for j in range(i)]
        for center, size in zip(centers, sizes, strict=True):
            for axis in (0, 1):
                reach = size[axis] / 2 + _MARGIN
                center[axis] = max(reach, min(center[axis], side - reach))
        if not any(moved):
            break
    placed: list[tuple[float, float] | None] = []
    for i, (x, y) in enumerate(centers):
        free = all(placed[j] is None or min(_overlaps(centers, sizes, i, j)) <= _TOUCH for j in range(i))
        placed.append((x, y) if free else None)
    return placed


def _push_apart(centers: list[list[float]], sizes: list[tuple[float, float]], i: int, j: int) -> bool:
    """Move two overlapping boxes apart, each half of the shorter way; plain numbers, since there are many pairs."""
    overlaps = _overlaps(centers, sizes, i, j)
    if min(overlaps) <= 0:
        return False
    axis = overlaps.index(min(overlaps))
    push = (overlaps[axis] / 2 + 0.25) * (1.0 if centers[i][axis] >= centers[j][axis] else -1.0)
    centers[i][axis] += push
    centers[j][axis] -= push
    return True


def _overlaps(centers: list[list[float]], sizes: list[tuple[float, float]], i: int, j: int) -> list[float]:
    """How far two boxes reach into each other across and down; they overlap where both are positive."""
    return [(sizes[i][axis] + sizes[j][axis]) / 2 - abs(centers[i][axis] - centers[j][axis]) for axis in (0, 1)]
