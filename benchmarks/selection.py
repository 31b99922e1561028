"""Which selector holds on data that it was not tuned on: all rules on two data sets, plain, long-tailed and thinned.

    python benchmarks/selection.py --data ../shared/data --out selection

One row of results.csv per cell; finished cells are not run again. Line 1 and S+T are trained once for the rows that
share them. 'of 0.2' are the default and the agent of version 0.2: pseudo-labels by the network alone, neighbours at
full weight. PARTS are the default with one part left out; with its predictions divided by the proportions that it was
trained with and multiplied by its mean prediction, as RLSbench does; and two ceilings that know the truth: the default
with a judge that learns from it in place of phi, and the agent with true rewards. They are run by name:

    python benchmarks/selection.py --data ../shared/data --out selection --kinds plain --seeds 0,1 --rows PARTS

The table has the mean over the seeds, and a paired test of the default against each row over all columns and seeds.
"""

from __future__ import annotations

import argparse
import math
from dataclasses import replace
from pathlib import Path

import pandas as pd
import torch
from open_set import COLUMNS, default_of_0_2
from sklearn.linear_model import LogisticRegression
from torch import Tensor
from torch.nn import functional

from qurate.config import RunConfig
from qurate.data.samples import Split
from qurate.data.suites import load_suite, read_suite_split, thin_to_tail
from qurate.embedding.embed import embed_split
from qurate.evaluation import measure, true_labels
from qurate.networks.inference import log_probabilities
from qurate.presets import make_config
from qurate.report.statistics import correct_for_many, sign_flip_interval, sign_flip_p_value
from qurate.runtime.machine import keep_freed_memory
from qurate.selection.algorithm import fit
from qurate.selection.callbacks import Callback
from qurate.selection.crossfit import leave_out
from qurate.selection.dqn import DQNSelector
from qurate.selection.environment import SelectionEnv, relations_of_all
from qurate.selection.pseudo_labels import Positives, Round
from qurate.selection.selectors import AdaptiveConfig, Selector, Sizes, balance, best_within_room
from qurate.selection.session import Adaptation, Pretraining

KINDS = ("plain", "20:1", "30 per class", "15 per class")
ROWS = {
    "S+T": ("source_target", "none"),
    "MME": ("mme", "none"),
    "TML": ("tml", "none"),
    "TML_SPL": ("tml", "confidence"),
    "TML + quality": ("tml", "quality"),
    "TML + share": ("tml", "share"),
    "TML + balanced": ("tml", "balanced"),
    "adaptive of 0.2": ("tml", "adaptive"),
    "adaptive": ("tml", "adaptive"),
    "dqn of 0.2": ("tml", "dqn"),
    "dqn": ("tml", "dqn"),
}
PARTS = {
    "without S+T": ("tml", "adaptive"),
    "without neighbours": ("tml", "adaptive"),
    "neighbours always": ("tml", "adaptive"),
    "without balance": ("tml", "adaptive"),
    "proportions corrected": ("tml", "adaptive"),
    "judge that knows the truth": ("tml", "adaptive"),
    "dqn with true rewards": ("tml", "dqn"),
}
REFERENCE = "adaptive"


def read(scenario: str, kind: str, seed: int, shots: int, data: Path) -> Split:
    suite, backbone, _ = COLUMNS[scenario]
    split = read_suite_split(load_suite(suite), data / suite, scenario, shots=shots, seed=seed, protocol="mme")
    split = embed_split(split, backbone, "offline")
    if kind == "20:1":
        return thin_to_tail(split, 20, seed)
    return split if kind == "plain" else thin(split, int(kind.split()[0]), seed)


def thin(split: Split, count: int, seed: int) -> Split:
    """The split with at most so many unlabelled images of each class, drawn by the seed."""
    truth, rng = true_labels(split.target_unlabeled), torch.Generator().manual_seed(seed)
    dropped = torch.ones(len(truth), dtype=torch.bool)
    for label in truth.unique():
        members = (truth == label).nonzero().squeeze(1)
        dropped[members[torch.randperm(len(members), generator=rng)[:count]]] = False
    return leave_out(split, dropped)[0]


