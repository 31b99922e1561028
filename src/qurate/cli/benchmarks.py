"""The verbs of comparisons: demo, benchmark, report."""

from __future__ import annotations

import functools
import json
import os
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import tyro
from rich.console import Console
from tyro.conf import OmitArgPrefixes

from qurate.benchmark.options import ExecutionOptions, GridOptions
from qurate.cli import options
from qurate.cli.options import check_folder
from qurate.cli.terminal import announce_loading, load_torch, on_stop, print_line, print_next
from qurate.errors import ConfigError
from qurate.runtime.commands import NextStep, free_name
from qurate.runtime.options import option
from qurate.runtime.paths import count

if TYPE_CHECKING:
    from qurate.benchmark.cell import Cell
    from qurate.benchmark.executors import CellRunner, Executor
    from qurate.benchmark.folder import BenchmarkFolder
    from qurate.benchmark.grid import Grid


DEMO = ("S+T", "ENT", "MME", "TML", "TML_SPL", "tml+adaptive", "TML_DQNPL")
"""Rows of the paper's tables, by their titles there, and the default of `adapt`."""


def demo(
    out: options.Folder = Path("demo"),
    seed: options.Seed = 0,
    steps: options.Steps = 400,
    force: options.Flag = False,
) -> None:
    """Adapt from typeset to handwritten digits in seven ways and compare them, in minutes and without a download.

    Args:
        out: Folder for results.csv.
        seed: Decides data, weights and batches; the same seed gives the same numbers on CPU.
        steps: Training steps before selection.
        force: Overwrite DIR/results.csv if it exists.
    """
    check_folder("out", out)
    results = out / "results.csv"
    if results.exists() and not force:
        raise ConfigError(f"{results} exists. Choose another `out`, or pass `force=True` to overwrite it.")
    on_stop(lambda: "Re-run the command with --force.")
    load_torch("comparing seven methods on digits")
    from qurate.benchmark.cell import Pretrained, run_cell
    from qurate.benchmark.grid import Grid
    from qurate.benchmark.results import Row, rows_to_csv, write_file
    from qurate.data.digits import digits_split
    from qurate.data.suites import load_suite
    from qurate.registry import row_title
    from qurate.runtime.progress import PhaseBars, make_table
    from qurate.selection.callbacks import StepCount

    grid = GridOptions("digits", methods=DEMO, selectors=("none",), shots=(3,), seeds=(seed,), steps=steps)
    split = digits_split(shots=3, seed=seed)
    console = Console()
    console.print(
        f"Source: {len(split.source)} typeset digits, all labelled. Target: handwritten digits, "
        f"{len(split.target_labeled)} labelled (3 per class), {len(split.target_unlabeled)} unlabelled."
    )
    rows: list[Row] = []
    lines = []
    pretrained: Pretrained | None = None
    with PhaseBars(console) as bars:
        for cell in Grid(load_suite("digits"), grid).cells():
            title = row_title(cell.config.method.row_name, cell.selector)
            progress = StepCount(bars, title, cell.config.total_steps)
            result, pretrained = run_cell(split, cell, cell.config, before=pretrained, callbacks=(progress,))
            row = result.rows[0]
            positives = "" if row.positives is None else str(row.positives)
            right = "" if row.positives_accuracy is None else f"{row.positives_accuracy:.1%}"
            accuracies = f"{row.accuracy:.1%}", f"{row.balanced_accuracy:.1%}"
            lines.append((title, *accuracies, positives, right, f"{row.seconds:.0f}"))
            rows.append(row)
            write_file(results, rows_to_csv(rows))
    columns = ("method", "accuracy", "balanced", "positives", "share correct", "seconds")
    console.print(make_table(f"typeset to handwritten, 3 labels per class, seed {seed}", columns, lines))
    console.print(f"Accuracy is measured on the hidden labels of the unlabelled target. Results: {results}")
    words = ("benchmark", "--suite", "digits", "--out", free_name("digits"))
    print_next(NextStep("compare more methods with more seeds", words))


def report(
    folder: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="DIR")],
    out: options.AnyFolder = None,
    reference: Annotated[str | None, option("ROW", "TML_DQNPL*, or else the best")] = None,
) -> None:
    """Tables and figures of a benchmark beside the published numbers, and which differences are larger than chance.

    Args:
        folder: The --out folder of `qurate benchmark`; it may still be running.
        out: Folder for the files; DIR/report unless given.
        reference: Row to compare the others with, such as TML_SPL; TML_DQNPL* unless given, or else the best.
    """
    if out is not None:
        check_folder("out", out)
    on_stop(lambda: "Re-run the command.")
    announce_loading(f"making tables and figures of {folder}", "pandas and Matplotlib", "matplotlib")
    from qurate.report.benchmark_report import print_report, write_report

    made, files = write_report(folder, out, reference=reference)
    print_report(made, Console())
    print_line(f"Written to {files[0].parent}: {', '.join(file.name for file in files)}")
    page = next(file for file in files if file.suffix == ".html")
    print_line(f"Open {page} in a browser to see tables and figures together.")


