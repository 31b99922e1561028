"""Seconds of one action of Algorithm 1 as printed, at three sizes of D_s and three of D_u; a figure for the docs.

python benchmarks/scaling.py --out docs/performance
"""

from __future__ import annotations

import argparse
import csv
import io
from dataclasses import replace
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
from action import SEED, SIZES, make_config, prepare, random_split, run_ours

from qurate.files import write_atomically
from qurate.machine import reused_buffers
from qurate.selection.algorithm import DQNSelector, build_selector

SHARES = (0.25, 0.5, 1.0)
WORDS = {"source": "source samples", "unlabeled": "unlabelled samples"}
LINES = {"source": ("11",), "unlabeled": ("12", "13")}
"""Lines of Algorithm 1 whose work grows with that part."""


def measure(grown: str, share: float, actions: int) -> dict[str, float]:
    """Seconds an action by line, with that share of one part and a quarter of the other."""
    full = SIZES["domainnet"]
    sizes = {"source": full.source // 4, "unlabeled": full.unlabeled // 4}
    sizes[grown] = round(getattr(full, grown) * share)
    config = make_config("paper", 100)
    with reused_buffers():
        start = prepare(random_split(replace(full, **sizes)), config)
        selector = build_selector(config.selection, start.trainer, start.data, SEED)
        assert isinstance(selector, DQNSelector)
        run_ours(start, config, selector, 1)
        seconds = run_ours(start, config, selector, actions).seconds
    return {line: value / actions for line, value in seconds.items()} | {"size": sizes[grown]}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--actions", type=int, default=2)
    arguments = parser.parse_args()
    figure, axes = plt.subplots(1, 2, figsize=(8, 3), layout="constrained")
    table = io.StringIO()
    writer = csv.writer(table, lineterminator="\n")
    writer.writerow(("grown", "samples", "lines", "seconds", "action"))
    for axis, (grown, lines) in zip(axes, LINES.items(), strict=True):
        found = [measure(grown, share, arguments.actions) for share in SHARES]
        x = [int(one.pop("size")) for one in found]
        y = [sum(one[line] for line in lines) for one in found]
        for size, seconds, one in zip(x, y, found, strict=True):
            row = (grown, size, "+".join(lines), f"{seconds:.3f}", f"{sum(one.values()):.3f}")
            writer.writerow(row)
            print(*row, flush=True)
        axis.plot(x, y, "o-", label=f"lines {'-'.join(lines)}")
        axis.plot([0, x[-1]], [0, y[-1]], ":", color="grey", label="proportional to the largest")
        axis.set(xlabel=WORDS[grown], ylabel="seconds an action", xlim=(0, None), ylim=(0, None))
        axis.legend(frameon=False)
    write_atomically(arguments.out / "scaling.csv", table.getvalue())
    picture = io.BytesIO()
    figure.savefig(picture, format="png", dpi=130)
    write_atomically(arguments.out / "scaling.png", picture.getvalue())


if __name__ == "__main__":
    main()
