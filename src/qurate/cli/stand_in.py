"""Stands in for doors that are being built: `runs.run_adaptation`, `RunConfig.from_file`, `config.read_settings`."""

from __future__ import annotations

import json
import tomllib
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from qurate.errors import ConfigError


def run_adaptation(source: Path, labeled: Path, unlabeled: Path, **words: Any) -> Any:
    """Model and record of an adaptation; words as those of `qurate.adapt`."""
    from rich.console import Console

    from qurate.presets import with_preset
    from qurate.registry import resolve_pair
    from qurate.runs.adaptation import adapt
    from qurate.runs.settings import BACKBONE, find_weights, make_config
    from qurate.runtime.progress import PhaseBars

    words.pop("progress", None)
    words["weights"] = find_weights(words.get("backbone", BACKBONE), words.get("weights", "auto"))
    few = {name: words.pop(name) for name in ("steps", "rounds") if name in words}
    method, selector = resolve_pair(words.pop("method", "tml"))
    selector, preset = words.pop("selector", None) or selector or "dqn", words.pop("preset", "qurate")
    if words.get("config") is None:
        shared = {name: words[name] for name in ("backbone", "weights", "train", "seed", "device") if name in words}
        config = make_config(method=method, selector=selector, **few, **shared)
        if preset == "paper":
            config = with_preset(config, preset)
            rounds = few.get("rounds", config.selection.rounds)
            config = replace(config, selection=replace(config.selection, rounds=rounds))
        words["config"] = config
    words["check_helping"] = words.pop("compare", True)
    with PhaseBars(Console()) as bars:
        model = adapt(source, labeled, unlabeled, audience=bars, **words)
    return SimpleNamespace(model=model, record=model.record)


def read_settings(path: Path) -> dict[str, Any]:
    """The table in a JSON or TOML file."""
    try:
        text = path.read_text(encoding="utf-8")
        data = tomllib.loads(text) if path.suffix == ".toml" else json.loads(text)
    except (OSError, ValueError) as error:
        raise ConfigError(f"{path}: cannot be read as a JSON or TOML file ({error}).") from error
    return dict(data)


def config_from_file(path: Path) -> Any:
    """A run from a JSON or TOML file, or from the config.json of a run."""
    from qurate.config import RunConfig

    data = read_settings(path)
    return _merged(RunConfig(), data.get("run", data))


def _merged(config: Any, data: dict[str, Any]) -> Any:
    parts = {name: getattr(config, name) for name in data}
    return replace(
        config,
        **{
            name: _merged(parts[name], value)
            if isinstance(value, dict)
            else tuple(value)
            if isinstance(value, list)
            else value
            for name, value in data.items()
        },
    )
