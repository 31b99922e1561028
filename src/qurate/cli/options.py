"""Options of the command line, and the checks of their words before anything heavy is loaded."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Literal

import tyro

from qurate import config, presets
from qurate.errors import ConfigError
from qurate.presets import PRESETS, check_preset
from qurate.registry import LONG, METHODS, ORACLE, PRINTED, QUERY_STRATEGIES, SELECTORS, resolve_pair
from qurate.runs import options
from qurate.runs.options import Flag as Flag
from qurate.runs.options import Switch as Switch
from qurate.runs.options import option
from qurate.runtime.files import why_not_writable
from qurate.runtime.paths import shorten
from qurate.runtime.validation import LARGEST_SEED, MOST, show

Names = Annotated[str, tyro.conf.arg(metavar="A,B,...")]
AnyName = Annotated[str | None, option("NAME")]
Count = Annotated[int | None, option("INT")]

Folder = Annotated[Path, tyro.conf.arg(metavar="DIR")]
AnyFolder = Annotated[Path | None, option("DIR")]
AnyFile = Annotated[Path | None, option("FILE")]
RunDir = Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="RUN")]


ImageSize = Annotated[int | None, option("PIXELS", "the model's own")]
Pooling = Annotated[options.Pooling | None, option("{class,mean,both}", "the model's own")]
Weights = Annotated[str | None, option("FILE", "auto")]
Train = Annotated[options.Train | None, option("{head,full}", "head")]
Precision = Annotated[config.Precision | None, option("{32-true,16-mixed,bf16-mixed}", "32-true")]
Device = Annotated[config.Device | None, option("{auto,cpu,cuda,mps}", "auto")]

Methods = Annotated[
    str,
    tyro.conf.arg(
        metavar="A,B,...",
        help=f"Each with every selector: {', '.join(METHODS)}. Alone: tml+dqn, or a row of the paper such as TML_SPL.",
    ),
]
Selectors = Annotated[
    str,
    tyro.conf.arg(metavar="A,B,...", help=f"Which pseudo-labels to trust: {', '.join([*SELECTORS, ORACLE, LONG])}."),
]
QueryStrategies = Annotated[
    str | None,
    option(
        "A,B,...",
        "all",
        help=f"Which images to label next: {', '.join(QUERY_STRATEGIES)}, or none, the control without answers.",
    ),
]
EVERY_SELECTOR = ",".join(SELECTORS)
Protocol = Annotated[Literal["mme", "clean", "drawn"] | None, option("{mme,clean,drawn}", "the suite's first")]
Row = Annotated[str | None, option("ROW", "TML_DQNPL*, or else the best")]
Ray = Annotated[str | None, option("local|ADDRESS")]


def check_count(option: str, value: int | None, most: int = MOST, least: int = 1) -> None:
    """A number of things, if one is given.

    Raises:
        ConfigError: If it is too few, or absurd.
    """
    if value is not None and not least <= value <= most:
        raise ConfigError(f"--{option} must be between {least} and {most}, got {show(value)}.")


def check_seed(option: str, value: int) -> None:
    """A seed.

    Raises:
        ConfigError: If it is negative, or too large for the generators of random numbers.
    """
    if not 0 <= value <= LARGEST_SEED:
        raise ConfigError(f"--{option} must be between 0 and {LARGEST_SEED}, got {show(value)}.")


def check_folder(option: str, path: Path) -> None:
    """A folder to write in: it is there and can be written, or can be made.

    Raises:
        ConfigError: If not.
    """
    if reason := why_not_writable(path):
        raise ConfigError(
            f"--{option} must be a folder, got {shorten(path)}, where nothing can be written: {reason}. Choose another."
        )


def split_some(option: str, given: str) -> tuple[str, ...]:
    """Words with commas between them, at least one.

    Raises:
        ConfigError: If there is none.
    """
    words = tuple(word.strip() for word in given.split(",") if word.strip())
    if not words:
        raise ConfigError(f"--{option} must be a comma-separated list, got {show(given)}.")
    return words


def split_numbers(option: str, given: str, least: int = 0) -> tuple[int, ...]:
    """Integers with commas between them, at least one, each between `least` and the largest seed.

    Raises:
        ConfigError: If it is something else.
    """
    try:
        numbers = tuple(int(word) for word in split_some(option, given))
    except ValueError:
        raise ConfigError(f"--{option} must be integers with commas between them, got {show(given)}.") from None
    if not all(least <= number <= LARGEST_SEED for number in numbers):
        raise ConfigError(f"--{option} must be between {least} and {LARGEST_SEED}, got {show(given)}.")
    return numbers


def split_methods(given: str) -> tuple[str, ...]:
    """Methods and pairs, each of which there is; 'all' stands for every method."""
    words = split_some("methods", given)
    with _named("methods"):
        for word in words:
            first, plus, rest = word.partition("+")
            if word != "all":
                resolve_pair(next(iter(METHODS)) + plus + rest if first == "all" else word)
    return words


def split_selectors(given: str) -> tuple[str, ...]:
    """Selectors, each of which there is."""
    words = split_some("selectors", given)
    with _named("selectors"):
        for word in words:
            for name, printed in PRINTED.items():
                if word == printed:
                    raise ConfigError(f"'{printed}' is chosen by --selectors {name} --presets paper.")
            if word not in (ORACLE, LONG):
                SELECTORS.find(word)
    return words


def split_query_strategies(ask: int | None, given: str | None, rounds: int | None) -> tuple[str, ...]:
    """Query strategies, each of which there is; all of them and none where labels are asked for and nobody is named.

    Raises:
        ConfigError: If they are named, or rounds given, without labels to ask for.
    """
    if ask is None:
        if given is not None or rounds is not None:
            raise ConfigError(f"--{'asker' if given is not None else 'ask-rounds'} needs --ask, the number of labels.")
        return ()
    words = ("none", *QUERY_STRATEGIES) if given is None else split_some("asker", given)
    with _named("asker"):
        for word in words:
            if word != "none":
                QUERY_STRATEGIES.find(word)
    return tuple(word if word == "none" else QUERY_STRATEGIES.find(word).name for word in words)


def split_presets(given: str) -> tuple[presets.Preset, ...]:
    """Presets, each of which there is."""
    with _named("presets"):
        words = [check_preset(word) for word in split_some("presets", given)]
    return tuple(preset for preset in PRESETS if preset in words)


@contextmanager
def _named(option: str) -> Iterator[None]:
    """An error that speaks of one of the option's words, with the option before it."""
    try:
        yield
    except ConfigError as error:
        said = str(error)
        raise ConfigError(said if said.startswith("--") else f"--{option}: {said}") from None
