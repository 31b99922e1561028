"""Configs as plain tables: read from files, written and named by their content."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
import tomllib
from pathlib import Path
from typing import Any

from qurate.errors import ConfigError
from qurate.runtime.checked import show


def read_settings(path: Path | str) -> dict[str, Any]:
    """The table in a JSON or TOML file.

    Raises:
        ConfigError: If there is none.
    """
    if not isinstance(path, str | os.PathLike):
        raise ConfigError(f"a file of settings must be given by its path, got {show(path)}.")
    file = Path(path)
    try:
        text = file.read_text(encoding="utf-8")
        data = tomllib.loads(text) if file.suffix.lower() == ".toml" else json.loads(text)
    except (OSError, ValueError, RecursionError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise ConfigError(f"{file}: cannot be read as a JSON or TOML file ({reason}).") from error
    if not isinstance(data, dict):
        raise ConfigError(f"{file}: must hold a table of settings, got {type(data).__name__}.")
    return data


def to_dict(config: Any) -> dict[str, Any]:
    """A config dataclass as plain nested dictionaries."""
    return dataclasses.asdict(config)


def fingerprint(config: Any) -> str:
    """A name for a config, or for what `to_dict` made of it: twelve hex digits of the hash of its canonical JSON."""
    plain = config if isinstance(config, dict) else to_dict(config)
    canonical = json.dumps(plain, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(canonical.encode()).hexdigest()[:12]
