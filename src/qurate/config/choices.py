"""What is chosen by name: the base of every method's and of every selector's numbers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Self

from qurate.errors import ConfigError
from qurate.registry import METHODS, SELECTORS, Registry
from qurate.runtime.checked import Checked, Inside, Rate, Share, check, show


@dataclass(frozen=True)
class Choice(Checked):
    """The numbers of what a registry names: a subclass for each, in its own file."""

    registry: ClassVar[Registry]
    example: ClassVar[str]

    name: str = field(init=False, default="")

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.name:
            kind = type(self).__name__
            raise ConfigError(f"{kind} is abstract. Use {kind}.of('{self.example}') or a subclass.")

    @classmethod
    def of(cls, name: str, /, **numbers: Any) -> Self:
        """The config of a name or title, with these numbers changed."""
        config: Self = cls.registry.find(name).load().Config.from_dict(numbers)
        return config

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Self:
        """The subclass that 'name' says; a subclass reads its own numbers."""
        if cls.name:
            return super().from_dict(data)
        if not isinstance(data, Mapping) or not isinstance(data.get("name"), str):
            known = ", ".join(cls.registry)
            raise ConfigError(f"{cls.__name__} must be a table with a name ({known}), got {show(data)}.")
        return cls.of(data["name"], **{str(key): value for key, value in data.items() if key != "name"})


@dataclass(frozen=True)
class MethodConfig(Choice):
    """The training method, one row of the paper's tables; its numbers are the subclass in its own file.

    Example:
        >>> MethodConfig.of("tml", margin=0.3)
        TargetMarginConfig(name='tml', entropy_weight=0.1, margin=0.3, monotone=True)
    """

    registry: ClassVar[Registry] = METHODS
    example: ClassVar[str] = "tml"


@dataclass(frozen=True)
class SelectorConfig(Choice):
    """Which pseudo-labels to trust; the numbers of a selector are the subclass beside it.

    Example:
        >>> SelectorConfig.of("confidence", threshold=0.8)
        ConfidenceConfig(name='confidence', threshold=0.8)
    """

    registry: ClassVar[Registry] = SELECTORS
    example: ClassVar[str] = "dqn"


@dataclass(frozen=True)
class NoneConfig(SelectorConfig):
    """No pseudo-label is trusted, and there are no rounds."""

    name: str = field(init=False, default="none")


@dataclass(frozen=True)
class ShareConfig(SelectorConfig):
    """A share of D_u that grows linearly over the rounds."""

    share_start: Inside = 0.2
    """Share taken in the first round. Our choice."""
    share_end: Share = 0.9
    """Share taken in the last round. Our choice."""

    def __post_init__(self) -> None:
        super().__post_init__()
        shares = (self.share_start, self.share_end)
        check(shares[0] <= shares[1], f"{type(self).__name__}.share_start, share_end", "start <= end", shares)

    def share_at(self, progress: float) -> float:
        """The share at a progress of the rounds from 0 to 1."""
        return self.share_start + (self.share_end - self.share_start) * progress


@dataclass(frozen=True)
class AdaptiveShareConfig(ShareConfig):
    """A growing share of D_u, balanced as far as the predicted classes are of equal size (decision 51)."""

    lopsided_from: Rate = 0.6
    """From this distance d between predicted shares and equal ones on, nothing is balanced. Our choice."""
    lopsided_over: Rate = 0.35
    """How far d must fall below that until everything is balanced. Our choice."""
    class_room: Rate = 1.15
    """Where all is balanced, a class gives at most this many times an equal part. Our choice."""