def config_of(row: str, seed: int) -> RunConfig:
    config = make_config(*(ROWS | PARTS)[row], seed=seed)
    chosen = config.selection
    if row == "without neighbours":
        chosen = replace(chosen, reward=replace(chosen.reward, center_weight=0.0))
    if row == "neighbours always":
        chosen = replace(chosen, reward=replace(chosen.reward, neighbor_trust="full"))
    if row == "without balance":
        chosen = replace(chosen, selector=AdaptiveConfig(imbalance_limit=1e-9))
    config = replace(config, selection=chosen)
    return default_of_0_2(config) if row.endswith("of 0.2") else config


class TrueJudge:
    """The default with the log-odds of a right label in place of phi, by a logistic regression on the truth."""

    def __init__(self, truth: Tensor, baseline: Tensor) -> None:
        self.truth, self.baseline = truth, baseline

    def select(self, round: Round) -> Positives:
        """As the selector 'adaptive', by a judge that nobody can have."""
        own = round.pseudo_labels.unsqueeze(1)
        assert round.neighbors is not None
        certain = functional.one_hot(round.data.target.labels, round.n_classes).float()
        everyone = torch.cat([certain, round.unlabeled.probabilities])
        judges = [everyone[round.neighbors[:, :count]].mean(dim=1).gather(1, own) for count in (3, 10)]
        judges.append(self.baseline.exp().gather(1, own))
        signals = torch.cat([relations_of_all(round), standardize(torch.cat(judges, dim=1).clamp_min(1e-6).log())], 1)
        right = (round.pseudo_labels == self.truth).numpy()
        fitted = LogisticRegression(max_iter=500).fit(signals.numpy(), right)
        odds, config = torch.from_numpy(fitted.decision_function(signals.numpy())).float(), AdaptiveConfig()
        weight = balance(round, config)
        scores = odds - weight * round.class_quantile(odds, 0.5)
        return round.positives_at(best_within_room(round, scores, weight, config))


class TrueRewards(DQNSelector):
    """The agent with rewards by the truth of D_u."""

    truth: Tensor

    def environment(self, round: Round) -> SelectionEnv:
        """With the truth of all of D_u."""
        env = super().environment(round)
        env.truth = self.truth
        return env


def standardize(columns: Tensor) -> Tensor:
    return (columns - columns.mean(dim=0)) / columns.std(dim=0).clamp_min(1e-6)


def trained_proportions(split: Split, result: Adaptation) -> Tensor:
    """Shares of the classes in a batch of line 20: half of D_s, a quarter each of D_t and D_p."""
    parts = split.source.labels, split.target_labeled.labels, result.positives.labels
    counts = (torch.bincount(labels, minlength=split.n_classes).clamp_min(0.5) for labels in parts)
    source, target, positives = (each / each.sum() for each in counts)
    return (2 * source + target + positives) / 4


def selector_of(row: str, config: RunConfig, split: Split, baseline: Tensor) -> Selector | None:
    """The selector of a row that knows the truth; None for the others."""
    truth = true_labels(split.target_unlabeled)
    if row == "judge that knows the truth":
        return TrueJudge(truth, baseline)
    if row != "dqn with true rewards":
        return None
    agent = TrueRewards.build(config, Sizes(len(truth), config.network.features, split.n_classes), Callback())
    agent.truth = truth
    return agent


