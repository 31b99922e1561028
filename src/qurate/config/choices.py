"""What is chosen by name: the base of every method's and of every selector's numbers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Self

from qurate.errors import ConfigError
from qurate.registry import METHODS, SELECTORS, Registry
from qurate.runtime.checked import Checked, Inside, Share, check, show


@dataclass(frozen=True)
class MethodConfig(Checked):
    """The training method, one row of the paper's tables; its numbers are the subclass in its own file."""

    name: str = field(init=False, default="")

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.name:
            raise ConfigError("MethodConfig is abstract. Use MethodConfig.of('tml') or a subclass.")

    @classmethod
    def of(cls, name: str, /, **numbers: Any) -> MethodConfig:
        """The config of a method by its name or title, with these numbers changed.

        Example:
            >>> MethodConfig.of("tml", margin=0.3)
            TargetMarginConfig(name='tml', entropy_weight=0.1, margin=0.3, monotone=True)
        """
        config: MethodConfig = METHODS.find(name).load().Config.from_dict(numbers)
        return config

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Self:
        """The subclass that 'name' says; a subclass reads its own numbers."""
        return super().from_dict(data) if cls is not MethodConfig else _named(cls, METHODS, data)


@dataclass(frozen=True)
class SelectorConfig(Checked):
    """Which pseudo-labels to trust; the numbers of a selector are the subclass beside it."""

    name: str = field(init=False, default="")

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.name:
            raise ConfigError("SelectorConfig is abstract. Use SelectorConfig.of('dqn') or a subclass.")

    @classmethod
    def of(cls, name: str, /, **numbers: Any) -> SelectorConfig:
        """The config of a selector by its name, with these numbers changed.

        Example:
            >>> SelectorConfig.of("confidence", threshold=0.8)
            ConfidenceConfig(name='confidence', threshold=0.8)
        """
        config: SelectorConfig = SELECTORS.find(name).load().Config.from_dict(numbers)
        return config

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Self:
        """The subclass that 'name' says; a subclass reads its own numbers."""
        return super().from_dict(data) if cls is not SelectorConfig else _named(cls, SELECTORS, data)


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


def _named(cls: Any, registry: Registry, data: Mapping[str, Any]) -> Any:
    if not isinstance(data, Mapping) or not isinstance(data.get("name"), str):
        raise ConfigError(f"{cls.__name__} must be a table with a name ({', '.join(registry)}), got {show(data)}.")
    return cls.of(data["name"], **{str(key): value for key, value in data.items() if key != "name"})
