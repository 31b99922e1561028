"""The verbs of comparisons: demo, benchmark, report."""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import tyro
from rich.console import Console

from qurate.cli import options
from qurate.cli.options import (
    check_count,
    check_folder,
    check_seed,
    split_methods,
    split_numbers,
    split_presets,
    split_query_strategies,
    split_selectors,
    split_some,
)
from qurate.cli.terminal import announce, begin, on_stop, say
from qurate.errors import ConfigError
from qurate.runtime.paths import is_folder, shorten
from qurate.runtime.validation import MOST_STEPS

if TYPE_CHECKING:
    from qurate.benchmark.cell import Cell
    from qurate.benchmark.executors import Lane, Worker
    from qurate.benchmark.folder import BenchmarkFolder
    from qurate.benchmark.grid import Grid
    from qurate.runtime.progress import PhaseBars


def demo(out: options.Folder = Path("demo"), seed: int = 0, steps: int = 400, force: options.Flag = False) -> None:
    """Adapt from typeset to handwritten digits in seven ways and compare them, in minutes and without a download.

    Args:
        out: Folder for results.csv.
        seed: Decides data, weights and batches; the same seed gives the same numbers on CPU.
        steps: Training steps before selection.
        force: Overwrite DIR/results.csv if it exists.
    """
    check_seed("seed", seed)
    check_count("steps", steps, MOST_STEPS)
    check_folder("out", out)
    on_stop(lambda: "Re-run the command with --force.")
    begin()
    from qurate.benchmark.demo import run_demo

    run_demo(out, seed=seed, force=force, console=Console(), steps=steps)


def report(
    folder: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="DIR")],
    out: options.AnyFolder = None,
    reference: options.Row = None,
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
    announce("pandas and Matplotlib", "matplotlib")
    from qurate.report.benchmark_report import print_report, write_report

    made, files = write_report(folder, out, reference=reference)
    print_report(made, Console())
    say(f"Written to {files[0].parent}: {', '.join(file.name for file in files)}")


