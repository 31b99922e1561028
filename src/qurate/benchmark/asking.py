"""A cell in which people are asked: ask, learn, ask again. Nothing here sees a label that nobody was asked for."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import repeat
from typing import Protocol

import pandas as pd
import torch
from torch import Tensor

from qurate.active.strategies import Pool, QueryStrategy
from qurate.benchmark.cell import Cell, CellResult, Pretrained, pretrain_once
from qurate.benchmark.folder import ASKED_AT, SAMPLE, right_at
from qurate.benchmark.results import BenchmarkError, Row
from qurate.config import RunConfig
from qurate.data.samples import Split
from qurate.evaluation import (
    Annotator,
    calibration_error,
    measure,
    predict_probabilities,
    pseudo_label_accuracy,
    true_labels,
)
from qurate.methods import Method
from qurate.networks.inference import backbone_output
from qurate.registry import PLAIN, QUERY_STRATEGIES
from qurate.selection.algorithm import Adaptation, fit
from qurate.selection.answered import Previous, answer, shorten
from qurate.selection.pseudo_labels import Positives

NOBODY = "none"
"""The control: a short run without answers, the same in every round."""


class Answers(Protocol):
    """Who is asked."""

    def label(self, indices: Tensor) -> Tensor:
        """The class of each of these samples of D_u, -1 where there is none."""
        ...


@dataclass(frozen=True, eq=False)
class Stage:
    """Where a run stands after some answers.

    Args:
        split: What is left: answered samples are in D_t and no longer in D_u.
        left: Positions in the D_u of the beginning of those that are left, in order.
        method: F and C.
        probabilities: Of all samples of the D_u of the beginning by F and C, (N_u, K).
        positives: D_p, by positions in what is left of D_u.
        asked: Positions in the D_u of the beginning of the samples that were answered, in that order, (n,) int64.
        labels: What was answered, (n,) int64.
        steps: Training steps so far.
        seconds: So far.
    """

    split: Split
    left: Tensor
    method: Method
    probabilities: Tensor
    positives: Positives
    asked: Tensor
    labels: Tensor
    steps: int
    seconds: float

    @classmethod
    def first(cls, split: Split, done: Adaptation, steps: int, seconds: float) -> Stage:
        """Before anybody was asked."""
        nothing = torch.empty(0, dtype=torch.int64)
        inputs = split.target_unlabeled.inputs
        probabilities = predict_probabilities(done.method, inputs)
        return cls(
            split,
            torch.arange(len(inputs)),
            done.method,
            probabilities,
            done.positives,
            nothing,
            nothing,
            steps,
            seconds,
        )

    @property
    def weights(self) -> Mapping[str, Tensor]:
        """Of F and C."""
        weights: Mapping[str, Tensor] = self.method.state_dict()
        return weights

    def known(self) -> Tensor:
        """The probabilities, where an answer is certain, (N_u, K)."""
        known, named = self.probabilities.clone(), self.labels >= 0
        known[self.asked[named]] = 0.0
        known[self.asked[named], self.labels[named]] = 1.0
        return known


def ask_in_rounds(
    split: Split, first: Stage, config: RunConfig, *, asker: str, size: int, rounds: int, person: Answers
) -> Iterator[Stage]:
    """Ask for labels and learn from them, round after round; what a round does depends on no later one.

    Args:
        split: Of the beginning.
        first: The finished run to ask about first.
        config: Of that run.
        asker: A name of `qurate.QUERY_STRATEGIES`, or 'none'.
        size: Labels that each round asks for.
        rounds: How many.
        person: Who answers.

    Raises:
        BenchmarkError: If the query strategy has fewer images to ask about.
    """
    stage = first
    if asker == NOBODY:
        nothing = torch.empty(0, dtype=torch.int64)
        stage = learn(split, first, config, nothing, person.label(nothing), time.perf_counter())
        yield from repeat(stage, rounds)
        return
    chooser: QueryStrategy = QUERY_STRATEGIES.find(asker).load()()
    for number in range(1, rounds + 1):
        began = time.perf_counter()
        new = chooser.ask(pool_of(split, stage), size, config.seed)
        if len(new) < size:
            raise BenchmarkError(
                f"asker '{asker}' finds {len(new)} images to ask about in round {number}, which asks for {size}. "
                "Ask for fewer labels."
            )
        stage = learn(split, stage, config, new, person.label(new), began)
        yield stage


def pool_of(split: Split, stage: Stage) -> Pool:
    """What a query strategy sees.

    Args:
        split: Of the beginning.
        stage: Where the run stands.
    """
    n = len(stage.probabilities)
    closed, trusted = torch.zeros(n, dtype=torch.bool), torch.full((n,), -1)
    closed[stage.asked] = True
    trusted[stage.left[stage.positives.indices]] = stage.positives.labels
    features = backbone_output(stage.method.network, split.target_unlabeled.inputs)
    return Pool(features, stage.known(), trusted, closed)


def learn(
    split: Split,
    stage: Stage,
    config: RunConfig,
    new: Tensor,
    labels: Tensor,
    began: float,
    *,
    true_rewards: bool = True,
) -> Stage:
    """A run that learns from the answers to some more samples, too.

    Args:
        split: Of the beginning.
        stage: Before the answers.
        config: Of the run.
        new: Positions in the D_u of the beginning, (n,) int64.
        labels: What was answered, (n,) int64.
        began: When the round did, by `time.perf_counter`.
        true_rewards: Whether an agent is rewarded by the answers before it begins.
    """
    after = answer(stage.split, torch.searchsorted(stage.left, new), labels)
    previous = Previous(stage.weights, after.keep(stage.positives), after.joined, true_rewards=true_rewards)
    done = fit(after.split, config, previous=previous)
    short = shorten(config)
    steps = short.training.steps + len(done.rounds) * short.selection.round_steps
    return Stage(
        after.split,
        stage.left[after.kept],
        done.method,
        predict_probabilities(done.method, split.target_unlabeled.inputs),
        done.positives,
        torch.cat([stage.asked, new]),
        torch.cat([stage.labels, labels]),
        stage.steps + steps,
        stage.seconds + time.perf_counter() - began,
    )


@dataclass(frozen=True, eq=False)
class Base:
    """The run before anybody is asked: the same for all query strategies.

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
