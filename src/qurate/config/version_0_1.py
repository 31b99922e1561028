"""Configs of earlier commits: those of version 0.1, and those that predate the name of a number."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from qurate.registry import METHODS, SELECTORS, Registry

_BEFORE: Mapping[str, Mapping[str, Any]] = {
    "cml": {"weighting": "batch"},
    "cdan": {"discriminator_dropout": 0.0},
}
"""By method, what a number was before it had a name."""


def from_version_0_1(data: Mapping[str, Any]) -> dict[str, Any]:
    """A config of version 0.1, whose numbers of all methods and of all selectors stood side by side."""
    method, selection = data.get("method", {}), dict(data["selection"])
    if isinstance(method, Mapping):
        method = {"name": "tml", **method}
        method = as_meant(_without_others(METHODS, method["name"], method))
    if "confidence" in selection:
        selection["threshold"] = selection.pop("confidence")
    name = selection.pop("selector")
    selection = _without_others(SELECTORS, name, selection)
    numbers = {key: selection.pop(key) for key in _numbers(SELECTORS, name) if key in selection}
    return {**data, "method": method, "selection": {**selection, "selector": {"name": name, **numbers}}}


def as_meant(method: Mapping[str, Any]) -> dict[str, Any]:
    """The numbers of a method in a file that names all there were; those without a name yet as they then were."""
    return {**_BEFORE.get(str(method.get("name")), {}), **method}


def _without_others(registry: Registry, name: str, table: Mapping[str, Any]) -> dict[str, Any]:
    """A table without the numbers that only other methods or selectors have; what nobody has stays, to be refused."""
    others = {key for other in registry for key in _numbers(registry, other)} - _numbers(registry, name)
    return {key: value for key, value in table.items() if key not in others}


def _numbers(registry: Registry, name: str) -> set[str]:
    return {part.name for part in dataclasses.fields(registry.find(name).load().Config) if part.init}
