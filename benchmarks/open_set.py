"""Folders with images of no class: what is found, what is lost, and whether probabilities and verdict hold.

Each case is trained once and kept in --out as tensors: S+T, the network adapted on all images (as before version 0.3),
the network adapted without the flagged images, the same without all images of unknown classes (oracle), and the folds
of both models. The table is computed from these, so that a rule can be changed without training again.

    python benchmarks/open_set.py --data ../shared/data --out open_set

With --few the cases are ten classes of Office-31, three labels each, and 0, 2 or 5 other classes, and only S+T is
trained: how many images of no class are counted where few or none can be flagged.
"""

from __future__ import annotations

import argparse
from collections.abc import Hashable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import pandas as pd
import torch
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import roc_auc_score
from sklearn.model_selection import cross_val_predict
from sklearn.preprocessing import StandardScaler
from torch import Tensor

from qurate.benchmark.cell import judge
from qurate.calibration import accept_at_precision, at_temperature, combine, fit_combination, fit_temperature
from qurate.config import RunConfig
from qurate.data.samples import UNKNOWN, Labeled, SealedLabels, Split, Unlabeled, take
from qurate.data.suites import hide_classes, load_suite, read_suite_split
from qurate.embedding.embed import embed_split
from qurate.evaluation import hos, measure, true_labels
from qurate.networks.inference import log_probabilities
from qurate.novelty import highest_known_share, known_probability, known_share
from qurate.presets import baseline_of, make_config
from qurate.runs.verdict import estimate_gain
from qurate.runtime.files import write_atomically
from qurate.runtime.tensors import pack_tensors, read_tensors
from qurate.selection.algorithm import fit
from qurate.selection.crossfit import Fold, HeldOut, draw_folds, fit_fold, leave_out, score_novelty

LITE = "timm/tf_efficientnet_lite"
COLUMNS = {
    "webcam:amazon": ("office31", f"{LITE}0", 16),
    "dslr:amazon": ("office31", f"{LITE}0", 16),
    "Art:Clipart": ("office_home", f"{LITE}0+{LITE}2", 40),
    "Clipart:Art": ("office_home", f"{LITE}0+{LITE}2", 40),
}
FEW_SCENARIOS, FEW_KNOWN, FEW_UNKNOWN = ("webcam:amazon", "dslr:amazon"), 10, (0, 2, 5)
"""The cases of --few."""
ANSWERS = 25
"""Images that people say are of no class."""
PRECISIONS = (0.9, 0.95)


class Case(NamedTuple):
    """A scenario with a seed and a number of unknown classes."""

    scenario: str
    seed: int
    unknown: int

    @property
    def name(self) -> str:
        """Of its file."""
        return f"{self.scenario.replace(':', '-')}-{self.seed}-{self.unknown}"


def cases(scenarios: list[str], seeds: list[int]) -> Iterator[Case]:
    for scenario in scenarios:
        for seed in seeds:
            yield from (Case(scenario, seed, unknown) for unknown in (0, COLUMNS[scenario][2]))


def read(case: Case, data: Path) -> Split:
    suite, backbone, _ = COLUMNS[case.scenario]
    split = read_suite_split(load_suite(suite), data / suite, case.scenario, shots=3, seed=case.seed, protocol="mme")
    return hide_classes(embed_split(split, backbone, "offline"), case.unknown, 0, case.seed)


def default_of_0_2(config: RunConfig) -> RunConfig:
    """The run with pseudo-labels by the network alone, and the ten nearest neighbours whatever they are worth."""
    chosen = config.selection
    reward = replace(chosen.reward, neighbor_trust="full")
    return replace(config, selection=replace(chosen, labeler="network", reward=reward))


