"""The verb `benchmark`."""

from __future__ import annotations

import functools
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import torch
import tyro
from rich.console import Console

from qurate.benchmark.cells import Cell
from qurate.benchmark.commit import current_commit
from qurate.benchmark.estimate import estimate
from qurate.benchmark.folder import BenchmarkFolder
from qurate.benchmark.grid import Grid
from qurate.benchmark.lanes import Lane, ProcessLane, RayLane, start_ray, stop_ray
from qurate.benchmark.progress import CellDisplay, last_line
from qurate.benchmark.results import BenchmarkError
from qurate.benchmark.run import run_cells
from qurate.benchmark.worker import Worker
from qurate.config import Device
from qurate.data.catalog import Protocol, load_suite
from qurate.expectation import say_time
from qurate.model_selection import describe_rule
from qurate.runs.settings import Train, find_weights
from qurate.runtime.machine import available_cores
from qurate.runtime.progress import PhaseBars

Names = Annotated[str, tyro.conf.arg(metavar="A,B,...")]


def benchmark(
    suite: Annotated[str, tyro.conf.arg(metavar="NAME")],
    out: Annotated[Path, tyro.conf.arg(metavar="DIR")],
    data: Annotated[Path | None, tyro.conf.arg(metavar="DIR")] = None,
    scenarios: Names = "all",
    methods: Names = "all",
    selectors: Names = "none,confidence,quality,balanced,random,dqn",
    shots: Names = "3",
    seeds: Names = "0,1,2",
    backbone: Annotated[str, tyro.conf.arg(metavar="NAME")] = "",
    weights: Annotated[str, tyro.conf.arg(metavar="FILE")] = "auto",
    train: Train = "head",
    protocol: Annotated[str, tyro.conf.arg(metavar="mme|clean|drawn")] = "",
    model_selection: Names = "last",
    steps: int = 0,
    device: Device = "auto",
    processes: int = 0,
    ray: Annotated[str, tyro.conf.arg(metavar="local|ADDRESS")] = "",
    dry_run: bool = False,
) -> None:
    """Compare methods and selectors on a suite; the same command goes on where it was stopped.

    Args:
        suite: digits, office31, office_home, domainnet126, or the path of a TOML file of your own.
        out: Folder for results.csv, rounds.csv and the cells.
        data: Folder of the suite's images; digits needs none.
        scenarios: Pairs source:target; all of the suite unless given.
        methods: source_target, dann, adr, cdan, ent, mme, tml, cml, each with every selector; tml+dqn: that pair alone.
        selectors: none, confidence, quality, balanced, random, dqn, dqn_paper, oracle.
        shots: Labelled target images of each class: 1 and 3 have public lists, others need --protocol drawn.
        seeds: Seeds of the runs.
        backbone: timm/NAME.TAG, torchvision/vgg16 or torchvision/resnet34; the suite's (the paper's) unless given.
        weights: 'pretrained' (download), 'offline' (of the extra qurate[offline]), a weight file, or 'auto'.
        train: 'head' trains on embeddings of the frozen backbone; 'full' trains all layers, slowly.
        protocol: mme (public lists), clean (the same, made disjoint) or drawn (at random by seed).
        model_selection: Rules: last, validation, entropy, snd, information_maximization, oracle.
        steps: Training steps before selection; 0 for the suite's own. Rounds become shorter in proportion.
        device: auto, cpu, cuda or mps.
        processes: How many cells run at once; 0 for one a core.
        ray: Run on Ray: 'local', or the address of a cluster.
        dry_run: Say what would run and how long it would take, and stop.
    """
    console, chosen = Console(), load_suite(suite)
    grid = Grid(
        chosen,
        data,
        scenarios=() if scenarios == "all" else _words(scenarios),
        methods=_words(methods),
        selectors=_words(selectors),
        shots=_numbers("shots", shots),
        seeds=_numbers("seeds", seeds),
        backbone=backbone,
        weights=find_weights(backbone or chosen.backbone, weights),
        train=train,
        protocol=_protocol(protocol) if protocol else chosen.protocols[0],
        rules=_words(model_selection),
        steps=steps,
        device=device,
    )
    cells, folder = grid.cells(), BenchmarkFolder(out)
    worker = Worker(chosen, None if data is None else data.resolve(), grid.weights)
    to_run = [cell for cell in cells if not folder.is_finished(cell)]
    lanes = processes or available_cores()
    if dry_run:
        _print_plan(console, cells, to_run, folder, worker, lanes)
        return
    folder.check_own()
    _say(console, f"{chosen.title}: {len(cells)} cells, {len(cells) - len(to_run)} of them finished before.")
    with PhaseBars(console) as bars:
        _embed(worker, to_run, bars)
    if ray and to_run:
        lanes = start_ray(ray, lanes if ray == "local" else processes, _gpus(device))
    folder.write_facts(_facts(grid, cells))
    failed = _run(console, cells, folder, worker, min(lanes, len(to_run)), ray=bool(ray), gpus=_gpus(device))
    _say(console, f"Results: {out / 'results.csv'}; tables of them: qurate report {out}")
    if failed:
        for cell in failed:
            _say(
                console, f"Failed: {cell.title()}: {last_line(folder.error(cell))} ({out}/cells/{cell.name}/error.txt)"
            )
        _say(console, f"{len(failed)} of {len(cells)} cells failed. The same command tries them again.")
        sys.exit(1)