def benchmark(grid: OmitArgPrefixes[GridOptions], execution: OmitArgPrefixes[ExecutionOptions]) -> None:
    """Compare methods and selectors on a suite. If it is stopped, re-run the command to resume.

    Args:
        grid: What is compared.
        execution: Where and how cells are run.
    """
    grid.check()
    execution.check()
    on_stop(lambda: "Re-run the command to resume.")
    load_torch(f"running {grid.suite}; results will be in {execution.out}")
    from qurate.benchmark.executors import CellRunner
    from qurate.benchmark.folder import BenchmarkFolder
    from qurate.distributed import external_world_size

    if external_world_size() > 1:
        raise ConfigError("a benchmark starts its processes itself. Run it without torchrun, or as one task of srun.")
    found = _make_grid(grid, execution)
    data = found.options.data
    runner = CellRunner(found.suite, None if data is None else data.resolve(), found.options.weights)
    folder = BenchmarkFolder(execution.out)
    if execution.dry_run:
        _print_plan(found, folder, runner, execution.processes or _processes(found))
        return
    with folder.claimed():
        _run(found, folder, runner, execution)


def _make_grid(options: GridOptions, execution: ExecutionOptions) -> Grid:
    """The grid, with the suite, backbone and weights that the words mean."""
    from qurate.benchmark.grid import Grid
    from qurate.config import ExecutionConfig
    from qurate.data.own_images import count_images
    from qurate.data.suites import load_suite
    from qurate.embedding.backbone import choose_device
    from qurate.networks.backbone_names import find_backbone

    suite, data = load_suite(options.suite), options.data
    backbone, weights, message = find_backbone(
        options.backbone or suite.backbone,
        options.weights,
        options.image_size,
        options.pooling,
        look=lambda: (0 if data is None else count_images(data), choose_device(execution.device)),
    )
    if message:
        print_line(message)
    options = replace(options, backbone=backbone, weights=weights)
    hardware = ExecutionConfig(device=execution.device, devices=execution.devices, workers=execution.workers)
    return Grid(suite, options, hardware)


def _run(grid: Grid, folder: BenchmarkFolder, runner: CellRunner, execution: ExecutionOptions) -> None:
    """Embed the images, run the cells that are not finished, and say where the results are."""
    from qurate.benchmark.executors import executors_that_fit, gpus_per_cell
    from qurate.benchmark.folder import FACTS
    from qurate.benchmark.progress import last_line
    from qurate.benchmark.results import write_file
    from qurate.embedding.backbone import choose_device
    from qurate.runtime.cluster import nodes, start_ray, stop_ray

    cells, gpus = grid.cells(), _gpus(grid)
    all_cells = count(len(cells), "cell")
    to_run = [cell for cell in cells if not folder.is_finished(cell)]
    print_line(f"{grid.suite.title}: {all_cells}, {len(cells) - len(to_run)} of them already finished.")
    on_stop(lambda: f"Finished: {sum(map(folder.is_finished, cells))} of {all_cells}. Re-run the command to resume.")
    processes = execution.processes or _processes(grid)
    if execution.ray in (None, "local"):
        choose_device(grid.execution.device)  # is it there?
    uses_ray = bool(execution.ray and to_run)
    try:
        if uses_ray:
            wanted = processes if execution.ray == "local" else execution.processes or 0
            start_ray(execution.ray or "", processes * grid.execution.devices)
            gpus = execution.cell_gpus or gpus_per_cell(grid.execution, nodes())
            processes = executors_that_fit(nodes(), wanted, gpus, grid.execution.devices)
        _embed(runner, to_run)
        write_file(folder.path / FACTS, json.dumps(_facts(grid, cells), indent=1) + "\n")
        executors = _make_executors(runner, min(processes, len(to_run)), gpus, grid.execution.devices, ray=uses_ray)
        failed = _run_cells(cells, executors, folder)
    finally:
        if uses_ray:
            stop_ray()
    print_line(f"Results: {folder.path / 'results.csv'}")
    if others := folder.count_others(cells):
        print_line(
            f"Not in it: {count(others, 'finished cell')} of other commands or versions in this folder. Name all "
            "methods and seeds in one command for one table; cells of the same settings and version are not run again."
        )
    for cell in failed:
        where = folder.path / "cells" / cell.name / "error.txt"
        print_line(f"Failed: {cell.title()}: {last_line(folder.error(cell))} ({where})")
    print_next(NextStep("make tables and figures", ("report", str(folder.path))))
    if failed:
        print_line(f"{len(failed)} of {all_cells} failed. Re-run the command to try them again.")
        sys.exit(1)


