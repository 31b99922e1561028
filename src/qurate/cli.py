"""The command line: one function a verb. Imported by nobody."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import tyro
from rich.console import Console

from qurate.backbones import BackboneError
from qurate.benchmark.demo import METHODS as DEMO_METHODS
from qurate.benchmark.demo import SCENARIO, SHOTS, digits_config, run_method
from qurate.benchmark.results import write_results
from qurate.data.digits import digits_split
from qurate.data.domains import DataError
from qurate.display import make_table, step_bar
from qurate.methods import METHODS
from qurate.training import TrainingError


def demo(
    out: Annotated[Path, tyro.conf.arg(metavar="DIR")] = Path("demo"),
    seed: int = 0,
    force: bool = False,
) -> None:
    """Train four methods from typeset to handwritten digits and compare them. No download.

    Args:
        out: Folder for results.csv.
        seed: Decides data, weights and batches; the same seed gives the same numbers on CPU.
        force: Overwrite DIR/results.csv if it is there.
    """
    console = Console()
    results = out / "results.csv"
    if results.exists() and not force:
        raise FileExistsError(f"{results} exists. Choose another --out, or pass --force to overwrite it.")
    split = digits_split(shots=SHOTS, seed=seed)
    console.print(
        f"Source: {len(split.source)} typeset digits, all labelled. Target: handwritten digits, "
        f"{len(split.target_labeled)} labelled ({SHOTS} a class), {len(split.target_unlabeled)} unlabelled."
    )
    rows = []
    for method in DEMO_METHODS:
        config = digits_config(method, seed=seed)
        with step_bar(console, METHODS[method].title, config.training.steps) as on_step:
            rows.append(run_method(split, config, on_step=on_step))
        console.print(f"{METHODS[method].title:<5} {rows[-1].accuracy:.1%} in {rows[-1].seconds:.0f} s")
        write_results(rows, results)
    columns = ("method", "accuracy", "balanced", "seconds")
    cells = [
        (METHODS[r.method].title, f"{r.accuracy:.1%}", f"{r.balanced_accuracy:.1%}", f"{r.seconds:.0f}") for r in rows
    ]
    console.print(make_table(f"{SCENARIO}, {SHOTS} labels a class, seed {seed}", columns, cells))
    console.print(f"Accuracy is measured on the hidden labels of the unlabelled target. Results: {results}")


def main() -> None:
    """Entry point of `qurate`."""
    verbs = {"demo": demo}
    try:
        tyro.extras.subcommand_cli_from_dict(verbs, prog="qurate", description="Adapt an image classifier.")
    except (BackboneError, DataError, TrainingError, FileExistsError) as error:
        Console(stderr=True).print(f"[red]qurate: {error}[/red]", highlight=False)
        sys.exit(2)
    except KeyboardInterrupt:
        Console(stderr=True).print("qurate: stopped.")
        sys.exit(130)
