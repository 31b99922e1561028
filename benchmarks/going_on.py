"""Going on from a finished run against beginning anew on Office-31: time and accuracy with the same answers.

    python benchmarks/going_on.py --seeds 0,1,2,3,4

TML with selector adaptive; 62 labels in two rounds, for the images that `density` asks about after the run that goes
on. Both are trained one after the other in one process, so their times can be compared. Prints a row for each scenario
and seed as it ends, and the means. Seconds are those of both rounds together.
"""

from __future__ import annotations

from dataclasses import replace
from statistics import mean

import torch
from office_answers import ROUNDS, SCENARIOS, Asked, now, parse
from torch import Tensor

from qurate.benchmark.asking import Stage, go_on
from qurate.selection.algorithm import fit
from qurate.selection.continuation import answer


def begin_anew(asked: Asked, indices: Tensor, labels: Tensor) -> Stage:
    """A run from the beginning with all answers so far, measured on the D_u of the beginning."""
    began = now()
    after = answer(asked.split, indices, labels)
    done = fit(after.split, asked.config)
    first = Stage.first(asked.split, done, 0, now() - began)
    return replace(first, asked=indices, labels=labels)


def run(scenario: str, seed: int) -> list[float]:
    """Accuracy after 62 labels and seconds of both."""
    asked = Asked.begin(scenario, "adaptive", seed)
    going = replace(asked.first, seconds=0.0)
    anew, seconds = asked.first, 0.0
    indices = labels = torch.empty(0, dtype=torch.int64)
    for _ in range(ROUNDS):
        new, said = asked.ask(going)
        indices, labels = torch.cat([indices, new]), torch.cat([labels, said])
        going = go_on(asked.split, going, asked.config, new, said, now())
        anew = begin_anew(asked, indices, labels)
        seconds += anew.seconds
    return [asked.accuracy(asked.first), asked.accuracy(going), asked.accuracy(anew), going.seconds, seconds]


def main() -> None:
    seeds = parse(__doc__)
    print("| | before | going on | anew | difference | seconds going on | seconds anew | ratio |")
    print("|---|---:|---:|---:|---:|---:|---:|---:|")
    rows = []
    for scenario in SCENARIOS:
        for seed in seeds:
            rows.append(run(scenario, seed))
            print_row(f"{scenario} seed {seed}", rows[-1])
    print_row("mean", [mean(column) for column in zip(*rows, strict=True)])


def print_row(title: str, row: list[float]) -> None:
    before, going, anew, short, long = row
    print(
        f"| {title} | {before:.1f} | {going:.1f} | {anew:.1f} | {going - anew:+.1f} | {short:.0f} | {long:.0f} | "
        f"{short / long:.2f} |",
        flush=True,
    )


if __name__ == "__main__":
    main()
