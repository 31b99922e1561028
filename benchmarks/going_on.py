"""Learning from answers in a third of the steps, against a whole run and against going on with the finished weights.

    python benchmarks/going_on.py --seeds 0,1,2,3,4

Office-31, TML with selector adaptive; 62 labels in two rounds, for the images that `density` asks about after the short
run. "short" is what `adapt --from` does, "whole" a run from the beginning with all steps, "warm" eight rounds of 125
steps from the weights of the finished run, with as many steps as "short". All are trained one after the other in one
process, so their times can be compared. Prints a row for each scenario and seed as it ends, and the means. Seconds are
those of both rounds together.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import torch
from office_answers import ROUNDS, Asked, now, parse, print_rows
from torch import Tensor

from qurate.benchmark.asking import Stage, learn
from qurate.data.samples import Split
from qurate.selection.algorithm import Adaptation, fit
from qurate.selection.answered import answer
from qurate.training import start

WARM_STEPS = 125


def whole(asked: Asked, split: Split, before: Stage) -> Adaptation:
    """A run from the beginning."""
    return fit(split, asked.config)


def warm(asked: Asked, split: Split, before: Stage) -> Adaptation:
    """All rounds, shorter ones, from the weights of the run before."""
    config = replace(asked.config, selection=replace(asked.config.selection, round_steps=WARM_STEPS))
    trainer = start(split, config)
    trainer.load_weights(before.weights)
    trainer.step = config.training.steps
    return fit(split, config, pretrained=trainer.state_dict())


Train = Callable[[Asked, Split, Stage], Adaptation]
OTHERS: tuple[Train, ...] = (whole, warm)


def run(scenario: str, seed: int) -> list[float]:
    """Accuracy before, accuracy after 62 labels of short, whole and warm, and the seconds of the three."""
    asked = Asked.begin(scenario, "adaptive", seed)
    short = replace(asked.first, seconds=0.0)
    others = [short for _ in OTHERS]
    indices = labels = torch.empty(0, dtype=torch.int64)
    for _ in range(ROUNDS):
        new, said = asked.ask(short)
        indices, labels = torch.cat([indices, new]), torch.cat([labels, said])
        short = learn(asked.split, short, asked.config, new, said, now())
        for place, train in enumerate(OTHERS):
            others[place] = _after(asked, others[place], train, indices, labels)
    stages = (short, *others)
    return [*(asked.accuracy(stage) for stage in (asked.first, *stages)), *(stage.seconds for stage in stages)]


def _after(asked: Asked, before: Stage, train: Train, indices: Tensor, labels: Tensor) -> Stage:
    """Where a way to learn from all answers so far ends, measured on the D_u of the beginning."""
    began = now()
    done = train(asked, answer(asked.split, indices, labels).split, before)
    stage = Stage.first(asked.split, done, 0, before.seconds + now() - began)
    return replace(stage, asked=indices, labels=labels)


def main() -> None:
    seeds = parse(__doc__)
    heads = ("before", "short", "whole", "warm", "seconds short", "seconds whole", "seconds warm")
    print_rows(heads, run, seeds)


if __name__ == "__main__":
    main()
