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

from qurate.benchmark.cell import CALIBRATION_FOLDS, Cell, CellResult
from qurate.benchmark.executors import CellRunner
from qurate.config import DQNConfig, NoneConfig, RunConfig
from qurate.data.batches import TrainingData
from qurate.data.samples import Inputs, Labeled, Split, Unlabeled, take
from qurate.embedding.backbone import Frozen, freeze_backbones
from qurate.embedding.embed import embed_files, image_paths
from qurate.registry import ORACLE
from qurate.runtime.randomness import generator
from qurate.selection.answered import shorten
from qurate.training import start

_IMAGES, _WARM_UP, _STEPS = 16, 8, 30
"""Images of each part, images before the clock starts, and steps by which a cell is timed."""
_STEPS_PER_ACTION = 3.0
"""What an action of the agent costs in training steps, with its trial step and its pass over D_u; measured: 1.6 on the
digits, 3.2 on embeddings of Office-31."""

Kind = tuple[str, str, int, int]
"""Method, selector, steps and rounds of asking: cells of a kind take about as long."""


@dataclass(frozen=True)
class TimeEstimate:
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

    def whole(self, processes: int) -> float:
        """Seconds until the end, with this many processes."""
        return self.embedding + sum(self.of_cells) / max(1, min(processes, len(self.of_cells)))


def estimate(to_run: Sequence[Cell], finished: Sequence[tuple[Cell, float]], runner: CellRunner | None) -> TimeEstimate:
    """What is left to do.

    Args:
        to_run: In the order in which they run.
        finished: Cells and their seconds.
        runner: Times what no finished cell tells; without it, the mean of all finished cells is taken.
    """
    times = _Times(finished, runner)
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
    return TimeEstimate(tuple(costs), times.embedding, sum(_kind(cell) in times.known for cell in to_run))


class _Times:
    """Seconds of a kind of cell, known or timed."""

    def __init__(self, finished: Sequence[tuple[Cell, float]], runner: CellRunner | None) -> None:
        by_kind: dict[Kind, list[float]] = {}
        for cell, seconds in finished:
            by_kind.setdefault(_kind(cell), []).append(seconds)
        self.known = {kind: mean(seconds) for kind, seconds in by_kind.items()}
        self.embedding = 0.0
        self._runner = runner
        self._step: dict[str, float] = {}
        self._sample: Split | None = None
        self._n_source = 0

    def of(self, cell: Cell) -> float:
        kind = _kind(cell)
        if kind in self.known:
            return self.known[kind]
        if self._runner is None:
            return mean(self.known.values()) if self.known else 0.0
        method = cell.config.method.name
        sample = self._sample or self._take(cell, self._runner)
        if method not in self._step:
            self._step[method] = seconds_per_step(sample, self._runner.localize(cell.config))
        return self.steps(cell) * self._step[method]

    def steps(self, cell: Cell) -> float:
        """Training steps, with what the agent costs."""
        once, again = (
            config.training.steps + steps_of_rounds(config, self._n_source)
            for config in (cell.config, shorten(cell.config))
        )
        return once + cell.ask_rounds * again

    def _take(self, cell: Cell, runner: CellRunner) -> Split:
        """A sample of the first cell's split, embedded if the others will be."""
        split = runner.read(cell)
        self._n_source = len(split.source)
        sample = take_sample(split)
        if cell.config.network.backbone == "none":
            seconds, sample = embed_sample(sample, freeze_backbones(cell.backbone, runner.weights))
            images = sum(domain.images or 0 for domain in runner.suite.domains.values())
            self.embedding = seconds * (images or len(split.source) + len(split.target_unlabeled))
        self._sample = sample
        return sample


def _kind(cell: Cell) -> Kind:
    return cell.config.method.name, cell.selector, cell.config.training.steps, cell.ask_rounds


def _without_rounds(cell: Cell) -> Cell:
    selection = replace(cell.config.selection, selector=NoneConfig())
    return replace(cell.base, selector="none", config=replace(cell.config, selection=selection))


