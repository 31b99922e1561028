"""A cell in which people are asked: ask, learn, ask again. Nothing here sees a label that nobody was asked for."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import repeat

import pandas as pd
import torch
from torch import Tensor

from qurate.active.pool import Pool
from qurate.active.strategies import QueryStrategy
from qurate.benchmark.cell import Cell, CellResult, Pretrained, device_of, judge, shared_pretraining, steps_of
from qurate.benchmark.folder import ASKED_AT, SAMPLE, right_at
from qurate.benchmark.options import NOBODY
from qurate.benchmark.results import BenchmarkError, Row
from qurate.config import RunConfig
from qurate.data.samples import UNKNOWN, Split
from qurate.evaluation import (
    Annotator,
    certainty,
    predict_probabilities,
    pseudo_label_accuracy,
    true_labels,
)
from qurate.methods import Method
from qurate.networks.inference import backbone_output
from qurate.registry import PLAIN, QUERY_STRATEGIES
from qurate.selection.algorithm import fit
from qurate.selection.answered import Previous, answer, fit_with_answers, shorten
from qurate.selection.pseudo_labels import Positives


@dataclass(frozen=True, eq=False)
class QueryState:
    """A run after some answers. Positions are those in the D_u of the beginning, unless said otherwise.

    Args:
        split: What is left: answered samples are in D_t and no longer in D_u.
        left: Positions of the samples that are left in D_u, in order.
        method: F and C.
        probabilities: Of all samples of the D_u of the beginning by F and C, (N_u, K).
        positives: D_p, by positions in what is left of D_u.
        asked: Positions of the samples that were answered, in the order of the answers, (n,) int64.
        labels: The answers, (n,) int64.
        steps: Training steps so far.
        seconds: So far.
        baseline: Probabilities of the same samples by the S+T of the first run, (N_u, K); None where it trained none.
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
    baseline: Tensor | None = None

    def fit_of(self, probabilities: Tensor) -> Tensor:
        """How well each sample fits any class by these probabilities: not at all where an answer says so, (N_u,)."""
        found = certainty(probabilities)
        found[self.asked[self.labels == UNKNOWN]] = -1.0  # of no class at all; others are above
        return found

    def known(self) -> Tensor:
        """The probabilities, where an answer is certain, (N_u, K)."""
        known, named = self.probabilities.clone(), self.labels >= 0
        known[self.asked[named]] = 0.0
        known[self.asked[named], self.labels[named]] = 1.0
        return known


@dataclass(frozen=True, eq=False)
class BaseRun:
    """The run before anybody is asked: the same for all query strategies.

    Args:
        key: Name of the cell that does not ask.
        state: Where that run ended.
        pretrained: Its line 1.
    """

    key: str
    state: QueryState
    pretrained: Pretrained


def run_query_cell(
    split: Split,
    cell: Cell,
    config: RunConfig,
    base: BaseRun | None = None,
    before: Pretrained | None = None,
    commit: str = "unknown",
) -> tuple[CellResult, BaseRun]:
    """Run a cell that asks, and measure it after each round of answers.

    Args:
        split: The data.
        cell: What to run.
        config: The run, with weights where they lie on this machine.
        base: What another cell began with, used if it is the same as this one's.
        before: Pre-training of another cell, used likewise.
        commit: Of qurate, for the rows.

    Returns:
        The result, and what the next cell may begin with.
    """
    if base is None or base.key != cell.base.name:
        base = run_base(split, cell, config, before)
    states = [base.state, *ask_in_rounds(split, base.state, cell, config, Annotator(split.target_unlabeled))]
    counts = cell.label_counts
    rows = tuple(_row(split, cell, state, count, commit) for count, state in zip(counts, states, strict=True))
    return CellResult(rows, asked=query_table(split, counts, states)), base


def run_base(split: Split, cell: Cell, config: RunConfig, before: Pretrained | None = None) -> BaseRun:
    """The run after which a cell asks; see `run_query_cell`."""
    pretrained = shared_pretraining(cell, before)
    began = time.perf_counter() - pretrained.seconds  # 0 until it is done
    done = fit(split, config, pretrained=pretrained)
    nothing, inputs = torch.empty(0, dtype=torch.int64), split.target_unlabeled.inputs
    state = QueryState(
        split=split,
        left=torch.arange(len(inputs)),
        method=done.method,
        probabilities=predict_probabilities(done.method, inputs),
        positives=done.positives,
        asked=nothing,
        labels=nothing,
        steps=steps_of(config, len(done.rounds)),
        seconds=time.perf_counter() - began,
        baseline=None if pretrained.baseline is None else pretrained.baseline.exp(),
    )
    return BaseRun(cell.base.name, state, pretrained)


