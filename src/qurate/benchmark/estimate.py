"""How long a benchmark will take: by cells that are finished, or by a few steps on this machine."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import mean

from qurate.benchmark.cells import CALIBRATION_FOLDS, Cell
from qurate.benchmark.worker import Worker
from qurate.config import NoneConfig
from qurate.data.embedding.several import freeze_backbones
from qurate.data.samples import Split
from qurate.expectation import embed_sample, seconds_per_step, steps_of_rounds, take_sample
from qurate.registry import ORACLE
from qurate.selection.continuation import shorten

Kind = tuple[str, str, int, int]
"""Method, selector, steps and rounds of asking: cells of a kind take about as long."""


@dataclass(frozen=True)
class Estimate:
    """Seconds of one process.

    Args:
        of_cells: For each cell to run, what it adds; cells that share pre-training, or the run before people are asked,
            pay for it once, but for folds.
        embedding: For images that are not in the cache.
        measured: How many cells' times come from finished ones; the others were timed by a few steps.
    """

    of_cells: tuple[float, ...]
    embedding: float
    measured: int

    def whole(self, lanes: int) -> float:
        """Seconds until the end, with this many processes."""
        return self.embedding + sum(self.of_cells) / max(1, min(lanes, len(self.of_cells)))


def estimate(to_run: Sequence[Cell], finished: Sequence[tuple[Cell, float]], worker: Worker | None) -> Estimate:
    """What is left to do.

    Args:
        to_run: In the order in which they run.
        finished: Cells and their seconds.
        worker: Times what no finished cell tells; None for none of that, when the mean of the finished serves.
    """
    times = _Times(finished, worker)
    seen: set[str] = set()
    costs = []
    for cell in to_run:
        cost = whole = times.of(cell)
        if cell.asker and cell.base.name in seen:
            cost *= 1 - times.steps(cell.base) / times.steps(cell)
        elif cell.pretraining in seen:
            cost = max(0.0, cost - times.of(_without_rounds(cell)))
        if cell.calibrate and cell.selector != ORACLE:  # each fold trains all of it; seconds of cells leave them out
            cost += CALIBRATION_FOLDS * whole
        seen |= {cell.pretraining, cell.base.name}
        costs.append(cost)
    return Estimate(tuple(costs), times.embedding, sum(_kind(cell) in times.known for cell in to_run))


class _Times:
    """Seconds of a kind of cell, known or timed."""

    def __init__(self, finished: Sequence[tuple[Cell, float]], worker: Worker | None) -> None:
        by_kind: dict[Kind, list[float]] = {}
        for cell, seconds in finished:
            by_kind.setdefault(_kind(cell), []).append(seconds)
        self.known = {kind: mean(seconds) for kind, seconds in by_kind.items()}
        self.embedding = 0.0
        self._worker = worker
        self._step: dict[str, float] = {}
        self._sample: Split | None = None
        self._n_source = 0

    def of(self, cell: Cell) -> float:
        kind = _kind(cell)
        if kind in self.known:
            return self.known[kind]
        if self._worker is None:
            return mean(self.known.values()) if self.known else 0.0
        method = cell.config.method.name
        sample = self._sample or self._take(cell, self._worker)
        if method not in self._step:
            self._step[method] = seconds_per_step(sample, self._worker.localize(cell.config))
        return self.steps(cell) * self._step[method]

    def steps(self, cell: Cell) -> float:
        """Training steps, with what the agent costs."""
        once, again = (
            config.training.steps + steps_of_rounds(config, self._n_source)
            for config in (cell.config, shorten(cell.config))
        )
        return once + cell.ask_rounds * again

    def _take(self, cell: Cell, worker: Worker) -> Split:
        """A sample of the first cell's split, embedded if the others will be."""
        split = worker.read(cell)
        self._n_source = len(split.source)
        sample = take_sample(split)
        if cell.config.network.backbone == "none":
            seconds, sample = embed_sample(sample, freeze_backbones(cell.backbone, worker.weights), None)
            images = sum(domain.images or 0 for domain in worker.suite.domains.values())
            self.embedding = seconds * (images or len(split.source) + len(split.target_unlabeled))
        self._sample = sample
        return sample


def _kind(cell: Cell) -> Kind:
    return cell.config.method.name, cell.selector, cell.config.training.steps, cell.ask_rounds


def _without_rounds(cell: Cell) -> Cell:
    selection = replace(cell.config.selection, selector=NoneConfig())
    return replace(cell.base, selector="none", config=replace(cell.config, selection=selection))