def take_sample(split: Split) -> Split:
    """A few images of all parts, evenly, under labels that mean nothing."""
    parts: tuple[Inputs, ...] = (split.source.inputs, split.target_labeled.inputs, split.target_unlabeled.inputs)
    some = [take(part, torch.linspace(0, len(part) - 1, min(len(part), _IMAGES)).long()) for part in parts]
    labeled = [Labeled(inputs, torch.arange(len(inputs)) % split.n_classes) for inputs in some[:2]]
    return Split(split.classes, labeled[0], labeled[1], Unlabeled(some[2]))


def embed_sample(sample: Split, frozen: Frozen) -> tuple[float, Split]:
    """Seconds per image, none where all are in the cache, and rows of the embeddings' width to time training on."""
    paths = image_paths(sample)
    embed_files(paths[:_WARM_UP], frozen)  # the first images are slower
    found = embed_files(paths, frozen)
    seconds = found.seconds / max(1, len(paths) - _WARM_UP) if found.made else 0.0
    sizes = (len(sample.source), len(sample.target_labeled), len(sample.target_unlabeled))
    first, second, third = torch.randn(sum(sizes), frozen.width, generator=generator(0)).split(sizes)
    rows = Split(
        sample.classes,
        Labeled(first, sample.source.labels),
        Labeled(second, sample.target_labeled.labels),
        Unlabeled(third),
    )
    return seconds, rows


def seconds_per_step(sample: Split, config: RunConfig) -> float:
    """Seconds of a training step on a sample; of several processes each is taken to need its share of them."""
    alone = replace(config, execution=replace(config.execution, devices=1, num_nodes=1))
    trainer = start(sample, alone)
    data = TrainingData.of(sample)
    quick = isinstance(sample.source.inputs, Tensor) or trainer.fabric.device.type != "cpu"
    steps = _STEPS if quick else 1
    if quick:
        trainer.run(data, steps=steps, seed=0)  # the first steps are slower
    began = time.perf_counter()
    trainer.run(data, steps=steps, seed=0)
    return (time.perf_counter() - began) / steps / config.execution.processes


def steps_of_rounds(config: RunConfig, n_source: int) -> float:
    """The rounds of a run in training steps, with what the agent costs; at most, for a run may stop early."""
    selection = config.selection
    if selection.selector.name == "none":
        return 0.0
    actions = 0.0
    if isinstance(selection.selector, DQNConfig):
        episode = selection.selector.episode
        epoch = math.ceil(n_source / config.training.batch_source)
        most = episode.actions if episode.repeat_episodes else min(episode.actions, episode.candidates)
        actions = most * max(_STEPS_PER_ACTION, episode.trial_steps or epoch)
    return selection.rounds * (selection.round_steps + actions)


def say_time(seconds: float) -> str:
    """'about 40 seconds', 'about 7 minutes', 'about 3 hours'."""
    if seconds < 90:
        return f"about {max(10, 10 * round(seconds / 10))} seconds"
    if seconds < 5400:
        return f"about {round(seconds / 60)} minutes"
    return f"about {round(seconds / 3600)} hours"


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
        self._expect()

    def ended(self, cell: Cell, result: CellResult) -> None:
        """A line for it."""
        self._running.remove(cell)
        self._ended.add(cell)
        self._bar.update(self._task, completed=len(self._ended))
        count = f"{len(self._ended):>{len(str(len(self._cells)))}}/{len(self._cells)}"
        if result.error:
            text = f"FAILED: {last_line(result.error)}"
        else:
            row = result.rows[-1 if cell.asker else 0]
            self._finished.append((cell, row.seconds))
            asked = f" after {row.asked} labels" if cell.asker else ""
            text = f"{row.accuracy:.1%}{asked} ({row.model_selection}), {row.seconds:.0f} s"
        self._console.print(f"{count}  {cell.title()}: {text}", markup=False, highlight=False, soft_wrap=True)

    def _expect(self) -> None:
        left = [cell for cell in self._cells if cell not in self._ended]
        if self._finished and self._console.is_terminal:
            self._time_left = f"{say_time(estimate(left, self._finished, None).whole(self._processes))} left"

    def _draw(self) -> Group:
        now = [Text(f"  running: {cell.title()}", style="dim") for cell in self._running]
        return Group(self._bar, Text(f"  {self._time_left}", style="dim"), *now)


def last_line(error: str) -> str:
    """What a traceback ends with."""
    return error.strip().splitlines()[-1]