def _make_executors(runner: CellRunner, count: int, gpus: int, cpus: int, *, ray: bool) -> list[Executor]:
    """As many executors, each with the GPUs and CPUs of a cell."""
    import torch

    from qurate.benchmark.executors import ProcessExecutor, RayExecutor, share_gpus

    if ray:
        return [RayExecutor(runner, gpus, cpus) for _ in range(count)]
    named = os.environ.get("CUDA_VISIBLE_DEVICES")
    visible = named.split(",") if named else [str(number) for number in range(torch.cuda.device_count())]
    return [ProcessExecutor(runner, some) for some in share_gpus(visible, count, gpus)]


def _run_cells(cells: Sequence[Cell], executors: Sequence[Executor], folder: BenchmarkFolder) -> list[Cell]:
    """Run the cells; those that failed."""
    from qurate.benchmark.executors import run_cells
    from qurate.benchmark.progress import CellDisplay

    try:
        with CellDisplay(Console(), cells, list(folder.seconds(cells)), len(executors)) as display:
            return run_cells(cells, executors, folder, display)
    finally:
        for executor in executors:
            executor.close()


def _embed(runner: CellRunner, to_run: Sequence[Cell]) -> None:
    """Read and embed the images of every scenario once, so that the workers find the embeddings in the cache."""
    from qurate.runtime.progress import PhaseBars

    seen = set()
    with PhaseBars(Console()) as bars:
        for cell in to_run:
            # Drawn splits of a scenario all hold the same images; lists may differ by shots.
            where = cell.scenario, 0 if cell.protocol == "drawn" else cell.shots
            if where not in seen and not runner.suite.generated:
                seen.add(where)
                runner.load(cell, functools.partial(bars.show, "embedding"))


def _print_plan(grid: Grid, folder: BenchmarkFolder, runner: CellRunner, processes: int) -> None:
    """What would run, and how long it would take."""
    from qurate.benchmark.progress import estimate
    from qurate.runtime.progress import say_time

    cells = grid.cells()
    to_run = [cell for cell in cells if not folder.is_finished(cell)]
    expected = estimate(to_run, list(folder.seconds(cells)), runner)
    costs = dict(zip(to_run, expected.of_cells, strict=True))
    print_line(f"{grid.suite.title}: {count(len(cells), 'cell')}")
    for cell in cells:
        cost = costs.get(cell)
        state = "finished" if cell not in costs else "time unknown" if cost is None else f"about {cost:.0f} s"
        failed = ", failed before" if cell in costs and folder.error(cell) else ""
        print_line(f"{cell.name}  {cell.title()}: {state}{failed}")
    if not to_run:
        print_line("All are finished. Nothing to run.")
        return
    unknown = expected.of_cells.count(None)
    timed = len(to_run) - expected.measured - unknown
    how = [f"{expected.measured} by finished cells of the same method and selector"] if expected.measured else []
    how += [f"{timed} by a few training steps on this machine"] if timed else []
    how += [f"{unknown} not counted, of methods that take no training steps"] if unknown else []
    print_line(
        f"{count(len(to_run), 'cell')} to run: {say_time(expected.whole(processes))} with {processes} at once "
        f"(estimated: {'; '.join(how)}). Cells that share pre-training pay for it once."
    )


def _facts(grid: Grid, cells: Sequence[Cell]) -> dict[str, object]:
    from qurate.benchmark.folder import current_commit
    from qurate.model_selection import describe_rule

    return {
        "suite": grid.suite.name,
        "suite_title": grid.suite.title,
        "backbone": cells[0].backbone,
        "weights": cells[0].weights,
        "train": "full" if grid.suite.generated else grid.options.train,
        "protocol": grid.protocol,
        "commit": current_commit(),
        "steps": min(cell.config.training.steps for cell in cells),
        "cells": [cell.name for cell in cells],
        "model_selection": {rule: describe_rule(rule, grid.protocol) for rule in cells[0].rules},
    }


def _gpus(grid: Grid) -> int:
    """GPUs that a cell needs on this machine."""
    import torch

    uses = grid.execution.device == "cuda" or (grid.execution.device == "auto" and torch.cuda.is_available())
    return grid.execution.devices if uses else 0


def _processes(grid: Grid) -> int:
    """How many cells run at once: one GPU is not given to one process per core."""
    import torch

    from qurate.runtime.machine import available_cores

    gpus = _gpus(grid)
    return max(1, torch.cuda.device_count() // gpus if gpus else available_cores() // grid.execution.devices)
