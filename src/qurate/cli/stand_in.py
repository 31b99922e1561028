"""Stands in for `qurate.runs.adaptation.run_adaptation`, which is being built: model and record of an adaptation."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any


def run_adaptation(source: Path, labeled: Path, unlabeled: Path, **words: Any) -> Any:
    """Model and record of an adaptation; words as those of `qurate.adapt`."""
    from rich.console import Console

    from qurate.config import NetworkConfig
    from qurate.presets import make_config
    from qurate.runs.adaptation import adapt
    from qurate.runs.settings import BACKBONE, find_weights
    from qurate.runtime.progress import PhaseBars

    words.pop("progress", None)
    backbone = words.get("backbone", BACKBONE)
    words["weights"] = find_weights(backbone, words.get("weights", "auto"))
    names = ("method", "selector", "preset", "steps", "rounds")
    few = {name: words.pop(name) for name in names if name in words}
    if words.get("config") is None:
        full = NetworkConfig(backbone, words["weights"], "normalized")
        shared = {name: words[name] for name in ("seed", "device") if name in words}
        words["config"] = make_config(network=full if words.get("train") == "full" else None, **few, **shared)
    words["check_helping"] = words.pop("compare", True)
    with PhaseBars(Console()) as bars:
        model = adapt(source, labeled, unlabeled, audience=bars, **words)
    return SimpleNamespace(model=model, record=model.record)