def train(case: Case, split: Split) -> dict[str, Tensor]:
    """Everything that the table needs, as tensors."""
    unlabeled, truth = split.target_unlabeled.inputs, true_labels(split.target_unlabeled)
    assert isinstance(unlabeled, Tensor)
    config = make_config("tml", "adaptive", seed=case.seed)
    plain = baseline_of(config)
    images = draw_folds(split.target_labeled.labels, 3, seed=case.seed)
    baseline = fit(split, plain).method.network
    of_baseline = [fit_fold(split, plain, each) for each in images]
    novelty, flagged = score_novelty(split, baseline, of_baseline)
    kept, positions = leave_out(split, flagged)
    by_baseline = log_probabilities(baseline, unlabeled)
    result = fit(kept, config, baseline=by_baseline[positions])
    of_adapted = [
        fit_fold(kept, config, fold.images, baseline=fold.unlabeled_log_probs(positions)) for fold in of_baseline
    ]
    joined = Fold.join(of_baseline)
    kept_tensors = {
        "truth": truth,
        "flagged": flagged.long(),
        "known": novelty.known(unlabeled),
        "images": joined.images,
        "labels": joined.labels,
        "held_out_baseline": joined.log_probs,
        "held_out_adapted": Fold.join(of_adapted).log_probs,
        "baseline": by_baseline,
        "adapted": log_probabilities(result.method.network, unlabeled),
        "before": log_probabilities(fit(split, default_of_0_2(config)).method.network, unlabeled),
        "positives": positions[result.positives.indices],
    }
    if case.unknown:
        without, known = leave_out(split, truth < 0)
        alone = fit(without, config, baseline=by_baseline[known]).method.network
        kept_tensors["oracle"] = log_probabilities(alone, unlabeled)
        strange = (truth < 0).nonzero().squeeze(1)
        asked = strange[torch.randperm(len(strange), generator=torch.Generator().manual_seed(case.seed))[:ANSWERS]]
        again, more = score_novelty(split, baseline, novelty.folds, unlabeled[asked])
        kept_tensors |= {"asked": asked, "known_asked": again.known(unlabeled), "flagged_asked": more.long()}
    return kept_tensors


def choose_classes(split: Split, unknown: int, seed: int) -> Split:
    """Ten classes of a split, and as many others, whose images are of no class; the rest is left out."""
    order = torch.randperm(split.n_classes, generator=torch.Generator().manual_seed(1000 + seed))
    known, hidden = order[:FEW_KNOWN].sort().values, order[FEW_KNOWN : FEW_KNOWN + unknown]
    gone = -9
    into = torch.full((split.n_classes,), gone)
    into[known], into[hidden] = torch.arange(FEW_KNOWN), UNKNOWN

    def choose(part: Labeled) -> Labeled:
        kept = (into[part.labels] >= 0).nonzero().squeeze(1)
        return Labeled(take(part.inputs, kept), into[part.labels][kept])

    truth = into[true_labels(split.target_unlabeled)]
    kept = (truth != gone).nonzero().squeeze(1)
    unlabeled = Unlabeled(take(split.target_unlabeled.inputs, kept), SealedLabels(truth[kept]))
    names = tuple(split.classes[label] for label in known.tolist())
    return Split(names, choose(split.source), choose(split.target_labeled), unlabeled)


def count_few(scenario: str, seed: int, unknown: int, split: Split) -> dict[Hashable, Any]:
    """One row of the table of --few."""
    part = choose_classes(split, unknown, seed)
    plain = baseline_of(make_config("tml", "adaptive", seed=seed))
    folds = [fit_fold(part, plain, each) for each in draw_folds(part.target_labeled.labels, 3, seed=seed)]
    novelty, flagged = score_novelty(part, fit(part, plain).method.network, folds)
    images = len(flagged)
    return {
        "scenario": scenario,
        "seed": seed,
        "labels": len(novelty.held_out),
        "unlabelled": images,
        "of no class": int((true_labels(part.target_unlabeled) < 0).sum()),
        "flagged": int(flagged.sum()),
        "about": round((1 - novelty.share) * images),
        "at least": round((1 - novelty.highest_share) * images),
    }


