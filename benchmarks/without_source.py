"""Adapting without the source: what is lost where embeddings drawn from class statistics stand for its images.

    python benchmarks/without_source.py --data ../shared/data

A model that `qurate adapt` saves holds the class means of its source and one variance per number; `--from-model` draws
a source from them (`qurate.data.class_statistics`). The rows compare S+T and the default on the source itself, on as
many drawn embeddings, and a logistic regression on the labelled target images alone, which needs no source.
"""

from __future__ import annotations

import argparse
from dataclasses import replace
from pathlib import Path

import pandas as pd
import torch
from sklearn.linear_model import LogisticRegression
from torch import Tensor
from torch.nn import functional

from qurate.data.class_statistics import DRAW_STREAM, class_statistics
from qurate.data.samples import Split
from qurate.evaluation import evaluate, true_labels
from qurate.presets import make_config
from qurate.runtime.machine import keep_freed_memory
from qurate.runtime.randomness import generator
from qurate.selection.algorithm import fit
from selection import read

SCENARIOS = ("webcam:amazon", "Clipart:Art", "dslr:amazon", "Art:Clipart")
ROWS = {"S+T": ("source_target", "none"), "TML + adaptive": ("tml", "adaptive")}


def without_source(split: Split, seed: int) -> Split:
    """The split with drawn embeddings in place of its source."""
    statistics = class_statistics(split.source, split.n_classes)
    assert statistics is not None
    return replace(split, source=statistics.draw(generator(seed, DRAW_STREAM)))


def on_target_alone(split: Split) -> float:
    """Accuracy of a logistic regression on the labelled target, at unit length."""
    labeled, unlabeled = split.target_labeled.inputs, split.target_unlabeled.inputs
    assert isinstance(labeled, Tensor)
    assert isinstance(unlabeled, Tensor)
    linear = LogisticRegression(C=30, max_iter=1000)
    linear.fit(functional.normalize(labeled, dim=1).numpy(), split.target_labeled.labels.numpy())
    named = torch.from_numpy(linear.predict(functional.normalize(unlabeled, dim=1).numpy()))
    return float((named == true_labels(split.target_unlabeled)).double().mean())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="folder with office31 and office_home")
    parser.add_argument("--scenarios", default=",".join(SCENARIOS))
    parser.add_argument("--seeds", default="0,1,2")
    options = parser.parse_args()
    torch.set_num_threads(1)
    keep_freed_memory()
    found = []
    for scenario in options.scenarios.split(","):
        split = read(scenario, "plain", 0, 3, options.data)
        found.append({"scenario": scenario, "row": "target alone", "accuracy": 100 * on_target_alone(split)})
        for seed in map(int, options.seeds.split(",")):
            for source, used in {"the source": split, "drawn": without_source(split, seed)}.items():
                for row, (method, selector) in ROWS.items():
                    network = fit(used, make_config(method, selector, seed=seed)).method
                    accuracy = 100 * evaluate(network, split.target_unlabeled).accuracy
                    found.append({"scenario": scenario, "row": f"{row}, {source}", "accuracy": accuracy})
                    print(f"{scenario} seed {seed} {row}, {source}: {accuracy:.1f}", flush=True)
    means = pd.DataFrame(found).groupby(["row", "scenario"], sort=False)["accuracy"].mean()
    print(means.unstack("scenario").round(1).to_string())


if __name__ == "__main__":
    main()
