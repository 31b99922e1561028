"""The embedded example: the paper's main rows from typeset to handwritten digits."""

from __future__ import annotations

from pathlib import Path

from rich.console import Console

from qurate.benchmark.cell import Cell, Pretrained, run_cell
from qurate.benchmark.folder import check_writable
from qurate.benchmark.grid import Grid
from qurate.benchmark.options import GridOptions
from qurate.benchmark.results import BenchmarkError, Row, rows_to_csv, write_file
from qurate.data.digits import digits_split
from qurate.data.samples import Split
from qurate.data.suites import load_suite
from qurate.registry import row_title
from qurate.runtime.progress import PhaseBars, make_table
from qurate.selection.callbacks import StepCount

SHOTS = 3
ROWS = ("S+T", "ENT", "MME", "TML", "TML_SPL", "tml+adaptive", "TML_DQNPL")
"""As the paper's tables call them, with the default of `adapt` among them."""


def run_demo(out: Path, *, seed: int, force: bool, console: Console, steps: int) -> list[Row]:
    """Run every row on the same split, show progress, print a table, write `out/results.csv`.

    Args:
        out: Folder for results.csv.
        seed: Decides data, weights and batches.
        force: Overwrite the file if it exists.
        console: Where to write.
        steps: Training steps before selection.

    Raises:
        BenchmarkError: If there is a file already.
    """
    results = out / "results.csv"
    if results.exists() and not force:
        raise BenchmarkError(f"{results} exists. Choose another `out`, or pass `force=True` to overwrite it.")
    check_writable(out)
    options = GridOptions("digits", methods=ROWS, selectors=("none",), shots=(SHOTS,), seeds=(seed,), steps=steps)
    grid = Grid(load_suite("digits"), options)
    split = digits_split(shots=SHOTS, seed=seed)
    console.print(
        f"Source: {len(split.source)} typeset digits, all labelled. Target: handwritten digits, "
        f"{len(split.target_labeled)} labelled ({SHOTS} per class), {len(split.target_unlabeled)} unlabelled."
    )
    rows: list[Row] = []
    pretrained: Pretrained | None = None
    with PhaseBars(console) as bars:
        for cell in grid.cells():
            row, pretrained = _run(split, cell, pretrained, bars)
            rows.append(row)
            write_file(results, rows_to_csv(rows))
    columns = ("method", "accuracy", "balanced", "positives", "share correct", "seconds")
    console.print(
        make_table(
            f"typeset to handwritten, {SHOTS} labels per class, seed {seed}", columns, [_texts(row) for row in rows]
        )
    )
    console.print(f"Accuracy is measured on the hidden labels of the unlabelled target. Results: {results}")
    return rows


def _run(split: Split, cell: Cell, before: Pretrained | None, bars: PhaseBars) -> tuple[Row, Pretrained]:
    title = row_title(cell.config.method.name, cell.selector)
    steps = StepCount(bars, title, cell.config.total_steps)
    result, pretrained = run_cell(split, cell, cell.config, before=before, callbacks=(steps,))
    return result.rows[0], pretrained


def _texts(row: Row) -> tuple[str, ...]:
    positives = "" if row.positives is None else str(row.positives)
    right = "" if row.positives_accuracy is None else f"{row.positives_accuracy:.1%}"
    accuracies = f"{row.accuracy:.1%}", f"{row.balanced_accuracy:.1%}"
    return (row_title(row.method, row.selector), *accuracies, positives, right, f"{row.seconds:.0f}")
