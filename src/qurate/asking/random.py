"""Asker 'random'."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from qurate.asking.base import NamedAsker
from qurate.asking.pool import Pool
from qurate.runtime.randomness import generator

WHY = "Drawn at random: only such images give an honest estimate of the accuracy."


class RandomAsker(NamedAsker):
    """Images drawn at random, each as likely as any other: the control, and the honest sample."""

    def ask(self, pool: Pool, count: int, seed: int) -> Tensor:
        """The first open ones of an order of all N images that the seed decides.

        A larger count asks the same images and more, and so does a pool of which some were closed meanwhile.
        """
        order = torch.randperm(len(pool), generator=generator(seed, 21))
        if pool.closed is not None:
            order = order[~pool.closed[order]]
        return order[:count]

    def explain(self, pool: Pool, asked: Tensor, classes: Sequence[str]) -> list[str]:
        """The same for all."""
        return [WHY] * len(asked)
