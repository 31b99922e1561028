"""Seconds of one action of Algorithm 1 as printed, at three sizes of D_s and three of D_u; a figure for the docs.

python benchmarks/scaling.py --out docs/performance
"""

from __future__ import annotations

import argparse
import io
from dataclasses import replace
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
from action import SIZES, make_selector, prepare, random_split, run_ours, small_config

from qurate.runtime.files import write_atomically
from qurate.runtime.machine import keep_freed_memory

SHARES = (0.25, 0.5, 1.0)
WORDS = {"source": "source samples", "unlabeled": "unlabelled samples"}
LINES = {"source": ("11",), "unlabeled": ("12", "13")}
"""Lines of Algorithm 1 whose work grows with that part."""


def measure(grown: str, share: float, actions: int) -> dict[str, float]:
    """Seconds per action by line, with that share of one part and a quarter of the other."""
    full = SIZES["domainnet"]
    sizes = {"source": full.source // 4, "unlabeled": full.unlabeled // 4}
    sizes[grown] = round(getattr(full, grown) * share)
    config = small_config("paper", 100)
    start = prepare(random_split(replace(full, **sizes)), config)
    selector = make_selector(start, config)
    run_ours(start, config, selector, 1)
    seconds = run_ours(start, config, selector, actions).seconds
    return {line: value / actions for line, value in seconds.items()} | {"size": sizes[grown]}


def draw(rows: list[tuple[str, int, float]]) -> bytes:
    """Seconds by size, one panel for each part that grew; dotted, what proportional would be."""
    figure, axes = plt.subplots(1, 2, figsize=(8, 3), layout="constrained")
    for axis, (grown, lines) in zip(axes, LINES.items(), strict=True):
        x, y = zip(*[(size, seconds) for part, size, seconds in rows if part == grown], strict=True)
        axis.plot(x, y, "o-", label=f"line {lines[0]}" if len(lines) == 1 else f"lines {'-'.join(lines)}")
        axis.plot([0, x[-1]], [0, y[-1]], ":", color="grey", label="proportional to the largest")
        axis.set(xlabel=WORDS[grown], ylabel="seconds per action", xlim=(0, None), ylim=(0, None), xticks=[0, *x])
        axis.legend(frameon=False)
    picture = io.BytesIO()
    figure.savefig(picture, format="png", dpi=130)
    return picture.getvalue()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--actions", type=int, default=2)
    arguments = parser.parse_args()
    keep_freed_memory()
    table, rows = ["grown,samples,lines,seconds,action"], []
    for grown, lines in LINES.items():
        for share in SHARES:
            found = measure(grown, share, arguments.actions)
            size = int(found.pop("size"))
            rows.append((grown, size, sum(found[line] for line in lines)))
            table.append(f"{grown},{size},{'+'.join(lines)},{rows[-1][2]:.3f},{sum(found.values()):.3f}")
            print(table[-1], flush=True)
    write_atomically(arguments.out / "scaling.csv", "\n".join(table) + "\n")
    write_atomically(arguments.out / "scaling.png", draw(rows))


if __name__ == "__main__":
    main()