def ask_in_rounds(
    split: Split, first: QueryState, cell: Cell, config: RunConfig, annotator: Annotator
) -> Iterator[QueryState]:
    """Ask for labels and learn from them, round after round; what a round does depends on no later one.

    Args:
        split: Of the beginning.
        first: The finished run to ask about first.
        cell: Says which query strategy asks for how many labels in how many rounds.
        config: Of that run.
        annotator: Answers.

    Raises:
        BenchmarkError: If the query strategy has fewer images to ask about.
    """
    if cell.query_strategy == NOBODY:
        nothing = torch.empty(0, dtype=torch.int64)
        state = _learn(split, first, config, nothing, annotator.label(nothing), time.perf_counter())
        yield from repeat(state, cell.ask_rounds)
        return
    strategy: QueryStrategy = QUERY_STRATEGIES.find(cell.query_strategy).load()()
    state, size = first, cell.ask // cell.ask_rounds
    for number in range(1, cell.ask_rounds + 1):
        began = time.perf_counter()
        new = strategy.ask(pool_of(split, state), size, config.seed)
        if len(new) < size:
            raise BenchmarkError(
                f"query strategy '{cell.query_strategy}' finds {len(new)} images to ask about in round {number}, "
                f"which asks for {size}. "
                "Ask for fewer labels."
            )
        state = _learn(split, state, config, new, annotator.label(new), began)
        yield state


def pool_of(split: Split, state: QueryState) -> Pool:
    """What a query strategy sees of a run; `split` is that of the beginning."""
    n = len(state.probabilities)
    closed, trusted = torch.zeros(n, dtype=torch.bool), torch.full((n,), -1)
    closed[state.asked] = True
    trusted[state.left[state.positives.indices]] = state.positives.labels
    features = backbone_output(state.method.network, split.target_unlabeled.inputs)
    return Pool(features, state.known(), trusted, closed, state.baseline)


def _learn(split: Split, state: QueryState, config: RunConfig, new: Tensor, labels: Tensor, began: float) -> QueryState:
    """A run that also learns from the answers to samples `new`; the round began at `began`, by `time.perf_counter`."""
    after = answer(state.split, torch.searchsorted(state.left, new), labels.clamp(min=-1))
    previous = Previous(state.method.state_dict(), after.keep(state.positives), after.joined)
    done = fit_with_answers(after.split, config, previous)
    return QueryState(
        split=after.split,
        left=state.left[after.kept],
        method=done.method,
        probabilities=predict_probabilities(done.method, split.target_unlabeled.inputs),
        positives=done.positives,
        asked=torch.cat([state.asked, new]),
        labels=torch.cat([state.labels, labels]),
        steps=state.steps + steps_of(shorten(config), len(done.rounds)),
        seconds=state.seconds + time.perf_counter() - began,
        baseline=state.baseline,
    )


def query_table(split: Split, counts: Sequence[int], states: Sequence[QueryState]) -> pd.DataFrame:
    """A row for each sample of D_u whose label is known: when it was asked about, and when it was predicted right.

    Args:
        split: Of the beginning.
        counts: How many labels were asked for at each state.
        states: From the first on.
    """
    truth = true_labels(split.target_unlabeled)
    asked_at = torch.zeros(len(truth), dtype=torch.int64)
    for count, state, earlier in zip(counts[1:], states[1:], states, strict=False):
        asked_at[state.asked[len(earlier.asked) :]] = count
    columns = {SAMPLE: torch.arange(len(truth)), ASKED_AT: asked_at}
    for count, state in zip(counts, states, strict=True):
        columns[right_at(count)] = (state.probabilities.argmax(dim=1) == truth).long()
    known = truth >= 0
    return pd.DataFrame({name: values[known].tolist() for name, values in columns.items()})


def _row(split: Split, cell: Cell, state: QueryState, count: int, commit: str) -> Row:
    known, truth = state.known(), true_labels(split.target_unlabeled)
    measures = judge(known, truth, known=state.fit_of(known))
    positives, left = state.positives, state.split.target_unlabeled
    return Row(
        **cell.key(),
        model_selection=cell.rules[0],
        **dataclasses.asdict(measures),
        positives=None if cell.selector in PLAIN else len(positives),
        positives_accuracy=pseudo_label_accuracy(positives.indices, positives.labels, left),
        seconds=state.seconds,
        config=cell.name,
        commit=commit,
        steps=state.steps,
        query_strategy=cell.query_strategy,
        asked=count,
        device=device_of(state.method),
    )
