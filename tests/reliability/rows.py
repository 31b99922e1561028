"""One row of the table of bad inputs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from tests.reliability.damage import Damage, nothing


@dataclass(frozen=True)
class BadInput:
    """Something bad, and what must come of it.

    Args:
        id: What it is, after the verb or the function that it is given to.
        given: A command line, or a call of the Python API.
        says: Words that must appear in what is said.
        damage: Done to the world before.
        code: Exit code of a command line: 2 for an error, 1 for problems that `check` found, 0 where the work goes on
            and only says what is wrong.
        parser: Whether the command line itself is wrong, so that its parser answers.
        may_write: Beginnings of the names of files that may be new or other than before.
        error: What a call raises.
        works: Whether something is trained before what is bad is given.
        cache: Where the embedding cache is; one of its own unless given.
        fresh: Run the command in a process of its own.
    """

    id: str
    given: str | Callable[[], object]
    says: tuple[str, ...] = ()
    damage: Damage = nothing
    code: int = 2
    parser: bool = False
    may_write: tuple[str, ...] = ()
    error: tuple[type[Exception], ...] = ()
    works: bool = False
    cache: str = ""
    fresh: bool = False
