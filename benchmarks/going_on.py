"""Going on from a finished run against beginning anew on Office-31: time and accuracy with the same answers.

    python benchmarks/going_on.py --seeds 0,1,2,3,4

TML with selector adaptive; 62 labels in two rounds, for the images that `density` asks about after the run that goes
on. "short" begins anew too, with a third of the steps before selection and in each round. All are trained one after the
other in one process, so their times can be compared. Prints a row for each scenario and seed as it ends, and the means.
Seconds are those of both rounds together.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from office_answers import ROUNDS, Asked, now, parse, print_rows
from torch import Tensor

from qurate.benchmark.asking import Stage, go_on
from qurate.config import RunConfig
from qurate.selection.algorithm import fit
from qurate.selection.continuation import answer


def a_third(config: RunConfig) -> RunConfig:
    """The run with a third of its steps before selection and in each round."""
    return replace(
        config,
        training=replace(config.training, steps=config.training.steps // 3),
        selection=replace(config.selection, round_steps=config.selection.round_steps // 3),
    )


def begin_anew(asked: Asked, config: RunConfig, indices: Tensor, labels: Tensor) -> Stage:
    """A run from the beginning with all answers so far, measured on the D_u of the beginning."""
    began = now()
    after = answer(asked.split, indices, labels)
    done = fit(after.split, config)
    first = Stage.first(asked.split, done, 0, now() - began)
    return replace(first, asked=indices, labels=labels)


def run(scenario: str, seed: int) -> list[float]:
    """Accuracy before, accuracy after 62 labels of going on, anew and short, and the seconds of the three."""
    asked = Asked.begin(scenario, "adaptive", seed)
    going = replace(asked.first, seconds=0.0)
    runs, seconds = (asked.config, a_third(asked.config)), [0.0, 0.0]
    stages = [asked.first, asked.first]
    indices = labels = torch.empty(0, dtype=torch.int64)
    for _ in range(ROUNDS):
        new, said = asked.ask(going)
        indices, labels = torch.cat([indices, new]), torch.cat([labels, said])
        going = go_on(asked.split, going, asked.config, new, said, now())
        stages = [begin_anew(asked, config, indices, labels) for config in runs]
        seconds = [sum(both) for both in zip(seconds, (stage.seconds for stage in stages), strict=True)]
    return [*(asked.accuracy(stage) for stage in (asked.first, going, *stages)), going.seconds, *seconds]


def main() -> None:
    seeds = parse(__doc__)
    heads = ("before", "going on", "anew", "short", "seconds going on", "seconds anew", "seconds short")
    print_rows(heads, run, seeds)


if __name__ == "__main__":
    main()
