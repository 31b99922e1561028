"""What a selector is."""

from __future__ import annotations

from typing import ClassVar, NamedTuple, Protocol, Self

from qurate.config import RunConfig, SelectorConfig
from qurate.selection.callbacks import Callback
from qurate.selection.positives import Positives
from qurate.selection.pseudo_labels import Round


class Selector(Protocol):
    """Chooses the positives of a round.

    A selector of your own is one small class, passed as `qurate.fit(split, config, selector=FirstHundred())`:

        class FirstHundred:
            def select(self, round: Round) -> Positives:
                return round.positives_at(torch.arange(100))
    """

    def select(self, round: Round) -> Positives:
        """D_p for line 20: the whole set, not what is added to it."""
        ...


class Sizes(NamedTuple):
    """What a selector may need to know of a problem before it begins: N_u, d and K, and how many answers reward it."""

    unlabeled: int
    features: int
    classes: int
    answers: int = 0


class NamedSelector:
    """Base of the selectors that have a name in `qurate.registry`; a subclass has its own file and config.

    Args:
        config: Its numbers.
    """

    Config: ClassVar[type[SelectorConfig]]

    def __init__(self, config: SelectorConfig) -> None:
        pass

    @classmethod
    def build(cls, config: RunConfig, sizes: Sizes, tell: Callback) -> Self:
        """The selector of a run; most need no more than their own numbers."""
        return cls(config.selection.selector)

    def select(self, round: Round) -> Positives:
        """D_p for line 20."""
        raise NotImplementedError(f"{type(self).__name__} must define select.")
