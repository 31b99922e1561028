"""Can games whose truth is known teach how far to balance? The source plays the target, on Office-31.

    python benchmarks/games.py --seeds 0,1,2

In a game the labelled target and the trusted samples of a finished run are the source, three source samples per class
are the labelled target, and the rest of the source is the unlabelled target, thinned to tails of 1:1 to 30:1. Its
labels are at hand, so the reward of a weight w (see `qurate.selection.selectors`) is the true accuracy of a short run
with it; no label of the real target is touched. What the games teach are the two constants of w(d), by the mean reward
of all games. The real target, at 1:1, 5:1 and 20:1, is then adapted with them and with the rule's own. W to A only,
which we tune on. Prints a row for each seed as it ends.
"""

from __future__ import annotations

import itertools
from dataclasses import replace
from statistics import mean

import numpy as np
import torch
from office_answers import BACKBONE, DATA, parse

from qurate.benchmark.cell import Cell
from qurate.benchmark.executors import Worker
from qurate.benchmark.grid import Grid
from qurate.config import AdaptiveShareConfig, RunConfig
from qurate.data.samples import Inputs, Labeled, SealedLabels, Split, Unlabeled, join, take
from qurate.data.suites import load_suite, thin_to_tail
from qurate.evaluation import evaluate
from qurate.networks.backbone_names import find_weights
from qurate.selection.algorithm import Adaptation, fit
from qurate.selection.pseudo_labels import Positives, Round
from qurate.selection.selectors import balance, best_within_room

SCENARIO = "webcam:amazon"
IMBALANCES = (1, 5, 20)
TAILS, DRAWS, WEIGHTS = (1, 3, 10, 30), 2, (0.0, 0.5, 1.0)
STEPS, ROUNDS, ROUND_STEPS = 500, 4, 100
FROM, OVER = np.arange(0.1, 1.8, 0.05), (0.05, 0.2, 0.35, 0.6, 1.0)
Game = tuple[float, list[float]]
"""How unequal the first predictions were, and the accuracy by weight."""


class Weighed:
    """The adaptive rule with one weight in all rounds; keeps how unequal the predictions of the first round are."""

    def __init__(self, config: AdaptiveShareConfig, weight: float) -> None:
        self.config, self.weight = config, weight
        self.distances: list[float] = []

    def select(self, round: Round) -> Positives:
        """The share of the round, balanced by the weight."""
        self.distances.append(1 - balance(round, replace(self.config, lopsided_from=1.0, lopsided_over=1.0)))
        scores = round.phi - self.weight * round.class_quantile(round.phi, 0.5)
        return round.positives_at(best_within_room(round, scores, self.weight, self.config))


def play(real: Split, done: Adaptation, config: RunConfig, tail: int, draw: int) -> Game:
    """One game with every weight."""
    source, target = real.source, real.target_labeled
    trusted: Inputs = take(real.target_unlabeled.inputs, done.positives.indices)
    rng = torch.Generator().manual_seed(1000 * config.seed + 10 * tail + draw)
    order = torch.randperm(len(source), generator=rng)
    few = torch.cat([order[source.labels[order] == label][:3] for label in range(real.n_classes)])
    rest = order[~torch.isin(order, few)]
    game = replace(
        real,
        source=Labeled(join(target.inputs, trusted), torch.cat([target.labels, done.positives.labels])),
        target_labeled=Labeled(take(source.inputs, few), source.labels[few]),
        target_unlabeled=Unlabeled(take(source.inputs, rest), SealedLabels(source.labels[rest])),
    )
    game = thin_to_tail(game, tail, draw)
    short = replace(
        config,
        training=replace(config.training, steps=STEPS),
        selection=replace(config.selection, rounds=ROUNDS, round_steps=ROUND_STEPS),
    )
    distance, rewards = 0.0, []
    for weight in WEIGHTS:
        chosen = config.selection.selector
        assert isinstance(chosen, AdaptiveShareConfig)
        selector = Weighed(chosen, weight)
        rewards.append(accuracy(fit(game, short, selector=selector), game))
        distance = selector.distances[0]
    return distance, rewards


def accuracy(done: Adaptation, split: Split) -> float:
    return 100 * evaluate(done.method, split.target_unlabeled).accuracy


def value(games: list[Game], lopsided_from: float, lopsided_over: float) -> float:
    """Mean reward of the games under w(d), between the weights that were played."""
    weights = [min(1.0, max(0.0, (lopsided_from - distance) / lopsided_over)) for distance, _ in games]
    return mean(float(np.interp(w, WEIGHTS, rewards)) for w, (_, rewards) in zip(weights, games, strict=True))


def learn(games: list[Game]) -> tuple[float, float]:
    """The constants with the largest mean reward."""
    return max(itertools.product(FROM.tolist(), OVER), key=lambda pair: value(games, *pair))


def with_constants(config: RunConfig, lopsided_from: float, lopsided_over: float) -> RunConfig:
    selector = config.selection.selector
    assert isinstance(selector, AdaptiveShareConfig)
    chosen = replace(selector, lopsided_from=lopsided_from, lopsided_over=lopsided_over)
    return replace(config, selection=replace(config.selection, selector=chosen))


def cells(seed: int) -> list[Cell]:
    grid = Grid(
        load_suite("office31"),
        DATA,
        scenarios=(SCENARIO,),
        methods=("tml+adaptive",),
        seeds=(seed,),
        backbone=BACKBONE,
        weights=find_weights(BACKBONE, "auto"),
        imbalances=IMBALANCES,
    )
    return list(grid.cells())


def main() -> None:
    seeds = parse(__doc__)
    worker = Worker(load_suite("office31"), DATA, find_weights(BACKBONE, "auto"))
    heads = ("from", "over", "games, learned", "games, rule", "games, w = 0", "games, w = 1")
    real = [f"{imbalance}:1, {who}" for imbalance in IMBALANCES for who in ("learned", "rule")]
    print(f"| seed | {' | '.join((*heads, *real))} |\n|---|{'---:|' * (len(heads) + len(real))}")
    for seed in seeds:
        runs = [(worker.load(cell), worker.localize(cell.config)) for cell in cells(seed)]
        split, config = runs[0]
        done = fit(split, config)
        games = [play(split, done, config, tail, draw) for tail in TAILS for draw in range(DRAWS)]
        learned = learn(games)
        rule = config.selection.selector
        assert isinstance(rule, AdaptiveShareConfig)
        own = rule.lopsided_from, rule.lopsided_over
        row = [value(games, *pair) for pair in (learned, own, (-9.0, 1.0), (99.0, 1.0))]
        for thinned, run in runs:
            row += [accuracy(fit(thinned, with_constants(run, *pair)), thinned) for pair in (learned, own)]
        numbers = [*(f"{each:.2f}" for each in learned), *(f"{each:.1f}" for each in row)]
        print(f"| {seed} | {' | '.join(numbers)} |", flush=True)


if __name__ == "__main__":
    main()
