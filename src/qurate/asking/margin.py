"""Asker 'margin'."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from qurate.asking.base import NamedAsker, percent, take_lowest
from qurate.asking.pool import Pool


class MarginAsker(NamedAsker):
    """The images whose two most probable classes are closest: p_(1) - p_(2), smallest first."""

    def ask(self, pool: Pool, count: int, seed: int) -> Tensor:
        """Nothing is random here."""
        first, second = pool.probabilities.topk(2, dim=1).values.unbind(dim=1)
        return take_lowest(pool, first - second, count)

    def explain(self, pool: Pool, asked: Tensor, classes: Sequence[str]) -> list[str]:
        """Which two classes."""
        values, labels = pool.probabilities[asked].topk(2, dim=1)
        return [
            f"The model wavers between two classes: {classes[i]} has {percent(p)} and {classes[j]} {percent(q)}."
            for (p, q), (i, j) in zip(values.tolist(), labels.tolist(), strict=True)
        ]