def benchmark(
    suite: Annotated[str, tyro.conf.arg(metavar="NAME")],
    out: options.Folder,
    data: options.AnyFolder = None,
    scenarios: options.Names = "all",
    methods: options.Methods = "all",
    selectors: options.Selectors = options.EVERY_SELECTOR,
    presets: options.Names = "qurate",
    shots: options.Names = "3",
    seeds: options.Names = "0,1,2",
    backbone: options.AnyName = None,
    weights: options.Weights = None,
    image_size: options.ImageSize = None,
    pooling: options.Pooling = None,
    train: options.Train = None,
    protocol: options.Protocol = None,
    model_selection: options.Names = "last",
    imbalance: options.Names = "1",
    calibrate: options.Flag = False,
    ask: options.Count = None,
    asker: options.QueryStrategies = None,
    ask_rounds: options.Count = None,
    steps: options.Count = None,
    device: options.Device = None,
    devices: options.Count = None,
    precision: options.Precision = None,
    frozen_norms: options.Flag = False,
    workers: options.Count = None,
    cell_gpus: options.Count = None,
    processes: options.Count = None,
    ray: options.Ray = None,
    dry_run: options.Flag = False,
) -> None:
    """Compare methods and selectors on a suite. If it is stopped, re-run the command to resume.

    Args:
        suite: digits, office31, office_home, domainnet126, or the path of a TOML file of your own.
        out: Folder for results.csv, rounds.csv and the cells, which are the single runs.
        data: Folder of the suite's images; digits needs none.
        scenarios: Pairs source:target.
        methods: How the network learns; names of the registry.
        selectors: Which pseudo-labels to trust; names of the registry.
        presets: Settings of selectors dqn and confidence: qurate, paper, or both.
        shots: Labelled target images per class: 1 and 3 have public lists, others need --protocol drawn.
        seeds: Seeds of the runs.
        backbone: timm/NAME.TAG, torchvision/vgg16 or torchvision/resnet34; several side by side as A+B; or
            fast, good, best, auto. The suite's (the paper's) unless given.
        weights: 'pretrained' (download), 'offline' (from the extra qurate[offline]), a weight file, or 'auto'.
        image_size: Side in pixels of the images that a backbone of timm sees.
        pooling: What becomes of the tokens of a transformer: class token, mean of the patches, or both.
        train: 'head' trains on embeddings of the frozen backbone, in minutes; 'full' trains all layers, slowly.
        protocol: mme (public lists), clean (the same, made disjoint) or drawn (at random by seed).
        model_selection: Rules: last, validation, entropy, snd, information_maximization, oracle.
        imbalance: Thin the unlabelled target to a long tail: 20 makes its largest class 20 times the smallest.
        calibrate: Find a temperature for each cell on held-out labelled images (two folds: three times the work).
        ask: Ask for this many labels after each run, and learn from the answers, which come from the hidden labels.
        asker: Who says which images to label next; names of the registry.
        ask_rounds: Ask in this many rounds of equal size; 1 unless given.
        steps: Training steps before selection; the suite's own unless given. Rounds become shorter in proportion.
        device: Where to train.
        devices: Devices that train a cell together, or processes on CPUs; 1 unless given.
        precision: Of floating-point numbers, as Lightning Fabric names it.
        frozen_norms: Batch norms of the backbone keep the statistics that they came with, where all layers are trained.
        workers: Processes that decode images for each cell that trains all layers; none unless given.
        cell_gpus: GPUs that Ray keeps for each cell; as many as --devices unless given.
        processes: How many cells run at once; one for as many cores as a cell has devices, or for as many GPUs.
        ray: Run on Ray: 'local', or the address of a cluster.
        dry_run: Say what would run and how long it would take, and stop.
    """
    chosen_methods, chosen_selectors = split_methods(methods), split_selectors(selectors)
    chosen_presets = split_presets(presets)
    chosen_rules = split_some("model-selection", model_selection)
    chosen_scenarios = () if scenarios == "all" else split_some("scenarios", scenarios)
    chosen_shots, chosen_seeds = split_numbers("shots", shots, least=1), split_numbers("seeds", seeds)
    chosen_imbalances = split_numbers("imbalance", imbalance, least=1)
    check_count("steps", steps, MOST_STEPS)
    check_count("processes", processes)
    check_count("devices", devices)
    check_count("cell-gpus", cell_gpus)
    check_count("workers", workers, 1024, least=0)
    if cell_gpus is not None and (ray is None or cell_gpus < (devices or 1)):
        raise ConfigError(f"--cell-gpus needs --ray, and must be at least --devices ({devices or 1}), got {cell_gpus}.")
    check_count("ask", ask)
    check_count("ask-rounds", ask_rounds)
    chosen_askers = split_query_strategies(ask, asker, ask_rounds)
    check_folder("out", out)
    if data is not None and not is_folder(data):
        raise ConfigError(f"--data must be a folder, got {shorten(data)}, where there is none.")
    on_stop(lambda: "Re-run the command to resume.")
    begin()
    from qurate.benchmark.executors import Worker
    from qurate.benchmark.folder import BenchmarkFolder
    from qurate.benchmark.grid import Grid
    from qurate.data.own_images import count_images
    from qurate.data.suites import load_suite
    from qurate.embedding.backbone import choose_device
    from qurate.networks.backbone_names import find_backbone
    from qurate.runtime.process_group import external_world_size

    if external_world_size() > 1:
        raise ConfigError("a benchmark starts its processes itself. Run it without torchrun, or as one task of srun.")
    found = load_suite(suite)
    named, chosen, message = find_backbone(
        backbone or found.backbone,
        weights or "auto",
        image_size,
        pooling,
        look=lambda: (0 if data is None else count_images(data), choose_device(device or "auto")),
    )
    if message:
        say(message)
    grid = Grid(
        found,
        data,
        scenarios=chosen_scenarios,
        methods=chosen_methods,
        selectors=chosen_selectors,
        presets=chosen_presets,
        shots=chosen_shots,
        seeds=chosen_seeds,
        backbone="" if named == found.backbone else named,
        weights=chosen,
        train=train or "head",
        protocol=protocol or found.protocols[0],
        rules=chosen_rules,
        steps=steps or 0,
        device=device or "auto",
        devices=devices or 1,
        precision=precision or "32-true",
        frozen_norms=frozen_norms,
        workers=workers or 0,
        imbalances=chosen_imbalances,
        calibrate=calibrate,
        askers=chosen_askers,
        ask=ask or 0,
        ask_rounds=ask_rounds or 1,
    )
    worker = Worker(found, None if data is None else data.resolve(), grid.weights)
    folder = BenchmarkFolder(out)
    if dry_run:
        _print_plan(grid, folder, worker, processes or _lanes(grid))
        return
    with folder.claimed():
        _run(grid, folder, worker, processes, ray or "", cell_gpus)


def _run(
    grid: Grid, folder: BenchmarkFolder, worker: Worker, processes: int | None, ray: str, cell_gpus: int | None
) -> None:
    """Embed the images, run the cells that are not finished, and say where the results are."""
    from qurate.benchmark.executors import lanes_for
    from qurate.embedding.backbone import choose_device
    from qurate.runtime.cluster import nodes, start_ray, stop_ray
    from qurate.runtime.progress import PhaseBars

    cells, gpus = grid.cells(), cell_gpus or _gpus(grid)
    to_run = [cell for cell in cells if not folder.is_finished(cell)]
    say(f"{worker.suite.title}: {_count(cells)}, {len(cells) - len(to_run)} of them already finished.")
    on_stop(functools.partial(_standing, cells, folder))
    lanes = processes or _lanes(grid)
    if ray in ("", "local"):
        choose_device(grid.device)  # is it there?
    try:
        if ray and to_run:
            wanted = lanes if ray == "local" else processes or 0
            start_ray(ray, lanes * grid.devices)
            lanes = lanes_for(nodes(), wanted, gpus, grid.devices)
        with PhaseBars(Console()) as bars:
            _embed(worker, to_run, bars)
        folder.write_facts(_facts(grid, cells))
        failed = _run_cells(cells, folder, worker, min(lanes, len(to_run)), (gpus, grid.devices), ray=bool(ray))
    finally:
        if ray and to_run:
            stop_ray()
    say(f"Results: {folder.path / 'results.csv'}. For tables and figures: qurate report {folder.path}")
    if failed:
        _print_failed(failed, folder, cells)
        sys.exit(1)


