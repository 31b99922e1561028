"""Two learning-rate schedules, by steps (the MME code's) and by progress (Ganin's), side by side for every method.

    python benchmarks/schedule.py

Office-31, W to A, and the digits pair, seeds 0 to 2. Writes docs/office31/schedule.csv and schedule.md; finished runs
are kept.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Literal, get_args

import pandas as pd
import torch

from qurate.benchmark.grid import DIGITS
from qurate.data.digits import digits_split
from qurate.data.samples import Split
from qurate.data.splits import read_mme_split
from qurate.embedding.embed import embed_split
from qurate.evaluation import evaluate
from qurate.networks.backbone_names import find_weights
from qurate.presets import make_config
from qurate.registry import TRAINED, row_title
from qurate.runtime.files import write_atomically
from qurate.runtime.machine import keep_freed_memory
from qurate.selection.algorithm import fit

REPOSITORY = Path(__file__).resolve().parents[1]
DATA = Path(os.environ.get("QURATE_DATA") or REPOSITORY.parent / "shared" / "data")
WEIGHTS = DATA.parent / "weights" / "tf_efficientnet_lite0.safetensors"
BACKBONE = "timm/tf_efficientnet_lite0"
ROWS = (*((method, "none") for method in TRAINED), ("tml", "confidence"), ("tml", "balanced"), ("tml", "dqn"))
Schedule = Literal["steps", "progress"]
SCHEDULES: tuple[Schedule, ...] = get_args(Schedule)
SEEDS = (0, 1, 2)
PAIRS = ("W to A", "digits")

Run = tuple[str, str, str, Schedule, int]
"""Pair of domains, method, selector, schedule, seed."""
COLUMNS = ["pair", "method", "selector", "schedule", "seed", "accuracy"]


@cache
def office31() -> Split:
    split = read_mme_split(DATA / "office31", "webcam", "amazon", 3)
    return embed_split(split, BACKBONE, str(WEIGHTS) if WEIGHTS.is_file() else find_weights(BACKBONE, "auto"))


def run(pair: str, method: str, selector: str, schedule: Schedule, seed: int) -> float:
    torch.set_num_threads(1)
    keep_freed_memory()
    is_digits = pair == "digits"
    split = digits_split(shots=3, seed=seed) if is_digits else office31()
    config = make_config(
        method, selector, network=DIGITS if is_digits else None, steps=150 if is_digits else None, seed=seed
    )
    config = replace(config, training=replace(config.training, schedule=schedule))
    return evaluate(fit(split, config).method, split.target_unlabeled).accuracy


def to_markdown(table: pd.DataFrame) -> str:
    means = table.groupby(["pair", "method", "selector", "schedule"])["accuracy"].mean() * 100
    lines = ["| | W to A, steps | progress | digits, steps | progress |", "|---|---:|---:|---:|---:|"]
    for method, selector in ROWS:
        cells = [means.get((pair, method, selector, schedule)) for pair in PAIRS for schedule in SCHEDULES]
        shown = " | ".join("-" if cell is None else f"{cell:.1f}" for cell in cells)
        lines.append(f"| {row_title(method, selector)} | {shown} |")
    means = table.groupby(["pair", "schedule"])["accuracy"].mean() * 100
    shown = " | ".join(f"{means.get((pair, schedule), float('nan')):.1f}" for pair in PAIRS for schedule in SCHEDULES)
    return "\n".join([*lines, f"| mean | {shown} |", ""])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=REPOSITORY / "docs" / "office31")
    parser.add_argument("--processes", type=int, default=os.cpu_count())
    arguments = parser.parse_args()
    path = arguments.out / "schedule.csv"
    table = pd.read_csv(path) if path.exists() else pd.DataFrame(columns=COLUMNS)
    done = set(table[COLUMNS[:-1]].itertuples(index=False, name=None))
    asked: list[Run] = [(p, m, s, how, seed) for p in PAIRS for m, s in ROWS for how in SCHEDULES for seed in SEEDS]
    to_run = [one for one in asked if one not in done]
    if any(one[0] != "digits" for one in to_run):
        office31()  # embed once, before the workers start
    rows = table.values.tolist()
    with ProcessPoolExecutor(arguments.processes, mp_context=multiprocessing.get_context("spawn")) as pool:
        waiting = {pool.submit(run, *one): one for one in to_run}
        for future in as_completed(waiting):
            rows.append([*waiting[future], future.result()])
            table = pd.DataFrame(rows, columns=COLUMNS).sort_values(COLUMNS[:-1])
            write_atomically(path, table.to_csv(index=False))
            print(*waiting[future], f"{rows[-1][-1]:.1%}", flush=True)
    text = to_markdown(table)
    write_atomically(arguments.out / "schedule.md", text)
    print(text)


if __name__ == "__main__":
    main()
