"""Asker 'probability'."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from qurate.asking.base import NamedAsker, percent, take_lowest
from qurate.asking.pool import Pool


class ProbabilityAsker(NamedAsker):
    """The images whose most probable class is least probable: max_k p_k, lowest first."""

    def ask(self, pool: Pool, count: int, seed: int) -> Tensor:
        """Nothing is random here."""
        return take_lowest(pool, pool.probabilities.amax(dim=1), count)

    def explain(self, pool: Pool, asked: Tensor, classes: Sequence[str]) -> list[str]:
        """How sure the model is."""
        sure, best = pool.probabilities[asked].max(dim=1)
        return [
            f"The model is least sure of such images: {classes[k]} has {percent(p)}, and no class has more."
            for p, k in zip(sure.tolist(), best.tolist(), strict=True)
        ]