def few(data: Path, out: Path, scenarios: list[str], seeds: list[int]) -> None:
    """The table of --few, a row for each case; those that are in the file stay."""
    file = out / "few.csv"
    rows: list[dict[Hashable, Any]] = pd.read_csv(file).to_dict("records") if file.is_file() else []
    for seed in seeds:
        for scenario in scenarios:
            split = None
            for unknown in FEW_UNKNOWN:
                if (scenario, seed, unknown) in {(row["scenario"], row["seed"], row["unknown"]) for row in rows}:
                    continue
                split = split or read(Case(scenario, seed, 0), data)
                rows.append({"unknown": unknown, **count_few(scenario, seed, unknown, split)})
                write_atomically(file, pd.DataFrame(rows).to_csv(index=False))
                print(rows[-1], flush=True)


def surest_half_right(probabilities: Tensor, truth: Tensor) -> float:
    """The share of right predictions in the half that the model is surest of."""
    sure, predicted = probabilities.max(dim=1)
    half = sure.argsort(descending=True, stable=True)[: len(sure) // 2]
    return float((predicted == truth)[half].double().mean())


def learned_from_truth(models: list[Tensor], known: Tensor, truth: Tensor) -> float:
    """AUROC of right against wrong by a logistic regression that learned it from the truth, cross-validated.

    It tells whether there is more in what the models say than their probability makes of it.

    Args:
        models: Log-probabilities, (N, K) each; the predictions are those of the first.
        known: How well each image fits any class, (N,).
        truth: (N,).
    """
    kept = truth >= 0
    models, known = [each[kept].double() for each in models], known[kept].double().clamp(min=1e-4).log()
    predicted = models[0].argmax(dim=1)
    signals = [known]
    for log_probs in models:
        first, second = log_probs.topk(2, dim=1).values.T
        entropy = -(log_probs.exp() * log_probs).sum(dim=1)
        signals += [first, first - second, log_probs.gather(1, predicted[:, None]).squeeze(1), entropy]
    right = (predicted == truth[kept]).numpy()
    rows = StandardScaler().fit_transform(torch.stack(signals, dim=1).numpy())
    learned = cross_val_predict(LogisticRegression(max_iter=1000), rows, right, cv=5, method="predict_proba")
    return float(roc_auc_score(right, learned[:, 1]))


def chance_ece(probabilities: Tensor) -> float:
    """The calibration error of a model whose labels are drawn by its probabilities: above 0, for images are few."""
    rng = torch.Generator().manual_seed(0)
    draws = [torch.multinomial(probabilities, 1, generator=rng).squeeze(1) for _ in range(10)]
    return sum(judge(probabilities, labels).ece for labels in draws) / len(draws)


def count_known(known: Tensor, held_out: int) -> tuple[float, float]:
    """`known_share` and `highest_known_share` by `known`, which lies between two p-values; the higher one counts."""
    steps = known.double() * (held_out + 1)
    p_values = torch.where(steps < 1, steps, steps.floor() + 1) / (held_out + 1)
    highest = highest_known_share(p_values, held_out)
    return min(highest, known_share(p_values)), highest


def figures(case: Case, found: dict[str, Tensor]) -> dict[str, float | str]:
    """One row of the table."""
    truth, labels, flagged = found["truth"], found["labels"], found["flagged"].bool()
    known = truth >= 0
    held_out = HeldOut(found["images"], labels, found["held_out_adapted"], found["held_out_baseline"])
    calibration = fit_combination(held_out.adapted, held_out.baseline, labels)
    model = combine(found["adapted"], found["baseline"], calibration)
    plain = at_temperature(found["baseline"], fit_temperature(held_out.baseline, labels))
    now = judge(model.exp(), truth, known=found["known"], flagged=flagged)
    base, before = judge(plain, truth), judge(found["before"].exp(), truth)
    classes = model.shape[1]
    right = {
        name: measure(each.argmax(dim=1), truth, classes).per_class
        for name, each in (("base", plain), ("now", model), ("before", found["before"]))
    }
    row: dict[str, float | str] = {
        "scenario": case.scenario,
        "seed": case.seed,
        "unknown": case.unknown,
        "accuracy S+T": base.accuracy,
        "accuracy before": before.accuracy,
        "accuracy now": now.accuracy,
        "AUROC S+T": base.auroc or 0,
        "AUROC before": before.auroc or 0,
        "AUROC now": now.auroc or 0,
        "AUROC by the truth": learned_from_truth([model, plain.log(), found["adapted"]], found["known"], truth),
        "ECE S+T": base.ece,
        "ECE now": now.ece,
        "ECE by chance": chance_ece(model[known].exp()),
        "flagged": int(flagged.sum()),
        "worst class before": float((right["before"] - right["base"]).nan_to_num(0).min()),
        "worst class now": float((right["now"] - right["base"]).nan_to_num(0).min()),
    }
    for name, each in (("S+T", plain), ("before", found["before"].exp()), ("now", model.exp())):
        row[f"surest half right {name}"] = surest_half_right(each[known], truth[known])
    gain = estimate_gain(held_out.combined(calibration), model[~flagged], found["baseline"][~flagged]).gain
    row |= {"gain": now.accuracy - base.accuracy, "gain estimated": gain.estimate, "low": gain.low, "high": gain.high}
    sure, (share, highest) = model.exp().max(dim=1).values, count_known(found["known"], len(labels))
    row |= {"counted": 1 - share, "counted at least": 1 - highest}
    if bool(flagged.any()) or highest < 1:
        sure = sure * known_probability(found["known"])
    for precision in PRECISIONS:
        taken = ~flagged
        taken[taken.clone()] = accept_at_precision(sure[~flagged], precision)
        row[f"precision at {precision}"] = float((model.argmax(dim=1) == truth)[taken].double().mean())
        row[f"accepted at {precision}"] = float(taken.double().mean())
    if case.unknown:
        oracle = combine(found["oracle"], found["baseline"], calibration)
        asked = torch.ones_like(flagged)
        asked[found["asked"]] = False
        later = found["flagged_asked"].bool()
        row |= {
            "accuracy oracle": measure(oracle.argmax(dim=1), truth, classes).accuracy,
            "unknown S+T": base.auroc_unknown or 0,
            "unknown before": before.auroc_unknown or 0,
            "unknown now": now.auroc_unknown or 0,
            "found": float((flagged & ~known).sum() / (~known).sum()),
            "false discoveries": float((flagged & known).sum() / max(1, int(flagged.sum()))),
            "HOS": now.hos or 0,
            "HOS answers": hos(model.argmax(dim=1)[asked], later[asked], truth[asked]) or 0,
            "false discoveries answers": float((later & known).sum() / max(1, int(later.sum()))),
            "positives right": float((model.argmax(dim=1) == truth)[found["positives"]].double().mean()),
        }
    return row


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="folder with office31 and office_home")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--few", action="store_true", help="ten classes, and S+T alone")
    parser.add_argument("--scenarios")
    parser.add_argument("--seeds", default="0,1,2")
    options = parser.parse_args()
    torch.set_num_threads(1)
    rows = []
    options.out.mkdir(parents=True, exist_ok=True)
    scenarios = options.scenarios.split(",") if options.scenarios else [*(FEW_SCENARIOS if options.few else COLUMNS)]
    seeds = [int(seed) for seed in options.seeds.split(",")]
    if options.few:
        few(options.data, options.out, scenarios, seeds)
        return
    for case in cases(scenarios, seeds):
        file = options.out / f"{case.name}.safetensors"
        if not file.is_file():
            write_atomically(file, pack_tensors(train(case, read(case, options.data))))
        rows.append(figures(case, read_tensors(file)))
        print(case.name, f"{rows[-1]['accuracy S+T']:.3f} {rows[-1]['accuracy now']:.3f}", flush=True)
    table = pd.DataFrame(rows)
    table.to_csv(options.out / "cases.csv", index=False)
    means = table.groupby(["scenario", "unknown"], sort=False).mean().drop(columns="seed")
    print(means.T.to_string(float_format=lambda value: f"{value:.3f}"))
    inside = ((table["low"] <= table["gain"]) & (table["gain"] <= table["high"])).mean()
    print(f"the interval of the gain holds the true one in {inside:.1%} of {len(table)} cases")


if __name__ == "__main__":
    main()
