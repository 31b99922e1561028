"""Options of the command line, and the checks of their words before anything heavy is loaded."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, Literal

import tyro

from qurate import config, presets
from qurate.config import RunConfig, read_settings
from qurate.errors import ConfigError
from qurate.presets import PRESETS, check_preset, make_config
from qurate.registry import DEFAULT_SELECTOR, LONG, METHODS, ORACLE, PRINTED, QUERY_STRATEGIES, SELECTORS, resolve_pair
from qurate.runs import image_sources as image_sources
from qurate.runs.image_sources import Places
from qurate.runtime.files import why_not_writable
from qurate.runtime.paths import shorten
from qurate.runtime.validation import LARGEST_SEED, MOST, show


def _shown(metavar: str | None, default: str = "", help: str | None = None) -> Any:
    """How an option without a value of its own looks in the help."""
    return tyro.conf.arg(metavar=metavar, help=help, help_behavior_hint=f"(default: {default})" if default else "")


Flag = Annotated[tyro.conf.FlagCreatePairsOff[bool], _shown(None)]
Switch = Annotated[bool, tyro.conf.arg(help_behavior_hint="(default: yes)")]
Names = Annotated[str, tyro.conf.arg(metavar="A,B,...")]
AnyName = Annotated[str | None, _shown("NAME")]
Count = Annotated[int | None, _shown("INT")]
Minutes = Annotated[float | None, _shown("FLOAT")]

Folder = Annotated[Path, tyro.conf.arg(metavar="DIR")]
AnyFolder = Annotated[Path | None, _shown("DIR")]
AnyFile = Annotated[Path | None, _shown("FILE")]
AnyRun = Annotated[Path | None, tyro.conf.arg(name="from", metavar="RUN", help_behavior_hint="")]
RunDir = Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="RUN")]

MethodName = Annotated[
    str | None,
    _shown(
        "NAME", "tml", f"How the network learns: {', '.join(METHODS)}; or a row of the paper's tables such as TML_SPL."
    ),
]
SelectorName = Annotated[
    str | None, _shown("NAME", DEFAULT_SELECTOR, f"Which pseudo-labels to trust: {', '.join(SELECTORS)}.")
]
Preset = Annotated[presets.Preset | None, _shown("{qurate,paper}", "qurate")]
Seed = Annotated[int | None, _shown("INT", "0")]
Steps = Annotated[int | None, _shown("INT", str(config.TrainingConfig.steps))]
Rounds = Annotated[int | None, _shown("INT", "that of the preset")]

Backbone = Annotated[str | None, _shown("NAME", f"fast, {image_sources.BACKBONE}")]
ImageSize = Annotated[int | None, _shown("PIXELS", "the model's own")]
Pooling = Annotated[Literal["class", "mean", "both"] | None, _shown("{class,mean,both}", "the model's own")]
Weights = Annotated[str | None, _shown("FILE", "auto")]
Train = Annotated[image_sources.Train | None, _shown("{head,full}", "head")]
Strategy = Annotated[Literal["auto", "ddp"] | None, _shown("{auto,ddp}", "auto")]
Precision = Annotated[config.Precision | None, _shown("{32-true,16-mixed,bf16-mixed}", "32-true")]
Device = Annotated[config.Device | None, _shown("{auto,cpu,cuda,mps}", "auto")]

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
    _shown(
        "A,B,...",
        "all",
        f"Who says which images to label next: {', '.join(QUERY_STRATEGIES)}, or none, the control without answers.",
    ),
]
EVERY_SELECTOR = ",".join(SELECTORS)
Protocol = Annotated[Literal["mme", "clean", "drawn"] | None, _shown("{mme,clean,drawn}", "the suite's first")]
Row = Annotated[str | None, _shown("ROW", "TML_DQNPL*, or else the best")]
Ray = Annotated[str | None, _shown("local|ADDRESS")]


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


def check_words(words: dict[str, Any], config: Path | None) -> dict[str, Any]:
    """The words, if they are allowed, and the file of settings can be read and nothing beside it contradicts it."""
    if words and config is not None:
        options = ", ".join(f"--{name}" for name in words)
        raise ConfigError(f"{options} cannot be given beside --config: edit {config} instead, or leave --config out.")
    if config is not None:
        read_settings(config)
    if "method" in words:
        resolve_pair(words["method"])
    if "selector" in words:
        SELECTORS.find(words["selector"])
    return words


def understand(given: dict[str, Any], config: Path | None, places: Places) -> dict[str, Any]:
    """The run that the words of `adapt` mean: config, backbone, weights and whether to compare.

    Args:
        given: The options that were given.
        config: A file of settings, which given numbers change.
        places: Where the images are.
    """
    from qurate.networks.backbone_names import find_backbone
    from qurate.runs.adapt import look_at, trained_network
    from qurate.runs.image_sources import BACKBONE

    if config is not None:
        return _repeat_run(config, given, places)
    backbone, weights, message = find_backbone(
        given.pop("backbone", BACKBONE),
        given.pop("weights", "auto"),
        given.pop("image_size", None),
        given.pop("pooling", None),
        look=look_at(places[:3], given.get("device", "auto")),
    )
    run = make_config(network=trained_network(given.pop("train", "head"), backbone, weights), **given)
    return {"config": run, "backbone": backbone, "weights": weights, "compare": True, "message": message}


def _repeat_run(path: Path, given: dict[str, Any], places: Places) -> dict[str, Any]:
    """The run of a file; the config.json of a run also says its backbone and whether it was compared."""
    from qurate.networks.backbone_names import find_backbone
    from qurate.runs.adapt import look_at
    from qurate.runs.image_sources import BACKBONE

    stored, config = read_settings(path), RunConfig.from_file(path)
    is_head = config.network.backbone == "none"
    known = stored if is_head else {"backbone": config.network.backbone, "weights": config.network.weights}
    network = {"backbone": BACKBONE, "weights": "auto"} | _pick({**known, **given}, "backbone", "weights")
    look = look_at(places[:3], given.get("device", config.execution.device))
    found = find_backbone(**network, image_size=given.get("image_size"), pooling=given.get("pooling"), look=look)
    network = {"backbone": found.name, "weights": found.weights}
    config = replace(
        config,
        network=config.network if is_head else replace(config.network, **network),
        training=replace(config.training, **_pick(given, "steps")),
        execution=replace(config.execution, **_pick(given, "device")),
        selection=replace(config.selection, **_pick(given, "rounds")),
        **_pick(given, "seed"),
    )
    compare = stored.get("check_helping", True) is not False
    return {"config": config, "compare": compare, "message": found.message, **network}


def _pick(values: dict[str, Any], *names: str) -> dict[str, Any]:
    return {name: values[name] for name in names if name in values}


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