def _run(
    console: Console,
    cells: Sequence[Cell],
    folder: BenchmarkFolder,
    worker: Worker,
    count: int,
    *,
    ray: bool,
    gpus: int,
) -> list[Cell]:
    lanes: list[Lane] = [RayLane(worker, gpus) if ray else ProcessLane(worker) for _ in range(count)]
    try:
        with CellDisplay(console, cells, list(folder.seconds(cells)), count) as display:
            return run_cells(cells, lanes, folder, display)
    except KeyboardInterrupt:
        _say(Console(stderr=True), "qurate: stopped. The same command goes on from here.")
        sys.exit(130)
    finally:
        for lane in lanes:
            lane.close()
        if ray and count:
            stop_ray()


def _embed(worker: Worker, to_run: Sequence[Cell], bars: PhaseBars) -> None:
    """Read the data of every scenario, and embed its images, before the workers start and find them in the cache."""
    seen = set()
    for cell in to_run:
        # Drawn splits of a scenario all hold the same images; lists may differ by shots.
        where = cell.scenario, 0 if cell.protocol == "drawn" else cell.shots
        if where not in seen and not worker.suite.generated:
            seen.add(where)
            worker.load(cell, functools.partial(bars.show, "embedding"))


def _print_plan(
    console: Console,
    cells: Sequence[Cell],
    to_run: Sequence[Cell],
    folder: BenchmarkFolder,
    worker: Worker,
    lanes: int,
) -> None:
    expected = estimate(to_run, list(folder.seconds(cells)), worker)
    costs = dict(zip(to_run, expected.of_cells, strict=True))
    _say(console, f"{worker.suite.title}: {len(cells)} cells")
    for cell in cells:
        state = f"{costs[cell]:.0f} s" if cell in costs else "finished"
        failed = ", failed before" if cell in costs and folder.error(cell) else ""
        _say(console, f"{cell.name}  {cell.title()}: {state}{failed}")
    if not to_run:
        _say(console, "All are finished.")
        return
    timed = len(to_run) - expected.measured
    how = [f"{expected.measured} by finished cells of the same method and selector"] if expected.measured else []
    how += [f"{timed} by a few training steps on this machine"] if timed else []
    _say(
        console,
        f"{len(to_run)} cells to run: {say_time(expected.whole(lanes))} with {lanes} processes "
        f"({'; '.join(how)}). Cells that share pre-training pay for it once.",
    )


def _facts(grid: Grid, cells: Sequence[Cell]) -> dict[str, object]:
    return {
        "suite": grid.suite.name,
        "suite_title": grid.suite.title,
        "backbone": cells[0].backbone,
        "weights": cells[0].weights,
        "train": "full" if grid.suite.generated else grid.train,
        "protocol": grid.protocol,
        "commit": current_commit(),
        "steps": cells[0].config.training.steps,
        "cells": [cell.name for cell in cells],
        "model_selection": {rule: describe_rule(rule, grid.protocol) for rule in cells[0].rules},
    }


def _gpus(device: str) -> int:
    return int(device == "cuda" or (device == "auto" and torch.cuda.is_available()))


def _words(given: str) -> tuple[str, ...]:
    return tuple(word.strip() for word in given.split(",") if word.strip())


def _numbers(argument: str, given: str) -> tuple[int, ...]:
    try:
        return tuple(int(word) for word in _words(given))
    except ValueError:
        raise BenchmarkError(f"{argument} must be integers with commas between them, got '{given}'.") from None


def _protocol(given: str) -> Protocol:
    for protocol in ("mme", "clean", "drawn"):
        if given == protocol:
            return protocol
    raise BenchmarkError(f"protocol must be mme, clean or drawn, got '{given}'.")


def _say(console: Console, line: str) -> None:
    console.print(line, markup=False, highlight=False, soft_wrap=True)
