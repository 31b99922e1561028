"""Which images to label first: the accuracy of the default run after so many first labels, chosen in several ways.

The labelled and the unlabelled images of the public lists are put together, N of them are labelled, and the default run
(TML + adaptive) and a linear model learn from them. Ways to choose: `random`; `list`, the public lists of 3 per class;
`per class`, 3 of each true class at random, which nobody can do; and query strategies that ask the linear model of the
source, as `qurate suggest --source` does.

    python benchmarks/cold_start.py --data ../shared/data --scenarios W:A,C:A --seeds 0,1,2

A row for each: how many classes have no label, the accuracy of the linear model and of the run on all images, where
labelled ones count as right, and of the run on those that no way of choosing had labelled. Where classes have no label,
the run is made without them in D_t.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from typing import NamedTuple

import pandas as pd
import torch
from sklearn.linear_model import LogisticRegression
from torch import Tensor

from qurate.active.pool import Pool
from qurate.data.samples import Labeled, SealedLabels, Split, Unlabeled
from qurate.data.suites import load_suite, read_suite_split
from qurate.embedding.embed import embed_split
from qurate.evaluation import predict_probabilities, true_labels
from qurate.presets import make_config
from qurate.registry import QUERY_STRATEGIES
from qurate.runs.cold_start import predict_by_source
from qurate.runtime.machine import keep_freed_memory
from qurate.selection.algorithm import fit

SCENARIOS = {"W:A": ("office31", "webcam:amazon"), "C:A": ("office_home", "Clipart:Art")}
WAYS = ("random", "list", "per class", "clusters", "density", "degree", "badge")
SHOTS = 3


class Target(NamedTuple):
    """A whole target with its source, and how many of its first images the public list labels."""

    split: Split
    inputs: Tensor
    labels: Tensor
    listed: int


def read(data: Path, scenario: str, backbone: str, weights: str) -> Target:
    name, pair = SCENARIOS[scenario]
    split = read_suite_split(load_suite(name), data / name, pair, shots=SHOTS, seed=0, protocol="mme")
    split = embed_split(split, backbone, weights)
    labeled, unlabeled = split.target_labeled, split.target_unlabeled
    inputs = torch.cat([labeled.inputs, unlabeled.inputs])  # type: ignore[list-item]  # embeddings, then
    return Target(split, inputs, torch.cat([labeled.labels, true_labels(unlabeled)]), len(labeled))


def choose(target: Target, way: str, seed: int) -> Tensor:
    """Positions of 3 images per class of the whole target."""
    split, count = target.split, SHOTS * target.split.n_classes
    order = torch.randperm(len(target.inputs), generator=torch.Generator().manual_seed(seed))
    if way == "random":
        return order[:count]
    if way == "list":
        return torch.arange(target.listed)
    if way == "per class":
        return torch.cat([order[target.labels[order] == k][:SHOTS] for k in range(split.n_classes)])
    probabilities = predict_by_source(split.source.inputs, split.source.labels, target.inputs, split.n_classes)  # type: ignore[arg-type]  # embeddings, then
    chosen: Tensor = QUERY_STRATEGIES[way].load()().ask(Pool(target.inputs, probabilities), count, seed)
    return chosen


def learn(target: Target, chosen: Tensor, seed: int, *, trains: bool) -> dict[str, Tensor]:
    """Which images the linear model and the run get right, of the whole target; labelled ones count as right."""
    split, rest = target.split, torch.ones(len(target.inputs), dtype=torch.bool)
    rest[chosen] = False
    unit = torch.nn.functional.normalize
    ours, theirs = unit(split.source.inputs, dim=1), unit(target.inputs, dim=1)  # type: ignore[arg-type]
    ours, theirs = unit(ours - ours.mean(dim=0), dim=1), unit(theirs - theirs.mean(dim=0), dim=1)
    rows, names = torch.cat([ours, theirs[chosen]]), torch.cat([split.source.labels, target.labels[chosen]])
    weights = torch.ones(len(rows))
    weights[len(ours) :] = max(1.0, len(ours) / len(chosen))
    linear = LogisticRegression(C=30).fit(rows.numpy(), names.numpy(), sample_weight=weights.numpy())
    right = {"linear": torch.from_numpy(linear.predict(theirs.numpy())) == target.labels}
    if trains:
        new = Split(
            source=split.source,
            target_labeled=Labeled(target.inputs[chosen], target.labels[chosen]),
            target_unlabeled=Unlabeled(target.inputs[rest], SealedLabels(target.labels[rest])),
            classes=split.classes,
        )
        network = fit(new, make_config("tml", "adaptive", seed=seed)).method
        everything = Unlabeled(target.inputs, SealedLabels(target.labels))
        right["run"] = predict_probabilities(network, everything.inputs).argmax(dim=1) == target.labels
    for one in right.values():
        one[chosen] = True
    return right


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=Path("../shared/data"))
    parser.add_argument("--weights", default="offline")
    parser.add_argument("--backbone", default="timm/tf_efficientnet_lite0")
    parser.add_argument("--scenarios", default="W:A,C:A")
    parser.add_argument("--seeds", default="0,1,2")
    parser.add_argument("--ways", default=",".join(WAYS))
    parser.add_argument("--linear", action="store_true", help="no runs, only the linear model")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    keep_freed_memory()
    rows = []
    for scenario in arguments.scenarios.split(","):
        target = read(arguments.data, scenario, arguments.backbone, arguments.weights)
        for seed in map(int, arguments.seeds.split(",")):
            asked = torch.zeros(len(target.inputs), dtype=torch.bool)
            found = {}
            for way in arguments.ways.split(","):
                chosen, began = choose(target, way, seed), time.perf_counter()
                asked[chosen] = True
                found[way] = learn(target, chosen, seed, trains=not arguments.linear)
                absent = target.split.n_classes - len(target.labels[chosen].unique())
                said = " ".join(f"{name} {100 * right.float().mean():.1f}" for name, right in found[way].items())
                print(
                    f"{scenario} seed {seed} {way:10} {len(chosen)} labels, {absent} classes without: "
                    f"{said} ({time.perf_counter() - began:.0f} s)",
                    flush=True,
                )
            for way, right in found.items():
                for model, one in right.items():
                    accuracies = {"all": 100 * one.float().mean(), "rest": 100 * one[~asked].float().mean()}
                    rows.append({"scenario": scenario, "seed": seed, "way": way, "model": model} | accuracies)
    table = pd.DataFrame(rows).astype({"all": float, "rest": float})
    print(table.groupby(["scenario", "model", "way"], sort=False)[["all", "rest"]].mean().round(1).to_string())


if __name__ == "__main__":
    main()
