"""Which evidence tells whether neighbours are good judges of pseudo-labels: three kinds, against what they are worth.

    python benchmarks/selection.py --data ../shared/data --out selection --kinds plain,20:1 --seeds 0 --rows PARTS
    python benchmarks/judges.py --data ../shared/data --results selection/results.csv

Evidence by what a run has, after line 1 of Algorithm 1 and without any label of D_u:

- assortativity: how often the ten nearest neighbours have the predicted class, beyond chance. The default uses it;
- labelled: how much more often the vote of the ten nearest unlabelled images names a labelled target image rightly than
  the class centres do, each labelled image being left out of its centre;
- source: how much more often ten neighbours name a source image rightly than class centres do, where the source is the
  target: one half of it labelled, the other thinned to the mean number of unlabelled images per class.

What neighbours are worth is the accuracy of the default with them at full weight minus that without them.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import pandas as pd
import torch
from scipy.stats import spearmanr
from torch import Tensor
from torch.nn import functional

from qurate.data.samples import Split
from qurate.evaluation import true_labels
from qurate.networks.inference import log_probabilities
from qurate.presets import make_config
from qurate.runtime.machine import keep_freed_memory
from qurate.runtime.randomness import generator
from qurate.selection.algorithm import fit
from qurate.selection.reward import assortativity
from selection import read

NEIGHBORS = 10
COLUMN = ["scenario", "kind", "seed"]


def nearest(rows: Tensor, others: Tensor, *, own: bool) -> Tensor:
    """Positions of the ten nearest others of each row of unit length; a row is not its own neighbour."""
    cosines = rows @ others.T
    if own:
        cosines.fill_diagonal_(-2.0)
    return cosines.topk(NEIGHBORS, dim=1).indices


def share_right(named: Tensor, labels: Tensor) -> float:
    return float((named == labels).double().mean())


def class_centers(rows: Tensor, labels: Tensor, n_classes: int) -> Tensor:
    """Sum of the rows of each class, (K, d)."""
    return torch.zeros(n_classes, rows.shape[1]).index_add(0, labels, rows)


def by_labelled(split: Split, probabilities: Tensor) -> float:
    """Neighbours against centres on the labelled target images."""
    labels, n_classes = split.target_labeled.labels, split.n_classes
    target, unlabeled = (
        functional.normalize(torch.as_tensor(part.inputs), dim=1)
        for part in (split.target_labeled, split.target_unlabeled)
    )
    votes = probabilities[nearest(target, unlabeled, own=False)].mean(dim=1).argmax(dim=1)
    every = torch.cat([target, unlabeled])
    centers = class_centers(every, torch.cat([labels, probabilities.argmax(dim=1)]), n_classes)
    cosines = target @ functional.normalize(centers, dim=1).T
    without = functional.normalize(centers[labels] - target, dim=1)
    cosines.scatter_(1, labels.unsqueeze(1), (target * without).sum(dim=1, keepdim=True))
    return share_right(votes, labels) - share_right(cosines.argmax(dim=1), labels)


def by_source(split: Split, seed: int) -> float:
    """Neighbours against centres on the source, which plays the target."""
    rows, labels = functional.normalize(torch.as_tensor(split.source.inputs), dim=1), split.source.labels
    half = torch.rand(len(rows), generator=generator(seed, 21)) < 0.5
    size = max(2, round(len(split.target_unlabeled) / split.n_classes))
    played = torch.cat([((labels == label) & ~half).nonzero().squeeze(1)[:size] for label in labels.unique()])
    centers = functional.normalize(class_centers(rows[half], labels[half], split.n_classes), dim=1)
    named = (rows[played] @ centers.T).argmax(dim=1)  # pseudo-labels of the played target
    of_neighbors = functional.one_hot(named, split.n_classes).double()[nearest(rows[played], rows[played], own=True)]
    return share_right(of_neighbors.mean(dim=1).argmax(dim=1), labels[played]) - share_right(named, labels[played])


def measure_column(scenario: str, kind: str, seed: int, data: Path) -> dict[str, float | str]:
    """The evidence of one column, and the truth beside it."""
    split = read(scenario, kind, seed, 3, data)
    unlabeled, truth = torch.as_tensor(split.target_unlabeled.inputs), true_labels(split.target_unlabeled)
    network = fit(split, make_config("tml", "none", seed=seed)).method.network
    probabilities = log_probabilities(network, split.target_unlabeled.inputs).exp()
    rows = functional.normalize(unlabeled, dim=1)
    near, predicted = nearest(rows, rows, own=True), probabilities.argmax(dim=1)
    return {
        "scenario": scenario,
        "kind": kind,
        "seed": seed,
        "images per class": len(rows) / split.n_classes,
        "assortativity": assortativity(predicted, near, predicted, split.n_classes),
        "true assortativity": assortativity(truth, near, truth, split.n_classes),
        "labelled": by_labelled(split, probabilities),
        "source": by_source(split, seed),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="folder with office31 and office_home")
    parser.add_argument("--results", type=Path, required=True, help="results.csv of benchmarks/selection.py")
    options = parser.parse_args()
    torch.set_num_threads(1)
    keep_freed_memory()
    results = pd.read_csv(options.results).query("shots == 3")
    accuracy = results.pivot_table(index=COLUMN, columns="row", values="accuracy")
    worth = (100 * (accuracy["neighbours always"] - accuracy["without neighbours"])).dropna().rename("worth")
    columns = worth.reset_index()[COLUMN].itertuples(index=False)
    found = [measure_column(str(one.scenario), str(one.kind), int(str(one.seed)), options.data) for one in columns]
    table = pd.DataFrame(found).set_index(COLUMN).join(worth)
    print(table.round(3).to_string())
    for name in ("assortativity", "labelled", "source", "images per class"):
        test = spearmanr(table[name], table["worth"])
        print(f"{name}: rank correlation with the worth {test.statistic:+.2f} over {len(table)} columns")


if __name__ == "__main__":
    main()
