"""Types of options that tyro reads, and how its help shows them. Loads no torch."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import tyro

from qurate.runtime.validation import MOST, Allowed

Train = Literal["head", "full"]


def option(metavar: str | None = None, default: str = "", **more: Any) -> Any:
    """How the help shows an option: `--name METAVAR ... (default: DEFAULT)`."""
    hint = default if default == "required" else default and f"default: {default}"
    return tyro.conf.arg(metavar=metavar, help_behavior_hint=hint and f"({hint})", **more)


def between(least: float, most: float) -> Allowed:
    """A number within these bounds, or none."""
    return Allowed(f"between {least} and {most}", lambda number: number is None or least <= number <= most)


Flag = Annotated[tyro.conf.FlagCreatePairsOff[bool], option()]
Switch = Annotated[bool, option(default="yes")]
Count = Annotated[int | None, option("INT"), between(1, MOST)]
