"""One cell of a comparison: a method with a selector on a split, measured on the hidden labels as it trains."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import pandas as pd
from torch import Tensor

from qurate.benchmark.results import BenchmarkError, RoundRow, Row, label_counts
from qurate.config import Protocol, RunConfig, fingerprint, fingerprint_fields
from qurate.data.samples import Split
from qurate.evaluation import (
    auroc_right,
    auroc_unknown,
    calibration_error,
    certainty,
    evaluate,
    hos,
    measure,
    predict_probabilities,
    pseudo_label_accuracy,
    true_labels,
)
from qurate.methods import Method
from qurate.model_selection import LABEL_FREE, choose_model
from qurate.registry import METHODS, ORACLE, PLAIN
from qurate.selection.algorithm import fit
from qurate.selection.callbacks import Callback, RoundRecord
from qurate.selection.crossfit import Product, fit_product, leave_out
from qurate.selection.pseudo_labels import Positives
from qurate.selection.selectors import OracleSelector, Selector
from qurate.selection.session import Pretraining

SNAPSHOTS = 8
"""Models to choose from in a run without rounds, evenly spaced over its training. Our choice."""


@dataclass(frozen=True)
class Measures:
    """How good a model is on the hidden labels of D_u, by the names of the columns of results.csv; see `Row`."""

    accuracy: float
    balanced_accuracy: float
    ece: float
    auroc: float | None
    auroc_unknown: float | None
    hos: float | None


def judge(
    probabilities: Tensor, truth: Tensor, *, known: Tensor | None = None, flagged: Tensor | None = None
) -> Measures:
    """Measure what a model says of D_u. A trained network alone has its probabilities, and flags nothing.

    Args:
        probabilities: (N_u, K).
        truth: The sealed labels: classes, `UNKNOWN` where a sample is of none, -1 where no one knows, (N_u,) int64.
        known: How well each sample fits any class, (N_u,); by its highest probability unless given.
        flagged: Whether each is taken to be of no class, (N_u,) bool.
    """
    predicted = probabilities.argmax(dim=1)
    metrics = measure(predicted, truth, probabilities.shape[1])
    return Measures(
        accuracy=metrics.accuracy,
        balanced_accuracy=metrics.balanced_accuracy,
        ece=calibration_error(probabilities, truth),
        auroc=auroc_right(probabilities, truth),
        auroc_unknown=auroc_unknown(certainty(probabilities) if known is None else known, truth),
        hos=None if flagged is None else hos(predicted, flagged, truth),
    )


@dataclass(frozen=True)
class Snapshot:
    """One model of a run.

    Args:
        measures: On the hidden labels of D_u.
        ece_calibrated: Expected calibration error of the product of the run; None where it has none.
        positives: Size of D_p when the model was made.
        positives_accuracy: Share of right ones; None if there are none.
        scores: What each rule thinks of the model.
    """

    measures: Measures
    ece_calibrated: float | None
    positives: int
    positives_accuracy: float | None
    scores: Mapping[str, float]


class SnapshotMonitor(Callback):
    """Measures the models of a run: after pre-training, after each round, and on the way.

    Args:
        split: For D_u and validation.
        rules: Whose scores to compute.
        steps: Steps of pre-training after which to look too.
        product: What becomes of each model, if anything; without it the network alone is measured.
    """

    def __init__(
        self,
        split: Split,
        rules: Collection[str],
        *,
        steps: Collection[int] = (),
        product: Product | None = None,
    ) -> None:
        if "validation" in rules and split.validation is None:
            raise BenchmarkError(
                "model selection by validation needs validation samples and the split has none: its classes are too "
                "small. Leave the rule out."
            )
        self.snapshots: list[Snapshot] = []
        self.product = product
        self._split = split
        self._rules = rules
        self._steps = frozenset(steps)
        self._method: Method | None = None

    def on_start(self, method: Method) -> None:
        """The method that is trained."""
        self._method = method

    def on_step(self, step: int, terms: dict[str, float]) -> None:
        """Look on the way."""
        if step in self._steps:
            assert self._method is not None, "training begins after on_start"
            self._take_snapshot(self._method, Positives.none())

    def on_pretrained(self, method: Method) -> None:
        """Look, and no more on the way: steps of rounds are counted from 1 again."""
        self._steps = frozenset()
        self._take_snapshot(method, Positives.none())

    def on_round(self, record: RoundRecord, method: Method, positives: Positives) -> None:
        """Look."""
        self._take_snapshot(method, positives)

    def chosen(self, rule: str) -> Snapshot:
        """The model that a rule takes."""
        if rule == "last":
            return self.snapshots[-1]
        return self.snapshots[choose_model([snapshot.scores[rule] for snapshot in self.snapshots])]

    def _take_snapshot(self, method: Method, positives: Positives) -> None:
        unlabeled = self._split.target_unlabeled
        probabilities, product = predict_probabilities(method, unlabeled.inputs), self.product
        truth, calibrated = true_labels(unlabeled), None
        measures, indices = judge(probabilities, truth), positives.indices
        if product is not None:
            said = product.of(method.network).predict(unlabeled.inputs)
            scored = {} if product.novelty is None else {"known": said.known, "flagged": product.flagged}
            judged = judge(said.probabilities, truth, **scored)
            calibrated, measures = judged.ece, dataclasses.replace(judged, ece=measures.ece)
            indices = (~product.flagged).nonzero().squeeze(1)[indices]  # training sees the others alone
        scores = {name: score(probabilities) for name, score in LABEL_FREE.items() if name in self._rules}
        if "validation" in self._rules:
            assert self._split.validation is not None, "see __init__"
            scores["validation"] = evaluate(method, self._split.validation).accuracy
        scores["oracle"] = measures.accuracy
        right = pseudo_label_accuracy(indices, positives.labels, unlabeled)
        self.snapshots.append(Snapshot(measures, calibrated, len(positives), right, scores))


def snapshot_steps(config: RunConfig, rules: Collection[str]) -> tuple[int, ...]:
    """Where to look during the training of a run without rounds, before its end; nowhere if only the last counts."""
    if config.selection.selector.name != "none" or set(rules) == {"last"}:
        return ()
    return tuple(config.training.steps * i // SNAPSHOTS for i in range(1, SNAPSHOTS))


ASKING = ("query_strategy", "ask", "ask_rounds")
"""What only cells that ask people name."""


@dataclass(frozen=True)
class Cell:
    """All that decides one result; its fingerprint names its folder.

    Args:
        suite: Name of the suite.
        scenario: 'source:target'.
        shots: Labelled target samples of each class.
        protocol: How the target is split.
        selector: Name of its row: of the selector, or what `qurate.registry` calls it with preset 'paper'.
        rules: Rules of model selection to report.
        backbone: That embeds the images, or that is trained.
        weights: What its weights are, wherever they lie.
        config: The run.
        imbalance: How many times larger than the smallest class the largest of the unlabelled target is made by
            thinning; 1 leaves it as it is.
        unknown: How many classes are hidden, but for their images in the unlabelled target.
        missing_classes: How many known classes the unlabelled target lacks.
        calibrate: Whether to judge what `adapt` gives, the combined and calibrated model, in place of the network.
        query_strategy: Which images to label next: a name of `qurate.QUERY_STRATEGIES`, 'none' for nobody, or empty
            where nobody is asked and the run ends.
        ask: Labels to ask for.
        ask_rounds: In as many rounds of equal size.
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
    imbalance: int = 1
    calibrate: bool = False
    query_strategy: str = ""
    ask: int = 0
    ask_rounds: int = 0
    unknown: int = 0
    missing_classes: int = 0

    @cached_property
    def name(self) -> str:
        """The fingerprint of all of it; where and how the run is computed does not decide the result."""
        about = dataclasses.asdict(self)
        about["config"] = fingerprint_fields(self.config)
        return fingerprint(about)

    @cached_property
    def pretraining(self) -> str:
        """What is equal for cells that differ in selection alone: they can share line 1."""
        about = dataclasses.asdict(self)
        for part in ("selector", "rules", "calibrate", *ASKING):
            del about[part]
        about["config"] = fingerprint_fields(self.config)
        del about["config"]["selection"], about["config"]["training"]["positive_share"]
        if self.config.training.schedule == "progress":  # the rates of line 1 depend on how long the run will be
            about["total_steps"] = self.config.total_steps
        about["validation"] = "validation" in self.rules  # decides what is drawn for D_u
        return fingerprint(about)

    @property
    def base(self) -> Cell:
        """The same without asking."""
        return dataclasses.replace(self, query_strategy="", ask=0, ask_rounds=0)

    @property
    def label_counts(self) -> tuple[int, ...]:
        """How many labels were asked for by each of its rows: 0 alone where nobody is asked."""
        return label_counts(self.ask, self.ask_rounds)

    def key(self) -> dict[str, Any]:
        """The columns that name it in results.csv and rounds.csv."""
        own = ("scenario", "selector", "shots", "imbalance", "unknown", "missing_classes")
        return {"method": self.config.method.row_name, "seed": self.config.seed} | {
            name: getattr(self, name) for name in own
        }

    def title(self) -> str:
        """For people."""
        changed = "" if self.imbalance == 1 else f" imbalance {self.imbalance}"
        changed += f" unknown {self.unknown}" if self.unknown else ""
        changed += f" missing {self.missing_classes}" if self.missing_classes else ""
        asking = f" asking {self.query_strategy} for {self.ask} in {self.ask_rounds}" if self.query_strategy else ""
        pair = f"{self.config.method.row_name} {self.selector}"
        return f"{self.scenario} {self.shots}-shot{changed} {pair}{asking} seed {self.config.seed}"


