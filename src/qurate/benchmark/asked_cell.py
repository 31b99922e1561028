"""A cell in which people are asked: the run that it asks about, and how good it is after each number of labels."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

import pandas as pd
import torch

from qurate.benchmark.asked_samples import ASKED_AT, SAMPLE, right_at
from qurate.benchmark.asking import Stage, ask_in_rounds
from qurate.benchmark.cells import Cell, CellResult, Pretrained, pretrain_once
from qurate.benchmark.results import Row
from qurate.config import RunConfig
from qurate.data.samples import Split
from qurate.evaluation import Annotator, calibration_error, measure, pseudo_label_accuracy, true_labels
from qurate.registry import PLAIN
from qurate.selection.algorithm import fit


@dataclass(frozen=True, eq=False)
class Base:
    """The run before anybody is asked: the same for all askers.

    Args:
        key: Name of the cell that does not ask.
        stage: Where that run ended.
        pretrained: Its line 1.
    """

    key: str
    stage: Stage
    pretrained: Pretrained


def run_asked_cell(
    split: Split,
    cell: Cell,
    config: RunConfig,
    *,
    before: Pretrained | None = None,
    base: Base | None = None,
    commit: str = "unknown",
) -> tuple[CellResult, Base]:
    """Run a cell that asks, and measure it after each round of answers.

    Args:
        split: The data.
        cell: What to run.
        config: The run, with weights where they lie on this machine.
        before: Pre-training of another cell, used if it is the same as this one's.
        base: What another cell went on from, used likewise.
        commit: Of qurate, for the rows.

    Returns:
        The result, and what the next cell may go on from.
    """
    if base is None or base.key != cell.base.name:
        base = run_base(split, cell, config, before)
    person = Annotator(split.target_unlabeled)
    size = cell.ask // cell.ask_rounds
    followed = ask_in_rounds(
        split, base.stage, config, asker=cell.asker, size=size, rounds=cell.ask_rounds, person=person
    )
    stages = [base.stage, *followed]
    rows = tuple(_row(split, cell, stage, number, commit) for number, stage in zip(cell.numbers, stages, strict=True))
    return CellResult(rows, asked=asked_table(split, cell.numbers, stages)), base


def run_base(split: Split, cell: Cell, config: RunConfig, before: Pretrained | None) -> Base:
    """The run that a cell asks after.

    Args:
        split: The data.
        cell: What to run.
        config: The run, with weights where they lie on this machine.
        before: Pre-training of another cell, used if it is the same as this one's.
    """
    shared = pretrain_once(split, cell, config, before)
    began = time.perf_counter()
    done = fit(split, config, pretrained=shared.state)
    steps = config.training.steps + len(done.rounds) * config.selection.round_steps
    stage = Stage.first(split, done, steps, shared.seconds + time.perf_counter() - began)
    return Base(cell.base.name, stage, shared)


def asked_table(split: Split, numbers: Sequence[int], stages: Sequence[Stage]) -> pd.DataFrame:
    """A row for each sample of D_u whose label is known: when it was asked about, and when it was predicted right.

    Args:
        split: Of the beginning.
        numbers: How many labels were asked for at each stage.
        stages: From the first on.
    """
    truth = true_labels(split.target_unlabeled)
    asked_at = torch.zeros(len(truth), dtype=torch.int64)
    for number, stage, earlier in zip(numbers[1:], stages[1:], stages, strict=False):
        asked_at[stage.asked[len(earlier.asked) :]] = number
    columns = {SAMPLE: torch.arange(len(truth)), ASKED_AT: asked_at}
    for number, stage in zip(numbers, stages, strict=True):
        columns[right_at(number)] = (stage.probabilities.argmax(dim=1) == truth).long()
    known = truth >= 0
    return pd.DataFrame({name: values[known].tolist() for name, values in columns.items()})


def _row(split: Split, cell: Cell, stage: Stage, number: int, commit: str) -> Row:
    known, truth = stage.known(), true_labels(split.target_unlabeled)
    metrics = measure(known.argmax(dim=1), truth, split.n_classes)
    positives, left = stage.positives, stage.split.target_unlabeled
    return Row(
        *cell.key(),
        model_selection=cell.rules[0],
        accuracy=metrics.accuracy,
        balanced_accuracy=metrics.balanced_accuracy,
        positives=None if cell.selector in PLAIN else len(positives),
        positives_accuracy=pseudo_label_accuracy(positives.indices, positives.labels, left),
        seconds=stage.seconds,
        config=cell.name,
        commit=commit,
        steps=stage.steps,
        imbalance=cell.imbalance,
        ece=calibration_error(known, truth),
        asker=cell.asker,
        asked=number,
    )
