"""Whether confident neighbours of answers should join them, as in LADA, when the default run learns from answers.

The default run (TML + adaptive) is made, `density` asks for two labels per class, and the short run learns from them:
as it is, and with those of the n nearest unlabelled images of each answer that the model gives its class with a
probability above a threshold. They remain in D_u, to be predicted like the others. They join, with that class,

- before: D_t, once, by the probabilities of the model that was asked;
- anywhere: the same, but as many of all images that this model is sure of, drawn at random: the control;
- rounds: D_p, in each round beside what the selector trusts, by the probabilities of that round.

Paper: Sun et al., "Local context-aware active domain adaptation", 2023, which lets neighbours of answers and of those
that joined in by chance, under their own predicted class, the more likely the rarer the class.

    python benchmarks/answer_neighbors.py --data ../shared/data --seeds 0
    python benchmarks/answer_neighbors.py --data ../shared/data --seeds 1,2 --joining before/10/0.9

A row for each way: accuracy on all images, where answered ones count as right, and on those not asked about; how many
joined (in the last round), how many of these rightly, and how many the run as it is trusts in the end under that class.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import pandas as pd
import torch
from torch import Tensor

from qurate.active.pool import Pool, main_directions
from qurate.config import RunConfig
from qurate.data.samples import Labeled, Split, join, take
from qurate.evaluation import Annotator, predict_probabilities, true_labels
from qurate.neighbors import nearest_rows
from qurate.presets import make_config
from qurate.registry import QUERY_STRATEGIES
from qurate.runtime.machine import keep_freed_memory
from qurate.selection.algorithm import fit
from qurate.selection.answered import Previous, answer, fit_with_answers, shorten
from qurate.selection.pseudo_labels import Positives, Round
from qurate.selection.selectors import AdaptiveSelector
from qurate.selection.session import Adaptation
from selection import read

SCENARIOS = {"W:A": "webcam:amazon", "C:A": "Clipart:Art"}
SHOTS, ASKED_PER_CLASS = 3, 2
JOINING = ",".join(
    f"{when}/{n}/{threshold}" for when in ("before", "rounds") for n in (3, 10) for threshold in (0.5, 0.9)
)
MEASURES = ["all", "rest", "joined", "right", "trusted anyway"]


class Neighborhood(NamedTuple):
    """The nearest images of each answer among those left, (n_answers, n) int64, and its class, (n_answers,) int64."""

    near: Tensor
    labels: Tensor

    def join(self, probabilities: Tensor, threshold: float) -> Tensor:
        """Positions and classes of the images that join, (2, n), by the probabilities of all, (N_u, K)."""
        classes = self.labels.unsqueeze(1).expand_as(self.near)
        supported = torch.zeros_like(probabilities)  # of each image only classes of answers that it is near to
        supported[self.near, classes] = probabilities[self.near, classes]
        highest, best = supported.max(dim=1)
        joined = (highest > threshold).nonzero().squeeze(1)
        return torch.stack([joined, best[joined]])


class JoiningSelector:
    """The selector 'adaptive', and beside what it trusts the confident neighbours of answers."""

    def __init__(self, config: RunConfig, around: Neighborhood, threshold: float) -> None:
        self.adaptive, self.around, self.threshold = AdaptiveSelector(config.selection.selector), around, threshold
        self.joined = torch.empty(2, 0, dtype=torch.int64)

    def select(self, round: Round) -> Positives:
        """What 'adaptive' trusts, but for images that join, and those."""
        trusted = self.adaptive.select(round)
        indices, labels = self.joined = self.around.join(round.unlabeled.probabilities, self.threshold)
        others = trusted.take(~torch.isin(trusted.indices, indices))
        return others.joined_with(replace(round.positives_at(indices), labels=labels))


def draw_confident(probabilities: Tensor, threshold: float, count: int, seed: int) -> Tensor:
    """As many images as the model is sure of, wherever they are: positions and classes, (2, count)."""
    highest, classes = probabilities.max(dim=1)
    sure = (highest > threshold).nonzero().squeeze(1)
    drawn = sure[torch.randperm(len(sure), generator=torch.Generator().manual_seed(seed))[:count]]
    return torch.stack([drawn, classes[drawn]])


def join_before(split: Split, indices: Tensor, labels: Tensor) -> Split:
    """The split with these images of D_u in D_t as well."""
    target, more = split.target_labeled, take(split.target_unlabeled.inputs, indices)
    return replace(split, target_labeled=Labeled(join(target.inputs, more), torch.cat([target.labels, labels])))


def measure(scenario: str, seed: int, ways: list[str], data: Path) -> Iterator[dict[str, Any]]:
    """A row for the run before the answers, one for the run that learns from them, and one for each way of joining."""
    split = read(SCENARIOS[scenario], "plain", seed, SHOTS, data)
    everything, truth = split.target_unlabeled, true_labels(split.target_unlabeled)
    features, config = torch.as_tensor(everything.inputs), make_config("tml", "adaptive", seed=seed)
    before = fit(split, config)
    probabilities = predict_probabilities(before.method, everything.inputs)
    count = ASKED_PER_CLASS * split.n_classes
    asked = QUERY_STRATEGIES["density"].load()().ask(Pool(features, probabilities), count, seed)
    answers = Annotator(everything).label(asked)
    after = answer(split, asked, answers)
    previous = Previous(before.method.state_dict(), after.keep(before.positives), after.joined)

    def row(way: str, done: Adaptation) -> dict[str, Any]:
        right = predict_probabilities(done.method, everything.inputs).argmax(dim=1) == truth
        rest = right[after.kept]
        share = right.float().mean() if done is before else (rest.sum() + len(asked)) / len(right)
        accuracies = {"all": 100 * float(share), "rest": 100 * float(rest.float().mean())}
        return {"scenario": scenario, "seed": seed, "way": way} | accuracies

    as_it_is = fit_with_answers(after.split, config, previous)
    yield row("not asked", before)
    yield row("as it is", as_it_is)
    rows = main_directions(features)
    for way in ways:
        when, n, threshold = way.split("/")
        around = Neighborhood(nearest_rows(rows[asked], rows[after.kept], int(n)), answers)
        if when != "rounds":
            joined = around.join(probabilities[after.kept], float(threshold))
            if when == "anywhere":
                joined = draw_confident(probabilities[after.kept], float(threshold), joined.shape[1], seed)
            done = fit_with_answers(join_before(after.split, *joined), config, previous)
        else:
            selector = JoiningSelector(config, around, float(threshold))
            done = fit(after.split, shorten(config), selector=selector)
            joined = selector.joined
        right = int((truth[after.kept[joined[0]]] == joined[1]).sum())
        trusted = len(as_it_is.positives.pairs() & {(i, k) for i, k in joined.T.tolist()})
        yield row(way, done) | {"joined": joined.shape[1], "right": right, "trusted anyway": trusted}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=Path("../shared/data"))
    parser.add_argument("--scenarios", default="W:A,C:A")
    parser.add_argument("--seeds", default="0,1,2")
    parser.add_argument("--joining", default=JOINING, help="WHEN/N/THRESHOLD with commas between them")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    keep_freed_memory()
    rows = []
    for scenario in arguments.scenarios.split(","):
        for seed in map(int, arguments.seeds.split(",")):
            began = time.perf_counter()
            for row in measure(scenario, seed, arguments.joining.split(","), arguments.data):
                said = " ".join(f"{name} {round(value, 1)}" for name, value in list(row.items())[3:])
                seconds = time.perf_counter() - began
                print(f"{scenario} seed {seed} {row['way']:14} {said} ({seconds:.0f} s)", flush=True)
                rows.append(row)
    table = pd.DataFrame(rows).groupby(["scenario", "way"], sort=False)[MEASURES].mean()
    print(table.round(1).to_string())


if __name__ == "__main__":
    main()