@dataclass(frozen=True, eq=False)
class CellResult:
    """What came of a cell.

    Args:
        rows: One per rule; where people are asked, one per number of labels.
        rounds: One per round, if it has a selector and nobody is asked.
        asked: Where people are asked: a row for each sample of D_u whose label is known, see `query_table`.
        error: The traceback, if it failed.
    """

    rows: tuple[Row, ...] = ()
    rounds: tuple[RoundRow, ...] = ()
    error: str = ""
    asked: pd.DataFrame | None = None


@dataclass(eq=False)
class Pretrained(Pretraining):
    """Line 1 of Algorithm 1 for cells that differ in selection alone: those with the same key."""

    key: str = ""


def steps_of(config: RunConfig, rounds: int) -> int:
    """Training steps of a run that ended after so many rounds; none where the method is fitted."""
    steps = config.training.steps + rounds * config.selection.round_steps
    return steps if METHODS[config.method.name].has_network else 0


def run_cell(
    split: Split,
    cell: Cell,
    config: RunConfig,
    *,
    before: Pretrained | None = None,
    selector: Selector | None = None,
    callbacks: Sequence[Callback] = (),
    commit: str = "unknown",
) -> tuple[CellResult, Pretrained]:
    """Run a cell and measure its models by all its rules.

    Args:
        split: The data.
        cell: What to run.
        config: The run, with weights where they lie on this machine.
        before: Pre-training of another cell, used if it is the same as this one's.
        selector: One of your own in place of the config's.
        callbacks: Told how the run goes.
        commit: Of qurate, for the rows.

    Returns:
        The result, and the pre-training for the next cell.
    """
    on_the_way = snapshot_steps(config, cell.rules)
    is_named = selector is None and cell.selector != ORACLE  # nobody else can select in folds
    product = fit_product(split, config) if cell.calibrate and is_named else None
    monitor = SnapshotMonitor(split, cell.rules, steps=on_the_way, product=product)
    listeners = (monitor, *callbacks)
    trained, baseline = split, None
    if product is not None:
        trained = leave_out(split, product.flagged)[0]
        baseline = product.label_unlabeled(trained)
    fewer = len(trained.target_unlabeled) < len(split.target_unlabeled)
    usable = None if on_the_way or fewer else before  # snapshots on the way and other data need a training of their own
    shared = shared_pretraining(cell, usable)
    began = time.perf_counter() - shared.seconds  # 0 until it is done
    if cell.selector == ORACLE:
        selector = OracleSelector(true_labels(split.target_unlabeled))
    done = fit(
        trained,
        config,
        selector=selector,
        callbacks=listeners,
        pretrained=None if fewer else shared,
        baseline=baseline,
    )
    seconds = time.perf_counter() - began
    steps = steps_of(config, len(done.rounds))
    made = {"seconds": seconds, "commit": commit, "steps": steps, "device": device_of(done.method)}
    rows = tuple(_row(cell, monitor, rule, made) for rule in cell.rules)
    return CellResult(rows, _rounds(cell, monitor, len(split.target_unlabeled))), shared


