"""Errors put into the labels of the source: how many are found, by which score, and what is found without any.

A share of the labels of the source is made wrong: to any other class (uniform), or to the class that models confuse the
class with most (confused). Images are then ranked by what models say that had not learned from them: the linear model
of `qurate adapt`, leave-one-out, or scikit-learn's logistic regression in five folds (--logistic, minutes for each
case). Scores: the probability of the label (self-confidence), the same minus the largest other one (margin), and those
that confident learning lists, as label_issues.csv does.

    python benchmarks/label_errors.py --data ../shared/data --out label_errors
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
import pandas as pd
import torch
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import StratifiedKFold, cross_val_predict
from torch import Tensor
from torch.nn import functional as F

from qurate.data.images import ImageFiles
from qurate.data.samples import Labeled
from qurate.data.suites import load_suite, read_suite_split
from qurate.embedding.embed import embed_split
from qurate.runs.label_issues import find_label_issues, label_issue_table, leave_one_out
from qurate.runtime.files import write_atomically
from qurate.runtime.randomness import generator
from qurate.runtime.tables import to_csv

LITE = "timm/tf_efficientnet_lite"
COLUMNS = {"webcam:amazon": ("office31", f"{LITE}0"), "Clipart:Art": ("office_home", f"{LITE}0+{LITE}2")}
RATE = 0.05
FOLDS = 5


def read(scenario: str, data: Path) -> tuple[Labeled, tuple[str, ...], list[str]]:
    """Embeddings of the source, its classes and its files; the source is the same for all seeds."""
    suite, backbone = COLUMNS[scenario]
    split = read_suite_split(load_suite(suite), data / suite, scenario, shots=3, seed=0, protocol="mme")
    assert isinstance(split.source.inputs, ImageFiles)
    files = [str(path) for path in split.source.inputs.paths]
    return embed_split(split, backbone, "offline").source, split.classes, files


def make_errors(labels: Tensor, probabilities: Tensor, kind: str, seed: int) -> tuple[Tensor, Tensor]:
    """Labels of which a share is wrong, and which ones, (N,) bool; probabilities (N, K) tell what is confused."""
    n, classes = len(labels), probabilities.shape[1]
    made = generator(seed, 31)
    places = torch.randperm(n, generator=made)[: round(RATE * n)]
    wrong, is_wrong = labels.clone(), torch.zeros(n, dtype=torch.bool)
    is_wrong[places] = True
    if kind == "uniform":
        wrong[places] = (labels[places] + torch.randint(1, classes, (len(places),), generator=made)) % classes
        return wrong, is_wrong
    confused = torch.stack([probabilities[labels == k].mean(dim=0) for k in range(classes)])
    confused.fill_diagonal_(-1)
    wrong[places] = confused.argmax(dim=1)[labels[places]]
    return wrong, is_wrong


def logistic(embeddings: Tensor, labels: Tensor, n_classes: int, seed: int) -> Tensor:
    """Log-probabilities by logistic regression in folds, (N, K)."""
    points, named = F.normalize(embeddings.float(), dim=1).numpy(), labels.numpy()
    model = LogisticRegression(C=10, max_iter=50, class_weight="balanced")
    folds = StratifiedKFold(FOLDS, shuffle=True, random_state=seed)
    said = cross_val_predict(model, points, named, cv=folds, method="predict_proba")
    assert said.shape[1] == n_classes
    return torch.from_numpy(np.log(said + 1e-12)).float()


def judge(log_probs: Tensor, labels: Tensor, is_wrong: Tensor) -> dict[str, float]:
    """Errors among the first tenth and precision of the first twentieth, by each score; and of what is listed."""
    probabilities = log_probs.double().exp()
    own = probabilities.gather(1, labels[:, None]).squeeze(1)
    others = probabilities.scatter(1, labels[:, None], -1).amax(dim=1)
    row: dict[str, float] = {}
    for name, score in (("self-confidence", own), ("margin", own - others)):
        order = score.argsort(stable=True)
        row[f"{name}: found in first 10 %"] = float(is_wrong[order[: len(labels) // 10]].sum() / is_wrong.sum())
        row[f"{name}: precision in first 5 %"] = float(is_wrong[order[: len(labels) // 20]].double().mean())
    listed = find_label_issues(log_probs, labels)
    row["listed"] = len(listed)
    row["listed: found"] = float(is_wrong[listed].sum() / is_wrong.sum())
    row["listed: precision"] = float(is_wrong[listed].double().mean()) if len(listed) else float("nan")
    return row


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="folder with office31 and office_home")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--scenarios", default=",".join(COLUMNS))
    parser.add_argument("--seeds", default="0,1,2")
    parser.add_argument("--logistic", action="store_true", help="logistic regression in five folds too")
    options = parser.parse_args()
    torch.set_num_threads(1)
    options.out.mkdir(parents=True, exist_ok=True)
    rows = []
    for scenario in options.scenarios.split(","):
        source, classes, files = read(scenario, options.data)
        embeddings, labels = source.inputs, source.labels
        assert isinstance(embeddings, Tensor)
        clean = leave_one_out(embeddings, labels, len(classes))
        table = label_issue_table(files, "source", labels, clean, classes)
        write_atomically(options.out / f"as_it_is-{scenario.replace(':', '-')}.csv", to_csv(table))
        print(f"{scenario} as it is: {len(table)} of {len(labels)} listed", flush=True)
        for seed in map(int, options.seeds.split(",")):
            for kind in ("uniform", "confused"):
                wrong, is_wrong = make_errors(labels, clean.exp(), kind, seed)
                said = {"leave-one-out": leave_one_out(embeddings, wrong, len(classes))}
                if options.logistic:
                    said["logistic"] = logistic(embeddings, wrong, len(classes), seed)
                for model, log_probs in said.items():
                    about = {"scenario": scenario, "errors": kind, "model": model, "seed": seed}
                    rows.append({**about, **judge(log_probs, wrong, is_wrong)})
                    print(rows[-1], flush=True)
                    write_atomically(options.out / "cases.csv", pd.DataFrame(rows).to_csv(index=False))
    means = pd.DataFrame(rows).groupby(["scenario", "errors", "model"], sort=False).mean().drop(columns="seed")
    print(means.T.to_string(float_format=lambda value: f"{value:.2f}"))


if __name__ == "__main__":
    main()