def run(column: dict[str, str | int], rows: list[str], split: Split, done: pd.DataFrame) -> pd.DataFrame:
    """The rows of one column and seed that are not done."""
    seed, shared = int(column["seed"]), {method: Pretraining() for method in ("source_target", "mme", "tml")}
    truth, unlabeled = true_labels(split.target_unlabeled), split.target_unlabeled.inputs
    plain = fit(split, make_config("source_target", "none", seed=seed), pretrained=shared["source_target"]).method
    baseline, found = log_probabilities(plain.network, unlabeled), []
    of_baseline = measure(baseline.argmax(dim=1), truth, split.n_classes)
    for shared_line in shared.values():
        shared_line.baseline = baseline
    nothing = torch.full_like(baseline, -math.log(split.n_classes))  # a product with it changes nothing
    for row in rows:
        if ((done[list(column)] == pd.Series(column)).all(axis=1) & (done["row"] == row)).any():
            continue
        config = config_of(row, seed)
        result = fit(
            split,
            config,
            selector=selector_of(row, config, split, baseline),
            pretrained=shared[config.method.name],
            baseline=nothing if row == "without S+T" else None,
        )
        log_probs = log_probabilities(result.method.network, unlabeled)
        if row == "proportions corrected":
            log_probs = log_probs + log_probs.exp().mean(dim=0).log() - trained_proportions(split, result).log()
        metrics = measure(log_probs.argmax(dim=1), truth, split.n_classes)
        worst = float((metrics.per_class - of_baseline.per_class).nan_to_num(0).min())
        measured = {"accuracy": metrics.accuracy, "balanced_accuracy": metrics.balanced_accuracy, "worst_class": worst}
        found.append({**column, "row": row, **measured})
        print(*column.values(), row, f"{metrics.accuracy:.4f} worst class {worst:+.3f}", flush=True)
    return pd.DataFrame(found, columns=[*column, "row", "accuracy", "balanced_accuracy", "worst_class"])


def table(results: pd.DataFrame) -> str:
    """Means by column, and the default against each row over all pairs."""
    columns = ["scenario", "kind", "shots"]
    means = 100 * results.pivot_table(index="row", columns=columns, values="accuracy", sort=False)
    means["mean", "", ""] = means.mean(axis=1)
    by_pair = results.pivot_table(index=[*columns, "seed"], columns="row", values="accuracy")
    lines = [means.round(2).to_string()]
    others = [row for row in means.index if row != REFERENCE] if REFERENCE in by_pair else []
    differences = {row: (100 * (by_pair[REFERENCE] - by_pair[row])).dropna().tolist() for row in others}
    p_values = [sign_flip_p_value(values) for values in differences.values()]
    for (row, values), p_value in zip(differences.items(), correct_for_many(p_values), strict=True):
        interval = sign_flip_interval(values)
        limits = "" if interval is None else f" ({interval[0]:+.2f} to {interval[1]:+.2f})"
        mean = sum(values) / len(values)
        lines.append(f"{REFERENCE} - {row}: {mean:+.2f}{limits}, {len(values)} pairs, corrected p {p_value:.3f}")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="folder with office31 and office_home")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--scenarios", default=",".join(COLUMNS))
    parser.add_argument("--kinds", default=",".join(KINDS))
    parser.add_argument("--rows", default=",".join(ROWS), help="names, or PARTS")
    parser.add_argument("--seeds", default="0,1,2,3,4")
    parser.add_argument("--shots", type=int, default=3)
    options = parser.parse_args()
    rows = list(PARTS) if options.rows == "PARTS" else options.rows.split(",")
    torch.set_num_threads(1)
    keep_freed_memory()
    options.out.mkdir(parents=True, exist_ok=True)
    file, names = options.out / "results.csv", ["scenario", "kind", "shots", "seed", "row"]
    done = pd.read_csv(file) if file.is_file() else pd.DataFrame(columns=names)
    for seed in map(int, options.seeds.split(",")):
        for scenario in options.scenarios.split(","):
            for kind in options.kinds.split(","):
                column = {"scenario": scenario, "kind": kind, "shots": options.shots, "seed": seed}
                split = read(scenario, kind, seed, options.shots, options.data)
                found = run(column, rows, split, done)
                done = pd.concat([done, found]) if len(done) else found
                done.to_csv(file, index=False)
    print(table(done))


if __name__ == "__main__":
    main()
