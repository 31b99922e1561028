"""Dataclasses whose fields are checked when they are made, and that can be read back from plain dictionaries."""

from __future__ import annotations

import dataclasses
import math
import sys
import types
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from numbers import Integral, Real
from typing import Annotated, Any, ClassVar, Literal, Self, Union, get_args, get_origin, get_type_hints

from qurate.errors import ConfigError
from qurate.registry import nearest


@dataclass(frozen=True)
class Allowed:
    """What a number may be beyond its type: in words, and as a test."""

    words: str
    test: Callable[[Any], bool]


MOST = 10**9
"""Steps, samples, widths: more of anything is a slip of the pen."""

AT_MOST = Allowed(f"at most {MOST}", lambda n: n <= MOST)
Positive = Annotated[int, Allowed("positive", lambda n: n > 0), AT_MOST]
Count = Annotated[int, Allowed("0 or more", lambda n: n >= 0), AT_MOST]
Size = Annotated[int, Allowed("positive", lambda n: n > 0), Allowed("at most 65536", lambda n: n <= 2**16)]
MOST_STEPS = 10**6
_FEW_ENOUGH = Allowed(f"at most {MOST_STEPS}", lambda n: n <= MOST_STEPS)
Steps = Annotated[int, Allowed("positive", lambda n: n > 0), _FEW_ENOUGH]
StepsOrDefault = Annotated[int, Allowed("0 or more", lambda n: n >= 0), _FEW_ENOUGH]
Bytes = Annotated[int, Allowed("positive and below 2 ** 63", lambda n: 0 < n < 2**63)]
Rate = Annotated[float, Allowed("positive", lambda x: x > 0)]
Weight = Annotated[float, Allowed("0 or more", lambda x: x >= 0)]
Share = Annotated[float, Allowed("in [0, 1]", lambda x: 0 <= x <= 1)]
Inside = Annotated[float, Allowed("in (0, 1)", lambda x: 0 < x < 1)]
Below1 = Annotated[float, Allowed("in [0, 1)", lambda x: 0 <= x < 1)]
Angle = Annotated[float, Allowed("an angle in [0, pi / 2]", lambda x: 0 <= x <= math.pi / 2)]
LARGEST_SEED = 2**32 - 1
Seed = Annotated[int, Allowed(f"between 0 and {LARGEST_SEED}", lambda n: 0 <= n <= LARGEST_SEED)]


class Checked:
    """Base of config dataclasses: each field must be of its annotated type, `Literal`s and `Allowed` included.

    Numbers become plain ones, so that 30 and 30.0, or numpy's 30, are one config with one fingerprint.
    """

    __dataclass_fields__: ClassVar[dict[str, Any]]

    def __post_init__(self) -> None:
        cls: Any = type(self)
        for name, kind in _kinds(cls).items():
            if (problem := find_problem(getattr(self, name), kind)) is not None:
                raise ConfigError(f"{cls.__name__}.{name} must be {problem}, got {show(getattr(self, name))}.")
            object.__setattr__(self, name, _plain(getattr(self, name), kind))

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Self:
        """What `dataclasses.asdict` made into dictionaries; what is missing has its default.

        Raises:
            ConfigError: If a key is unknown, or a value not allowed.
        """
        own: Any = cls
        kinds = _kinds(own)
        if not isinstance(data, Mapping):
            raise ConfigError(f"{cls.__name__} must be a table of {', '.join(kinds)}, got {show(data)}.")
        fixed = {field.name: field.default for field in dataclasses.fields(cls) if not field.init}
        for key, value in data.items():
            if key not in kinds:
                raise ConfigError(
                    f"{cls.__name__} has no '{key}'.{nearest(key, kinds)} Known: {', '.join(kinds) or 'nothing'}."
                )
            if key in fixed and value != fixed[key]:
                raise ConfigError(f"{cls.__name__}.{key} must be {fixed[key]!r}, got {show(value)}.")
        for field in dataclasses.fields(cls):
            if field.init and field.name not in data and field.default is field.default_factory is dataclasses.MISSING:
                raise ConfigError(f"{cls.__name__} lacks '{field.name}'.")
        return cls(**{key: _read(kinds[key], value) for key, value in data.items() if key not in fixed})


@cache
def _kinds(cls: Any) -> dict[str, Any]:
    hints = get_type_hints(cls, include_extras=True)
    return {field.name: hints[field.name] for field in dataclasses.fields(cls)}


def _read(kind: Any, value: Any) -> Any:
    if _is_table(kind):
        return kind.from_dict(value)
    if get_origin(kind) in (Union, types.UnionType) and isinstance(value, Mapping):
        return next((option.from_dict(value) for option in get_args(kind) if _is_table(option)), value)
    return tuple(value) if isinstance(value, list) else value


def _is_table(kind: Any) -> bool:
    return isinstance(kind, type) and issubclass(kind, Checked)


def find_problem(value: Any, kind: Any) -> str | None:
    """What a value must be to be of a kind, in words; None if it is. Rules of `Annotated` kinds count."""
    origin, arguments = get_origin(kind), get_args(kind)
    if origin is Annotated:
        plain, *rules = arguments
        problem = find_problem(value, plain)
        broken = (rule.words for rule in rules if isinstance(rule, Allowed) and not rule.test(value))
        return problem or next(broken, None)
    if origin is Literal:
        return None if type(value) is str and value in arguments else f"one of {', '.join(map(repr, arguments))}"
    if origin in (Union, types.UnionType):
        problems = [find_problem(value, option) for option in arguments]
        return None if None in problems else " or ".join(text for text in problems if text)
    if origin is tuple:
        if not isinstance(value, tuple):
            return "a tuple"
        problems = [find_problem(item, arguments[0]) for item in value]
        return next((f"a tuple in which each is {problem}" for problem in problems if problem), None)
    if origin is not None and issubclass(origin, Mapping):
        if not isinstance(value, Mapping):
            return "a table"
        problems = [find_problem(item, arguments[1]) for item in value.values()]
        return next((f"a table in which each is {problem}" for problem in problems if problem), None)
    return None if _is(value, kind) else _WORDS.get(kind, getattr(kind, "__name__", str(kind)))


_WORDS = {int: "an integer", float: "a finite number", str: "text", bool: "true or false", type(None): "nothing"}


def _is(value: Any, kind: Any) -> bool:
    if kind is float:
        return isinstance(value, Real) and not isinstance(value, bool) and abs(value) <= sys.float_info.max  # type: ignore[operator]
    if kind is int:
        return isinstance(value, Integral) and not isinstance(value, bool)
    return isinstance(value, kind)


def check(condition: bool, where: str, allowed: str, got: object) -> None:
    """For rules between fields.

    Raises:
        ConfigError: If the condition does not hold.
    """
    if not condition:
        raise ConfigError(f"{where} must be {allowed}, got {show(got)}.")


def show(value: object, most: int = 200) -> str:
    """A value for a message, cut short where it is long."""
    try:
        text = repr(value)
    except ValueError:  # an integer of thousands of digits
        return "a very large number"
    return text if len(text) <= most else f"{text[:most]}..."


def _plain(value: Any, kind: Any) -> Any:
    if isinstance(value, tuple):
        return tuple(_plain(item, get_args(kind)[0]) for item in value)
    if isinstance(value, Real) and not isinstance(value, bool):
        number: type = float if _is_float(kind) else int
        return number(value)
    return value


def _is_float(kind: Any) -> bool:
    return kind is float or any(_is_float(option) for option in get_args(kind))
