"""How long each row of the table of all methods takes on one core: Office-31, W to A, three labels, embeddings at hand.

    python benchmarks/method_seconds.py --data ../shared/data --csv docs/methods/seconds.csv

Rows that train a network: milliseconds of a step times the steps of the row, with those of S+T where the default
selector has S+T label beside it; what a round does beside its steps is not in it. Rows that are fitted, and those with
adapted source labels, whose steps differ: the whole run.
Some minutes; leave the machine alone meanwhile.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

import pandas as pd
import torch
from head_rate import seconds_per_step

from qurate.data.samples import Split
from qurate.presets import make_config
from qurate.registry import FITTED, SLA, TRAINED
from qurate.runtime.machine import keep_freed_memory
from qurate.selection.algorithm import fit
from selection import read

BASELINE = "source_target"
ADAPTED = tuple(f"{name}+{SLA}" for name in (BASELINE, "mme", "tml"))


def seconds_of_fit(split: Split, method: str, selector: str) -> float:
    """The whole run."""
    began = time.perf_counter()
    fit(split, make_config(method, selector, seed=0))
    return time.perf_counter() - began


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=Path("../shared/data"))
    parser.add_argument("--steps", type=int, default=75, help="of each training that is timed")
    parser.add_argument("--csv", type=Path, help="where the seconds go")
    options = parser.parse_args()
    keep_freed_memory()
    torch.set_num_threads(1)
    split, rows = read("webcam:amazon", "plain", 0, 3, options.data), []
    steps = {name: seconds_per_step(split, name, options.steps) for name in TRAINED}
    for selector in ("none", "adaptive"):
        for name, step in steps.items():
            seconds = step * make_config(name, selector).total_steps
            if selector != "none" and name != BASELINE:  # S+T is its own
                seconds += steps[BASELINE] * make_config(BASELINE, "none").total_steps
            rows.append((name, selector, seconds))
        rows += [(name, selector, seconds_of_fit(split, name, selector)) for name in (*ADAPTED, *FITTED)]
    table = pd.DataFrame(rows, columns=["method", "selector", "seconds"]).round(1)
    if options.csv is not None:
        table.to_csv(options.csv, index=False)
    print(table.to_string(index=False))


if __name__ == "__main__":
    main()
