"""One cell of a comparison: a method with a selector on a split, measured on the hidden labels."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import time
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from torch import Tensor

from qurate.benchmark.commit import current_commit
from qurate.benchmark.points import Watch, steps_to_look
from qurate.benchmark.results import RoundRow, Row
from qurate.config import RunConfig, fingerprint
from qurate.data.catalog import Protocol
from qurate.data.samples import Split
from qurate.evaluation import evaluate, pseudo_label_accuracy, true_labels
from qurate.selection.algorithm import OnEvent, adapt
from qurate.selection.selectors import OracleSelector, Selector
from qurate.training import OnStep


@dataclass(frozen=True)
class Cell:
    """All that decides one result; its fingerprint names its folder.

    Args:
        suite: Name of the suite.
        scenario: 'source:target'.
        shots: Labelled target samples of each class.
        protocol: How the target is split.
        selector: Name of the selector; 'dqn' and 'dqn_paper' are two presets of one.
        rules: Rules of model selection to report.
        backbone: That embeds the images, or that is trained.
        weights: What its weights are, wherever they lie.
        config: The run.
    """

    suite: str
    scenario: str
    shots: int
    protocol: Protocol
    selector: str
    rules: tuple[str, ...]
    backbone: str
    weights: str
    config: RunConfig

    @cached_property
    def name(self) -> str:
        """The fingerprint."""
        return fingerprint(self)

    @cached_property
    def pretraining(self) -> str:
        """What is equal for cells that differ in selection alone: they can share line 1."""
        about = dataclasses.asdict(self)
        for part in ("selector", "rules"):
            del about[part]
        del about["config"]["selection"], about["config"]["training"]["positive_share"]
        about["validation"] = "validation" in self.rules  # decides what is drawn for D_u
        return hashlib.sha256(json.dumps(about, sort_keys=True).encode()).hexdigest()

    def title(self) -> str:
        """For people."""
        method, seed = self.config.method.name, self.config.seed
        return f"{self.scenario} {self.shots}-shot {method} {self.selector} seed {seed}"


@dataclass(frozen=True, eq=False)
class CellResult:
    """What came of a cell.

    Args:
        rows: One a rule.
        rounds: One a round, if it has a selector.
        error: The traceback, if it failed.
    """

    rows: tuple[Row, ...] = ()
    rounds: tuple[RoundRow, ...] = ()
    error: str = ""


@dataclass(frozen=True, eq=False)
class Pretrained:
    """Line 1 of Algorithm 1, done: the trainer's state and what it took."""

    key: str
    state: Mapping[str, Tensor]
    seconds: float


def measure_cell(
    split: Split, cell: Cell, config: RunConfig, before: Pretrained | None, commit: str
) -> tuple[CellResult, Pretrained]:
    """Run a cell and measure its models by all its rules.

    Args:
        split: The data.
        cell: What to run.
        config: The run, with weights where they lie on this machine.
        before: Pre-training of another cell, used if it is the same as this one's.
        commit: Of qurate, for the rows.

    Returns:
        The result, and the pre-training for the next cell.
    """
    began = time.perf_counter()
    shared = before if before is not None and before.key == cell.pretraining else None
    looks = steps_to_look(config, cell.rules)
    if looks:
        shared = None  # its models on the way are wanted
    watch = Watch(split, cell.rules, steps=looks, keep=shared is None)
    pretraining = 0.0

    def on_event(event: Any) -> None:
        nonlocal pretraining
        if event.line == 2:
            pretraining = time.perf_counter() - began
        watch.on_event(event)

    oracle = OracleSelector(true_labels(split.target_unlabeled)) if cell.selector == "oracle" else None
    adapt(
        split,
        config,
        selector=oracle,
        on_event=on_event,
        on_step=watch.on_step,
        pretrained=None if shared is None else shared.state,
    )
    seconds = time.perf_counter() - began + (0.0 if shared is None else shared.seconds)
    result = CellResult(_rows(cell, watch, seconds, commit), _rounds(cell, watch, len(split.target_unlabeled)))
    if shared is None:
        assert watch.pretrained is not None, "adapt tells of line 2"
        shared = Pretrained(cell.pretraining, watch.pretrained, pretraining)
    return result, shared


def _rows(cell: Cell, watch: Watch, seconds: float, commit: str) -> tuple[Row, ...]:
    rows = []
    for rule in cell.rules:
        point = watch.chosen(rule)
        rows.append(
            Row(
                scenario=cell.scenario,
                method=cell.config.method.name,
                selector=cell.selector,
                shots=cell.shots,
                seed=cell.config.seed,
                model_selection=rule,
                accuracy=point.accuracy,
                balanced_accuracy=point.balanced_accuracy,
                positives=None if cell.selector == "none" else point.positives,
                positives_accuracy=point.positives_accuracy,
                seconds=seconds,
                config=cell.name,
                commit=commit,
            )
        )
    return tuple(rows)


def _rounds(cell: Cell, watch: Watch, n_unlabeled: int) -> tuple[RoundRow, ...]:
    if cell.selector == "none":
        return ()
    return tuple(
        RoundRow(
            scenario=cell.scenario,
            method=cell.config.method.name,
            selector=cell.selector,
            shots=cell.shots,
            seed=cell.config.seed,
            round=number,
            accuracy=point.accuracy,
            positives=point.positives,
            positives_accuracy=point.positives_accuracy,
            coverage=point.positives / n_unlabeled,
        )
        for number, point in enumerate(watch.points)
    )


def run_cell(
    split: Split,
    config: RunConfig,
    *,
    scenario: str,
    shots: int,
    selector_name: str | None = None,
    selector: Selector | None = None,
    on_event: OnEvent | None = None,
    on_step: OnStep | None = None,
) -> Row:
    """Run Algorithm 1 with a config and measure its last model.

    Args:
        split: The data.
        config: What to run; `config.selection.selector` may be 'oracle' here, which takes right labels only.
        scenario: For the row.
        shots: For the row.
        selector_name: Name in the row, where `config.selection.selector` does not say enough.
        selector: One of your own.
        on_event: Called after each line of Algorithm 1.
        on_step: Called after each training step.
    """
    began = time.perf_counter()
    if config.selection.selector == "oracle":
        selector = OracleSelector(true_labels(split.target_unlabeled))
    result = adapt(split, config, selector=selector, on_event=on_event, on_step=on_step)
    seconds = time.perf_counter() - began
    metrics = evaluate(result.method, split.target_unlabeled)
    positives = result.positives
    none = config.selection.selector == "none" and selector is None
    return Row(
        scenario=scenario,
        method=config.method.name,
        selector=selector_name or config.selection.selector,
        shots=shots,
        seed=config.seed,
        model_selection="last",
        accuracy=metrics.accuracy,
        balanced_accuracy=metrics.balanced_accuracy,
        positives=None if none else len(positives),
        positives_accuracy=pseudo_label_accuracy(positives.indices, positives.labels, split.target_unlabeled),
        seconds=seconds,
        config=fingerprint(config),
        commit=current_commit(),
    )
