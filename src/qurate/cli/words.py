"""From words on the command line to arguments of the library; wrong words are found before anything heavy is loaded."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from qurate.cli.stand_in import config_from_file, read_settings
from qurate.errors import ConfigError
from qurate.registry import ORACLE, PRINTED_AGENT, SELECTORS, resolve_pair

AGENTS = {"qurate": "dqn", "paper": PRINTED_AGENT}
"""What the grid and its results call the agent of each preset."""


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


def repeat_run(path: Path, given: dict[str, Any]) -> dict[str, Any]:
    """Arguments of an adaptation by a file of settings, with what was given beside it in its place.

    The config.json of a run also says which backbone made the embeddings.
    """
    stored, config = read_settings(path), config_from_file(path)
    config = replace(
        config,
        training=replace(config.training, **_pick(given, "steps", "device")),
        selection=replace(config.selection, **_pick(given, "rounds")),
        **_pick(given, "seed"),
    )
    if config.network.backbone == "none":  # the head of a run whose embeddings another backbone makes
        train, network = "head", _pick({**stored, **given}, "backbone", "weights")
    else:
        config = replace(config, network=replace(config.network, **_pick(given, "backbone", "weights")))
        train, network = "full", {"backbone": config.network.backbone, "weights": config.network.weights}
    return {"config": config, "train": train, "device": config.training.device, **network}


def _pick(values: dict[str, Any], *names: str) -> dict[str, Any]:
    return {name: values[name] for name in names if name in values}


def name_agents(presets: Sequence[str]) -> tuple[str, ...]:
    """The agents of some presets, as the grid names them."""
    strange = [preset for preset in presets if preset not in AGENTS]
    if strange or not presets:
        got = f"'{strange[0]}'" if strange else "none"
        raise ConfigError(f"--presets must be one or more of {', '.join(AGENTS)}, got {got}.")
    return tuple(AGENTS[preset] for preset in presets)


def name_selectors(words: Sequence[str], agents: Sequence[str]) -> tuple[str, ...]:
    """Selectors as the grid names them: 'dqn' is the agent of each preset."""
    if PRINTED_AGENT in words:
        raise ConfigError(f"selector '{PRINTED_AGENT}' is chosen by --selectors dqn --presets paper.")
    names = [word if word == ORACLE else SELECTORS.find(word).name for word in words]
    return tuple(one for name in names for one in (agents if name == "dqn" else (name,)))


def name_methods(words: Sequence[str], agents: Sequence[str]) -> tuple[str, ...]:
    """Methods, and pairs 'method+selector', as the grid names them."""
    found: list[str] = []
    for word in words:
        method, selector = (word, None) if word == "all" else resolve_pair(word)
        found += [method] if selector is None else [f"{method}+{one}" for one in name_selectors([selector], agents)]
    return tuple(found)


def split_words(given: str) -> tuple[str, ...]:
    """Words with commas between them."""
    return tuple(word.strip() for word in given.split(",") if word.strip())


def split_numbers(option: str, given: str) -> tuple[int, ...]:
    """Integers with commas between them."""
    try:
        return tuple(int(word) for word in split_words(given))
    except ValueError:
        raise ConfigError(f"--{option} must be integers with commas between them, got '{given}'.") from None
