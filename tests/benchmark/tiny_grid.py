"""A grid of seconds, and ways to run it."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from qurate.benchmark.cell import Cell, CellResult
from qurate.benchmark.executors import CellRunner, Executor, run_cells
from qurate.benchmark.folder import BenchmarkFolder
from qurate.benchmark.grid import Grid
from qurate.benchmark.options import GridOptions
from qurate.config import ExecutionConfig
from qurate.data.digits import digits_split
from qurate.data.samples import SealedLabels, Split, Unlabeled, take
from qurate.data.suites import load_suite
from qurate.evaluation import true_labels

DIGITS = load_suite("digits")


def tiny_grid(**changes: Any) -> Grid:
    about: dict[str, Any] = {
        "methods": ("source_target", "ent"),
        "selectors": ("none", "random"),
        "seeds": (0,),
        "steps": 6,
    }
    return Grid(DIGITS, GridOptions("digits", **(about | changes)), ExecutionConfig(device="cpu"))


def small_split(shots: int = 3, seed: int = 0) -> Split:
    """The digits pair with less of everything."""
    split = digits_split(shots=shots, seed=seed, source_per_class=10, validation_shots=2)
    assert split.target_unlabeled.sealed is not None
    labels = SealedLabels(true_labels(split.target_unlabeled)[:200])
    return replace(split, target_unlabeled=Unlabeled(take(split.target_unlabeled.inputs, torch.arange(200)), labels))


class SmallRunner(CellRunner):
    """Runs cells on the small split."""

    def __init__(self) -> None:
        super().__init__(DIGITS, None, "none")

    def read(self, cell: Cell) -> Split:
        return small_split(cell.shots, cell.config.seed)


class InlineExecutor:
    """Runs cells at once, in this process."""

    def __init__(self, runner: CellRunner | None = None) -> None:
        self.runner = runner or SmallRunner()
        self.ran: list[Cell] = []

    def submit(self, cell: Cell) -> Future[CellResult]:
        self.ran.append(cell)
        future: Future[CellResult] = Future()
        future.set_result(self.runner.run(cell))
        return future

    def close(self) -> None:
        pass


class Silent:
    """An monitor that does not care."""

    def started(self, cell: Cell) -> None:
        pass

    def ended(self, cell: Cell, result: CellResult) -> None:
        pass


class DiesOnce(SmallRunner):
    """Is ended by a signal when it is given a cell for the first time."""

    def __init__(self, marker: Path, by: signal.Signals = signal.SIGKILL) -> None:
        super().__init__()
        self.marker = marker
        self.by = by

    def run(self, cell: Cell) -> CellResult:
        if not self.marker.exists():
            self.marker.touch()
            os.kill(os.getpid(), self.by)
            time.sleep(1)
        return super().run(cell)


def run_grid(grid: Grid, out: Path, executors: Sequence[Executor] | None = None) -> list[Cell]:
    """The cells that failed."""
    return run_cells(grid.cells(), executors or [InlineExecutor()], BenchmarkFolder(out), Silent())


def tables(out: Path) -> tuple[str, str]:
    """results.csv without its seconds, and rounds.csv, to the byte; a commit may be made while tests run."""
    lines = [line.split(",") for line in (out / "results.csv").read_text().splitlines()]
    left_out = {lines[0].index("seconds"), lines[0].index("commit")}
    kept = [",".join(word for i, word in enumerate(line) if i not in left_out) for line in lines]
    return "\n".join(kept), (out / "rounds.csv").read_text()