def device_of(method: Method) -> str:
    """The kind of device that a method was trained on, whatever was asked for: 'cpu', 'cuda' or 'mps'."""
    return next(method.parameters()).device.type


def shared_pretraining(cell: Cell, before: Pretrained | None) -> Pretrained:
    """The pre-training of a cell: that of another cell if it is the same, else one of its own, not yet done."""
    return before if before is not None and before.key == cell.pretraining else Pretrained(key=cell.pretraining)


def _row(cell: Cell, monitor: SnapshotMonitor, rule: str, made: dict[str, Any]) -> Row:
    snapshot = monitor.chosen(rule)
    return Row(
        **cell.key(),
        model_selection=rule,
        **dataclasses.asdict(snapshot.measures),
        positives=None if cell.selector in PLAIN else snapshot.positives,
        positives_accuracy=snapshot.positives_accuracy,
        config=cell.name,
        ece_calibrated=snapshot.ece_calibrated,
        temperature=None if monitor.product is None else monitor.product.calibration.temperature,
        **made,
    )


def _rounds(cell: Cell, monitor: SnapshotMonitor, n_unlabeled: int) -> tuple[RoundRow, ...]:
    if cell.selector in PLAIN:
        return ()
    return tuple(
        RoundRow(
            **cell.key(),
            round=number,
            accuracy=snapshot.measures.accuracy,
            positives=snapshot.positives,
            positives_accuracy=snapshot.positives_accuracy,
            coverage=snapshot.positives / n_unlabeled,
        )
        for number, snapshot in enumerate(monitor.snapshots)
    )
