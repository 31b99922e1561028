"""Small pools that the tests of query strategies share."""

from __future__ import annotations

import torch

from qurate.active.pool import Pool


def make_pool(n: int = 60, d: int = 6, k: int = 4, *, seed: int = 0, closed: bool = False) -> Pool:
    """Random features, predictions of all degrees of doubt, a third trusted, and a fifth closed if asked for."""
    rng = torch.Generator().manual_seed(seed)
    sharpness = torch.rand(n, 1, generator=rng) * 5
    probabilities = (torch.randn(n, k, generator=rng) * sharpness).softmax(dim=1)
    trusted = torch.where(torch.rand(n, generator=rng) < 1 / 3, probabilities.argmax(dim=1), -1)
    shut = torch.rand(n, generator=rng) < 0.2
    return Pool(torch.randn(n, d, generator=rng), probabilities, trusted, shut if closed else None)


def neighbors_by_hand(pool: Pool, i: int, count: int) -> list[int]:
    """By a plain loop: the images of largest cosine with image i, itself not among them."""
    rows = [row / row.norm() for row in pool.features]
    others = [j for j in range(len(pool)) if j != i]
    return sorted(others, key=lambda j: -float(rows[i] @ rows[j]))[:count]
