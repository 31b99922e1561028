"""The embedded example: the paper's main rows from typeset to handwritten digits."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from rich.console import Console

from qurate.benchmark.cells import run_cell
from qurate.benchmark.results import Row, write_results
from qurate.config import MethodConfig, NetworkConfig, RunConfig, SelectionConfig, TrainingConfig
from qurate.data.digits import digits_split
from qurate.errors import ConfigError
from qurate.presets import POSITIVE_SHARE, with_preset
from qurate.runtime.display import make_table, step_bar
from qurate.selection.algorithm import total_steps

SCENARIO = "typeset to handwritten"
SHOTS = 3
ROWS = {
    "S+T": ("source_target", "none"),
    "ENT": ("ent", "none"),
    "MME": ("mme", "none"),
    "TML": ("tml", "none"),
    "TML_SPL": ("tml", "confidence"),
    "TML_DQNPL": ("tml", "dqn"),
}
"""Title of a row, its method and its selector."""


def digits_config(method: str, *, selector: str = "none", seed: int, steps: int = 400) -> RunConfig:
    """A run on the digits pair: the small CNN from random weights with the normalized bottleneck."""
    config = RunConfig(
        network=NetworkConfig(backbone="digits", bottleneck="normalized", features=64),
        method=MethodConfig(name=method),
        training=TrainingConfig(steps=steps, positive_share=POSITIVE_SHARE),
        selection=SelectionConfig(selector=selector),
        seed=seed,
    )
    if selector == "dqn":
        config = with_preset(config, "qurate")
    rounds = replace(config.selection, rounds=4, round_steps=max(1, steps // 4))
    return replace(config, selection=rounds)


def run_demo(out: Path, *, seed: int, force: bool, console: Console) -> list[Row]:
    """Run every row on the same split, show progress, print a table, write `out/results.csv`."""
    results = out / "results.csv"
    if results.exists() and not force:
        raise ConfigError(f"{results} exists. Choose another --out, or pass --force to overwrite it.")
    split = digits_split(shots=SHOTS, seed=seed)
    console.print(
        f"Source: {len(split.source)} typeset digits, all labelled. Target: handwritten digits, "
        f"{len(split.target_labeled)} labelled ({SHOTS} a class), {len(split.target_unlabeled)} unlabelled."
    )
    rows: list[Row] = []
    for title, (method, selector) in ROWS.items():
        config = digits_config(method, selector=selector, seed=seed)
        with step_bar(console, title, total_steps(config)) as on_step:
            rows.append(run_cell(split, config, scenario=SCENARIO, shots=SHOTS, on_step=on_step))
        console.print(f"{title:<9} {rows[-1].accuracy:.1%} in {rows[-1].seconds:.0f} s")
        write_results(rows, results)
    cells = [_cells(title, row) for title, row in zip(ROWS, rows, strict=True)]
    columns = ("method", "accuracy", "balanced", "positives", "of them right", "seconds")
    console.print(make_table(f"{SCENARIO}, {SHOTS} labels a class, seed {seed}", columns, cells))
    console.print(f"Accuracy is measured on the hidden labels of the unlabelled target. Results: {results}")
    return rows


def _cells(title: str, row: Row) -> tuple[str, ...]:
    positives = "" if row.positives is None else str(row.positives)
    right = "" if row.positives_accuracy is None else f"{row.positives_accuracy:.1%}"
    return (title, f"{row.accuracy:.1%}", f"{row.balanced_accuracy:.1%}", positives, right, f"{row.seconds:.0f}")
