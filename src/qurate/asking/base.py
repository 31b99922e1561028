"""What an asker is."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from torch import Tensor

from qurate.asking.pool import Pool


class Asker(Protocol):
    """Says which images a person should label next.

    An asker of your own is one small class, passed as `model.suggest(count, asker=First())`:

        class First:
            def ask(self, pool: Pool, count: int, seed: int) -> Tensor:
                return pool.open[:count]
    """

    def ask(self, pool: Pool, count: int, seed: int) -> Tensor:
        """Positions of different open images, the most useful first: `count` of them, or all that there are."""
        ...


class NamedAsker:
    """Base of the askers that have a name in `qurate.registry`; a subclass has its own file."""

    def ask(self, pool: Pool, count: int, seed: int) -> Tensor:
        """Positions of open images, see `Asker`."""
        raise NotImplementedError(f"{type(self).__name__} must define ask.")

    def explain(self, pool: Pool, asked: Tensor, classes: Sequence[str]) -> list[str]:
        """Why each of these images is asked about, as a sentence.

        Args:
            pool: That they were chosen from.
            asked: Their positions, (n,) int64.
            classes: Names of the K classes.
        """
        raise NotImplementedError(f"{type(self).__name__} must define explain.")


def take_lowest(pool: Pool, scores: Tensor, count: int) -> Tensor:
    """Positions of the open images of lowest score; of equal ones the first.

    Args:
        pool: All images.
        scores: Of each, (N,).
        count: How many.
    """
    order = scores[pool.open].argsort(stable=True)
    return pool.open[order[:count]]


def percent(share: float) -> str:
    """A probability for a sentence: 0.314 as '31 %'."""
    return f"{100 * share:.0f} %"
