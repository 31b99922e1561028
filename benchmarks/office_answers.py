"""Finished runs on Office-31 and answers to their questions, for the measurements beside this file."""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import mean

import torch
from torch import Tensor

from qurate.active.strategies import DensityStrategy
from qurate.benchmark.asking import Stage, pool_of, run_base
from qurate.benchmark.executors import Worker
from qurate.benchmark.grid import Grid
from qurate.config import RunConfig
from qurate.data.samples import Split
from qurate.data.suites import load_suite
from qurate.evaluation import Annotator, measure, true_labels
from qurate.networks.backbone_names import find_weights
from qurate.runtime.machine import keep_freed_memory

REPOSITORY = Path(__file__).resolve().parents[1]
DATA = Path(os.environ.get("QURATE_DATA") or REPOSITORY.parent / "shared" / "data") / "office31"
BACKBONE = "timm/tf_efficientnet_lite0"
SCENARIOS = ("webcam:amazon", "dslr:amazon")
SIZE, ROUNDS = 31, 2


@dataclass(frozen=True, eq=False)
class Asked:
    """A finished run, and people to ask.

    Args:
        split: Of the beginning.
        config: Of the run.
        first: Where it ended.
        person: Who answers.
    """

    split: Split
    config: RunConfig
    first: Stage
    person: Annotator

    @classmethod
    def begin(cls, scenario: str, selector: str, seed: int) -> Asked:
        """Run TML with a selector to its end."""
        suite = load_suite("office31")
        weights = find_weights(BACKBONE, "auto")
        grid = Grid(
            suite,
            DATA,
            scenarios=(scenario,),
            methods=(f"tml+{selector}",),
            seeds=(seed,),
            backbone=BACKBONE,
            weights=weights,
            askers=("density",),
            ask=SIZE * ROUNDS,
            ask_rounds=ROUNDS,
        )
        (cell,) = grid.cells()
        worker = Worker(suite, DATA, weights)
        split, config = worker.load(cell), worker.localize(cell.config)
        return cls(split, config, run_base(split, cell, config, None).stage, Annotator(split.target_unlabeled))

    def ask(self, stage: Stage) -> tuple[Tensor, Tensor]:
        """Positions and labels of the images that `density` asks about next."""
        new = DensityStrategy().ask(pool_of(self.split, stage), SIZE, self.config.seed)
        return new, self.person.label(new)

    def accuracy(self, stage: Stage) -> float:
        """In percent on all of D_u, where answered images count as right."""
        truth = true_labels(self.split.target_unlabeled)
        return 100 * measure(stage.known().argmax(dim=1), truth, self.split.n_classes).accuracy


def parse(doc: str | None) -> list[int]:
    """The seeds that the command line names; one thread from here on."""
    parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", default="0,1,2,3,4", metavar="A,B,...")
    torch.set_num_threads(1)
    keep_freed_memory()
    return [int(seed) for seed in parser.parse_args().seeds.split(",")]


def print_rows(heads: Sequence[str], run: Callable[[str, int], list[float]], seeds: Sequence[int]) -> None:
    """A row for each scenario and seed as it ends, and their means; columns of seconds have no decimals.

    Args:
        heads: Of the columns.
        run: Gives the numbers of a scenario and seed.
        seeds: Of the runs.
    """
    print(f"| | {' | '.join(heads)} |\n|---|{'---:|' * len(heads)}")
    rows = []
    for scenario in SCENARIOS:
        for seed in seeds:
            rows.append(run(scenario, seed))
            _print_row(f"{scenario} seed {seed}", heads, rows[-1])
    _print_row("mean", heads, [mean(column) for column in zip(*rows, strict=True)])


def _print_row(title: str, heads: Sequence[str], row: Sequence[float]) -> None:
    cells = [f"{value:.{0 if 'seconds' in head else 1}f}" for head, value in zip(heads, row, strict=True)]
    print(f"| {title} | {' | '.join(cells)} |", flush=True)


def now() -> float:
    return time.perf_counter()
