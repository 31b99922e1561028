"""Benchmarks with known numbers, as `qurate benchmark` leaves them."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pandas as pd

from qurate.benchmark.outcome import Outcome, read_outcome
from qurate.benchmark.results import COLUMNS, RoundRow, Row

FACTS = {
    "suite": "office31",
    "suite_title": "Office-31",
    "backbone": "timm/tf_efficientnet_lite0.in1k",
    "weights": "/home/somebody/weights/lite0.safetensors",
    "train": "head",
    "protocol": "mme",
    "commit": "abc1234",
}
W, D = "webcam:amazon", "dslr:amazon"


def row(
    scenario: str, method: str, selector: str, seed: int, accuracy: float | None, shots: int = 3, rule: str = "last"
) -> dict[str, Any]:
    """A row of results.csv; accuracy None is a failed run."""
    cell: Any = (
        scenario,
        method,
        selector,
        shots,
        seed,
        rule,
        accuracy,
        accuracy,
        None,
        None,
        1.0,
        "c0ffee",
        "abc1234",
    )
    return asdict(Row(*cell))


def rows(
    scenario: str, method: str, selector: str, *accuracies: float | None, shots: int = 3, rule: str = "last"
) -> list[dict[str, Any]]:
    """One row per seed, from seed 0 on."""
    return [row(scenario, method, selector, seed, a, shots, rule) for seed, a in enumerate(accuracies)]


def in_rounds(scenario: str, selector: str, seed: int, *accuracies: float, shots: int = 3) -> list[dict[str, Any]]:
    """Rows of rounds.csv for TML with a selector; coverage grows by a tenth a round."""
    return [
        asdict(RoundRow(scenario, "tml", selector, shots, seed, i, a, 10 * i, 0.9, i / 10))
        for i, a in enumerate(accuracies)
    ]


def write_grid(
    folder: Path, results: list[dict[str, Any]], rounds: list[dict[str, Any]] | None = None, **facts: str
) -> Path:
    """A folder as `qurate benchmark` leaves it."""
    folder.mkdir(parents=True, exist_ok=True)
    pd.DataFrame(results, columns=list(COLUMNS)).to_csv(folder / "results.csv", index=False)
    if rounds is not None:
        pd.DataFrame(rounds).to_csv(folder / "rounds.csv", index=False)
    (folder / "benchmark.json").write_text(json.dumps({**FACTS, **facts}))
    return folder


def write_failed(
    folder: Path, scenario: str, method: str, selector: str, seed: int, asked: bool = True, **changes: Any
) -> None:
    """A cell that ended with an error, as `qurate benchmark` leaves it; one that the last command asked for, or not."""
    cell = {
        "suite": FACTS["suite"], "scenario": scenario, "shots": 3, "protocol": "mme", "selector": selector,
        "rules": ["last"], "backbone": FACTS["backbone"], "weights": "w",
        "config": {"method": {"name": method}, "seed": seed}, "imbalance": 1, "unknown": 0, "missing_classes": 0,
        "query_strategy": "", **changes,
    }  # fmt: skip
    place = folder / "cells" / f"{abs(hash(json.dumps(cell))):x}"
    place.mkdir(parents=True)
    (place / "config.json").write_text(json.dumps(cell))
    (place / "error.txt").write_text("Traceback\nValueError: no")
    facts = json.loads((folder / "benchmark.json").read_text())
    facts["cells"] = [*facts.get("cells", ()), *([place.name] if asked else ())]
    (folder / "benchmark.json").write_text(json.dumps(facts))


def outcome_of(
    folder: Path, results: list[dict[str, Any]], rounds: list[dict[str, Any]] | None = None, **facts: str
) -> Outcome:
    """Written and read again."""
    return read_outcome(write_grid(folder, results, rounds, **facts))
