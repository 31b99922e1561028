"""The progress of a benchmark on the terminal, and how long it will take."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import mean
from types import TracebackType
from typing import Self

import torch
from rich.console import Console, Group
from rich.live import Live
from rich.progress import BarColumn, Progress, TextColumn
from rich.text import Text
from torch import Tensor

from qurate.benchmark.cell import Cell, CellResult
from qurate.benchmark.executors import CellRunner
from qurate.config import DQNConfig, NoneConfig, RunConfig
from qurate.data.batches import TrainingData
from qurate.data.samples import Inputs, Labeled, Split, Unlabeled, take
from qurate.embedding.backbone import freeze_backbones
from qurate.embedding.embed import embed_files, image_paths, put_embeddings
from qurate.registry import FITTED, ORACLE
from qurate.runtime.progress import say_time
from qurate.selection.answered import shorten
from qurate.selection.crossfit import FOLDS
from qurate.training import start

_IMAGES, _WARM_UP, _STEPS = 16, 8, 30
"""Images of each part, images before the clock starts, and steps by which a cell is timed."""
_STEPS_PER_ACTION = 3.0
"""What an action of the agent costs in training steps, with its trial step and its pass over D_u; measured: 1.6 on the
digits, 3.2 on embeddings of Office-31."""


@dataclass(frozen=True)
class TimeEstimate:
    """Seconds of one process.

    Args:
        of_cells: For each cell to run, what it adds; cells that share pre-training, or the run before people are asked,
            pay for it once, but for folds. None where nothing tells: methods that are fitted to all rows at once,
            before a cell of theirs is finished.
        embedding: For images that are not in the cache.
        measured: How many cells' times come from finished ones; others that are known were timed by a few steps.
    """

    of_cells: tuple[float | None, ...]
    embedding: float
    measured: int

    def whole(self, processes: int) -> float:
        """Seconds until the end, with this many processes, but for cells of which nothing is known."""
        known = [cost for cost in self.of_cells if cost is not None]
        return self.embedding + sum(known) / max(1, min(processes, len(known)))


def estimate(to_run: Sequence[Cell], finished: Sequence[tuple[Cell, float]], runner: CellRunner | None) -> TimeEstimate:
    """What is left to do.

    Args:
        to_run: In the order in which they run.
        finished: Cells and their seconds.
        runner: Times what no finished cell tells; without it, the mean of all finished cells is taken.
    """
    times = _Times(finished, runner)
    seen: set[str] = set()
    costs: list[float | None] = []
    for cell in to_run:
        if (whole := times.of(cell)) is None:
            costs.append(None)
            continue
        cost = whole
        if cell.query_strategy and cell.base.name in seen:
            cost *= 1 - times.steps(cell.base) / times.steps(cell)
        elif cell.pretraining in seen:
            selection = replace(cell.config.selection, selector=NoneConfig())
            plain = replace(cell.base, selector="none", config=replace(cell.config, selection=selection))
            cost = max(0.0, cost - (times.of(plain) or 0.0))
        if cell.calibrate and cell.selector != ORACLE:  # each fold trains all of it; seconds of cells leave them out
            of_baseline = cell.config.training.steps / cell.config.total_steps
            cost += whole * (FOLDS + (FOLDS + 1) * of_baseline)
        seen |= {cell.pretraining, cell.base.name}
        costs.append(cost)
    return TimeEstimate(tuple(costs), times.embedding, sum(_kind(cell) in times.known for cell in to_run))


def _kind(cell: Cell) -> tuple[str, str, int, int]:
    """Cells of a kind take about as long."""
    return cell.config.method.row_name, cell.selector, cell.config.training.steps, cell.ask_rounds


class _Times:
    """Seconds of a kind of cell, known or timed."""

    def __init__(self, finished: Sequence[tuple[Cell, float]], runner: CellRunner | None) -> None:
        kinds = {_kind(cell) for cell, _ in finished}
        self.known = {kind: mean(seconds for cell, seconds in finished if _kind(cell) == kind) for kind in kinds}
        self.embedding = 0.0
        self._runner = runner
        self._step: dict[str, float] = {}
        self._sample: Split | None = None
        self._n_source = 0

    def of(self, cell: Cell) -> float | None:
        """Seconds of a cell; None where nothing tells."""
        if (kind := _kind(cell)) in self.known:
            return self.known[kind]
        if self._runner is None:
            return mean(self.known.values()) if self.known else 0.0
        if self._sample is None:
            self._sample = self._take_sample(cell, self._runner)
        if cell.config.method.name in FITTED:  # a fit to a sample tells nothing of one to all rows
            return None
        method = cell.config.method.row_name
        if method not in self._step:
            self._step[method] = _seconds_per_step(self._sample, self._runner.localize(cell.config))
        return self.steps(cell) * self._step[method]

    def steps(self, cell: Cell) -> float:
        """Training steps, with what S+T and the agent cost; at most, for a run may stop early."""
        once, again = (
            config.total_steps + self._steps_of_baseline(config) + self._steps_of_actions(config)
            for config in (cell.config, shorten(cell.config))
        )
        return once + cell.ask_rounds * again

    def _steps_of_baseline(self, config: RunConfig) -> int:
        return config.training.steps if config.selection.labeler == "combined" else 0

    def _steps_of_actions(self, config: RunConfig) -> float:
        selector = config.selection.selector
        if not isinstance(selector, DQNConfig):
            return 0.0
        episode = selector.episode
        actions = episode.actions if episode.repeat_episodes else min(episode.actions, episode.candidates)
        trial = episode.trial_steps or math.ceil(self._n_source / config.training.batch_source)
        return config.selection.rounds * actions * max(_STEPS_PER_ACTION, trial)

    def _take_sample(self, cell: Cell, runner: CellRunner) -> Split:
        """A few images of each part of a split, under labels that mean nothing; embedded if those of cells will be."""
        split = runner.read(cell)
        self._n_source = len(split.source)
        parts: tuple[Inputs, ...] = (split.source.inputs, split.target_labeled.inputs, split.target_unlabeled.inputs)
        some = [take(part, torch.linspace(0, len(part) - 1, min(len(part), _IMAGES)).long()) for part in parts]
        source, target = (Labeled(inputs, torch.arange(len(inputs)) % split.n_classes) for inputs in some[:2])
        sample = Split(split.classes, source, target, Unlabeled(some[2]))
        if cell.config.network.backbone != "none":
            return sample
        frozen, paths = freeze_backbones(cell.backbone, runner.weights), image_paths(sample)
        embed_files(paths[:_WARM_UP], frozen)  # the first images are slower
        found = embed_files(paths, frozen, strict=True)
        if found.made:
            images = sum(domain.images or 0 for domain in runner.suite.domains.values())
            images = images or len(split.source) + len(split.target_unlabeled)
            self.embedding = images * found.seconds / max(1, len(paths) - _WARM_UP)
        return put_embeddings(sample, found)


def _seconds_per_step(sample: Split, config: RunConfig) -> float:
    """Seconds of a training step on a sample; of several processes each is taken to need its share of them."""
    trainer = start(sample, config)
    data = TrainingData.of(sample)
    steps = 1
    if isinstance(sample.source.inputs, Tensor) or trainer.fabric.device.type != "cpu":
        steps = _STEPS
        trainer.run(data, steps=steps, seed=0)  # the first steps are slower
    began = time.perf_counter()
    trainer.run(data, steps=steps, seed=0)
    return (time.perf_counter() - began) / steps / config.execution.processes


class CellDisplay:
    """The monitor of `run_cells` on the command line.

    Args:
        console: Where to write.
        cells: All of the grid.
        finished: Those that are finished, and their seconds.
        processes: How many run at once.
    """

    def __init__(
        self, console: Console, cells: Sequence[Cell], finished: Sequence[tuple[Cell, float]], processes: int
    ) -> None:
        self._console = console
        self._cells = cells
        self._finished = list(finished)
        self._ended = {cell for cell, _ in finished}
        self._processes = processes
        self._running: list[Cell] = []
        self._time_left = ""
        self._bar = Progress(TextColumn("cells"), BarColumn(bar_width=24), TextColumn("{task.completed}/{task.total}"))
        self._task = self._bar.add_task("cells", total=len(cells), completed=len(self._ended))
        self._live = Live(console=console, transient=True, refresh_per_second=4, get_renderable=self._draw)

    def __enter__(self) -> Self:
        if self._console.is_terminal:
            self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._console.is_terminal:
            self._live.stop()

    def started(self, cell: Cell) -> None:
        """Show that it runs."""
        self._running.append(cell)
        if self._finished and self._console.is_terminal:
            left = [cell for cell in self._cells if cell not in self._ended]
            self._time_left = f"{say_time(estimate(left, self._finished, None).whole(self._processes))} left"

    def ended(self, cell: Cell, result: CellResult) -> None:
        """A line for it."""
        self._running.remove(cell)
        self._ended.add(cell)
        self._bar.update(self._task, completed=len(self._ended))
        count = f"{len(self._ended):>{len(str(len(self._cells)))}}/{len(self._cells)}"
        if result.error:
            text = f"FAILED: {last_line(result.error)}"
        else:
            row = result.rows[-1 if cell.query_strategy else 0]
            self._finished.append((cell, row.seconds))
            asked = f" after {row.asked} labels" if cell.query_strategy else ""
            text = f"{row.accuracy:.1%}{asked} ({row.model_selection}), {row.seconds:.0f} s"
        self._console.print(f"{count}  {cell.title()}: {text}", markup=False, highlight=False, soft_wrap=True)

    def _draw(self) -> Group:
        now = [Text(f"  running: {cell.title()}", style="dim") for cell in self._running]
        return Group(self._bar, Text(f"  {self._time_left}", style="dim"), *now)


def last_line(error: str) -> str:
    """What a traceback ends with."""
    return error.strip().splitlines()[-1]