def _standing(cells: Sequence[Cell], folder: BenchmarkFolder) -> str:
    """How far a stopped benchmark is."""
    done = sum(folder.is_finished(cell) for cell in cells)
    return f"Finished: {done} of {_count(cells)}. Re-run the command to resume."


def _run_cells(
    cells: Sequence[Cell], folder: BenchmarkFolder, worker: Worker, count: int, needs: tuple[int, int], *, ray: bool
) -> list[Cell]:
    """Run the cells in this many lanes, each with the GPUs and CPUs that it needs; the ones that failed."""
    from qurate.benchmark.executors import ProcessLane, RayLane, run_cells, share_gpus
    from qurate.benchmark.progress import CellDisplay

    lanes: list[Lane] = [RayLane(worker, *needs) for _ in range(count)] if ray else []
    lanes = lanes or [ProcessLane(worker, gpus) for gpus in share_gpus(_visible_gpus(), count, needs[0])]
    try:
        with CellDisplay(Console(), cells, list(folder.seconds(cells)), count) as display:
            return run_cells(cells, lanes, folder, display)
    finally:
        for lane in lanes:
            lane.close()


def _embed(worker: Worker, to_run: Sequence[Cell], bars: PhaseBars) -> None:
    """Read the data of every scenario, and embed its images, before the workers start and find them in the cache."""
    seen = set()
    for cell in to_run:
        # Drawn splits of a scenario all hold the same images; lists may differ by shots.
        where = cell.scenario, 0 if cell.protocol == "drawn" else cell.shots
        if where not in seen and not worker.suite.generated:
            seen.add(where)
            worker.load(cell, functools.partial(bars.show, "embedding"))


def _print_failed(failed: Sequence[Cell], folder: BenchmarkFolder, cells: Sequence[Cell]) -> None:
    from qurate.benchmark.progress import last_line

    for cell in failed:
        where = folder.path / "cells" / cell.name / "error.txt"
        say(f"Failed: {cell.title()}: {last_line(folder.error(cell))} ({where})")
    say(f"{len(failed)} of {_count(cells)} failed. Re-run the command to try them again.")


def _print_plan(grid: Grid, folder: BenchmarkFolder, worker: Worker, lanes: int) -> None:
    """What would run, and how long it would take."""
    from qurate.benchmark.progress import estimate
    from qurate.expectation import say_time

    cells = grid.cells()
    to_run = [cell for cell in cells if not folder.is_finished(cell)]
    expected = estimate(to_run, list(folder.seconds(cells)), worker)
    costs = dict(zip(to_run, expected.of_cells, strict=True))
    say(f"{worker.suite.title}: {_count(cells)}")
    for cell in cells:
        state = f"about {costs[cell]:.0f} s" if cell in costs else "finished"
        failed = ", failed before" if cell in costs and folder.error(cell) else ""
        say(f"{cell.name}  {cell.title()}: {state}{failed}")
    if not to_run:
        say("All are finished. Nothing to run.")
        return
    timed = len(to_run) - expected.measured
    how = [f"{expected.measured} by finished cells of the same method and selector"] if expected.measured else []
    how += [f"{timed} by a few training steps on this machine"] if timed else []
    say(
        f"{_count(to_run)} to run: {say_time(expected.whole(lanes))} with {lanes} at once "
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
        "train": "full" if grid.suite.generated else grid.train,
        "protocol": grid.protocol,
        "commit": current_commit(),
        "steps": min(cell.config.training.steps for cell in cells),
        "cells": [cell.name for cell in cells],
        "model_selection": {rule: describe_rule(rule, grid.protocol) for rule in cells[0].rules},
    }


def _count(cells: Sequence[Cell]) -> str:
    return f"{len(cells)} cell{'' if len(cells) == 1 else 's'}"


def _gpus(grid: Grid) -> int:
    """GPUs that a cell needs."""
    import torch

    uses = grid.device == "cuda" or (grid.device == "auto" and torch.cuda.is_available())
    return grid.devices if uses else 0


def _visible_gpus() -> list[str]:
    """The numbers of the GPUs that this process may use."""
    import torch

    if named := os.environ.get("CUDA_VISIBLE_DEVICES"):
        return named.split(",")
    return [str(number) for number in range(torch.cuda.device_count())]


def _lanes(grid: Grid) -> int:
    """How many cells run at once: one GPU is not given to one process per core."""
    import torch

    from qurate.runtime.machine import available_cores

    gpus = _gpus(grid)
    return max(1, torch.cuda.device_count() // gpus if gpus else available_cores() // grid.devices)
