"""From words on the command line to arguments of the library; wrong words are found before anything heavy is loaded."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from qurate.config import RunConfig, read_settings
from qurate.errors import ConfigError
from qurate.presets import PRESETS, Preset, check_preset, make_config
from qurate.registry import ASKERS, LONG, METHODS, ORACLE, PRINTED, SELECTORS, resolve_pair
from qurate.runs.origin import Places
from qurate.runtime.checked import LARGEST_SEED, show


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
    from qurate.networks.recommended import find_backbone
    from qurate.runs.adaptation import look_at, trained_network
    from qurate.runs.settings import BACKBONE

    if config is not None:
        return _repeat_run(config, given, places)
    backbone, weights, said = find_backbone(
        given.pop("backbone", BACKBONE),
        given.pop("weights", "auto"),
        given.pop("image_size", None),
        given.pop("pooling", None),
        look=look_at(places[:3], given.get("device", "auto")),
    )
    run = make_config(network=trained_network(given.pop("train", "head"), backbone, weights), **given)
    return {"config": run, "backbone": backbone, "weights": weights, "compare": True, "said": said}


def _repeat_run(path: Path, given: dict[str, Any], places: Places) -> dict[str, Any]:
    """The run of a file; the config.json of a run also says its backbone and whether it was compared."""
    from qurate.networks.recommended import find_backbone
    from qurate.runs.adaptation import look_at
    from qurate.runs.settings import BACKBONE

    stored, config = read_settings(path), RunConfig.from_file(path)
    is_head = config.network.backbone == "none"
    known = stored if is_head else {"backbone": config.network.backbone, "weights": config.network.weights}
    network = {"backbone": BACKBONE, "weights": "auto"} | _pick({**known, **given}, "backbone", "weights")
    look = look_at(places[:3], given.get("device", config.training.device))
    found = find_backbone(**network, image_size=given.get("image_size"), pooling=given.get("pooling"), look=look)
    network = {"backbone": found.name, "weights": found.weights}
    config = replace(
        config,
        network=config.network if is_head else replace(config.network, **network),
        training=replace(config.training, **_pick(given, "steps", "device")),
        selection=replace(config.selection, **_pick(given, "rounds")),
        **_pick(given, "seed"),
    )
    compare = stored.get("check_helping", True) is not False
    return {"config": config, "compare": compare, "said": found.said, **network}


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


def split_askers(ask: int | None, given: str | None, rounds: int | None) -> tuple[str, ...]:
    """Askers, each of which there is; all of them and none where labels are asked for and nobody is named.

    Raises:
        ConfigError: If they are named, or rounds given, without labels to ask for.
    """
    if ask is None:
        if given is not None or rounds is not None:
            raise ConfigError(f"--{'asker' if given is not None else 'ask-rounds'} needs --ask, the number of labels.")
        return ()
    words = ("none", *ASKERS) if given is None else split_some("asker", given)
    with _named("asker"):
        for word in words:
            if word != "none":
                ASKERS.find(word)
    return tuple(word if word == "none" else ASKERS.find(word).name for word in words)


def split_presets(given: str) -> tuple[Preset, ...]:
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
