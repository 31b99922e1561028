"""Is the verdict of a run right? Runs whose truth is known, judged by the rule of version 0.1 and by today's.

    python benchmarks/verdict.py --out verdict

Each case draws few labelled images from a target, trains the adapted model and S+T on all of them and in folds, and
keeps what they say in OUT/*.safetensors. Finished cases are not run again, so --judge-only tries another rule in
seconds. The table goes to docs/verdict.md, or to --page. The constants of the rule were chosen on other draws: digits
with seeds 0 to 81, Office-31 W to A with seeds 0 and 1. These seeds begin at 1000.
"""

from __future__ import annotations

import argparse
import dataclasses
import math
import multiprocessing
import os
import time
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from functools import cache
from pathlib import Path

import numpy as np
import pandas as pd
import safetensors.torch
import torch
from torch import Tensor

from qurate.config import NetworkConfig, RunConfig
from qurate.data.digits import digits_split
from qurate.data.samples import Labeled, SealedLabels, Split, Unlabeled
from qurate.data.splits import read_mme_split
from qurate.data.suites import thin_to_tail
from qurate.embedding.embed import embed_split
from qurate.evaluation import true_labels
from qurate.networks.backbone_names import find_weights
from qurate.networks.inference import log_probabilities
from qurate.presets import make_config
from qurate.runs.comparison import FOLDS
from qurate.runs.verdict import GainEstimate, estimate_gain, verdict_of
from qurate.runtime.files import write_atomically
from qurate.runtime.machine import keep_freed_memory
from qurate.selection.algorithm import fit
from qurate.selection.crossfit import HeldOut, baseline_of, draw_folds, fit_without

REPOSITORY = Path(__file__).resolve().parents[1]
DATA = Path(os.environ.get("QURATE_DATA") or REPOSITORY.parent / "shared" / "data")
WEIGHTS = DATA.parent / "weights" / "tf_efficientnet_lite0.safetensors"
BACKBONE = "timm/tf_efficientnet_lite0"
FIRST_SEED = 1000
ANOTHER_SEED = "S+T, another seed"
DIGITS_ROWS = (
    *("tml+adaptive", "tml+balanced", "tml+share", "tml+quality", "tml+random", "tml+dqn"),
    *("tml+none", "mme+none", "ent+none", ANOTHER_SEED),
)
OFFICE_ROWS = ("tml+adaptive", "tml+balanced", "tml+random", ANOTHER_SEED)
IMBALANCES = (1, 5, 20)
EDGES = (-5.0, -2.0, -0.5, 0.5, 2.0, 5.0)
"""Points of true gain between the rows of the table."""
VERDICTS = ("helps", "unclear", "harms")


@dataclasses.dataclass(frozen=True)
class Case:
    """One run: where, what is compared with S+T, labels per class, imbalance of D_u, seed of draw and training."""

    suite: str
    row: str
    shots: int
    imbalance: int
    seed: int

    @property
    def file(self) -> str:
        """Name of its record."""
        row = "".join(letter if letter.isalnum() else "_" for letter in self.row)
        return f"{self.suite.replace(' ', '_')}-{row}-{self.shots}-{self.imbalance}-{self.seed}.safetensors"


def list_cases(digits_seeds: int, office_seeds: int) -> list[Case]:
    digits = [
        Case("digits", row, shots, imbalance, FIRST_SEED + seed)
        for seed in range(digits_seeds)
        for row in DIGITS_ROWS
        for shots in (2, 3, 5, 10)
        for imbalance in IMBALANCES
    ]
    office = [
        Case(f"{source} to amazon", row, 3, imbalance, FIRST_SEED + seed)
        for seed in range(office_seeds)
        for source in ("webcam", "dslr")
        for row in OFFICE_ROWS
        for imbalance in IMBALANCES
    ]
    return digits + office


def draw(case: Case) -> Split:
    """D_s, a draw of D_t, and D_u thinned."""
    if case.suite == "digits":
        split = digits_split(shots=case.shots, seed=case.seed, source_per_class=60)
        split = dataclasses.replace(
            split,
            source=Labeled(_flat(split.source.inputs), split.source.labels),
            target_labeled=Labeled(_flat(split.target_labeled.inputs), split.target_labeled.labels),
            target_unlabeled=Unlabeled(_flat(split.target_unlabeled.inputs), split.target_unlabeled.sealed),
        )
    else:
        split = _draw_again(load_office(case.suite.partition(" ")[0]), case.shots, case.seed)
    return thin_to_tail(split, case.imbalance, case.seed)


def _flat(images: object) -> Tensor:
    assert isinstance(images, Tensor)
    return images.flatten(1) * 4 - 1


@cache
def load_office(source: str) -> Split:
    weights = str(WEIGHTS) if WEIGHTS.is_file() else find_weights(BACKBONE, "auto")
    return embed_split(read_mme_split(DATA / "office31", source, "amazon", 3), BACKBONE, weights)


def _draw_again(split: Split, shots: int, seed: int) -> Split:
    """Other labelled images than those of the published list."""
    labeled, unlabeled = split.target_labeled, split.target_unlabeled
    assert isinstance(labeled.inputs, Tensor)
    assert isinstance(unlabeled.inputs, Tensor)
    inputs = torch.cat([labeled.inputs, unlabeled.inputs])
    labels = torch.cat([labeled.labels, true_labels(unlabeled)])
    order = torch.from_numpy(np.random.default_rng((seed, 0x7E5)).permutation(len(labels)))
    chosen = torch.cat([order[labels[order] == label][:shots] for label in range(split.n_classes)])
    rest = order[~torch.isin(order, chosen)]
    return dataclasses.replace(
        split,
        target_labeled=Labeled(inputs[chosen], labels[chosen]),
        target_unlabeled=Unlabeled(inputs[rest], SealedLabels(labels[rest])),
    )


def configs_of(case: Case) -> tuple[RunConfig, RunConfig]:
    """The adapted run and S+T, short ones: the rule must hold for any."""
    is_digits = case.suite == "digits"
    network = NetworkConfig(bottleneck="normalized", features=64 if is_digits else 512)
    steps = 250 if is_digits else 300
    plain = make_config("source_target", "none", network=network, steps=steps, seed=case.seed)
    if case.row == ANOTHER_SEED:
        return dataclasses.replace(plain, seed=case.seed + 5000), plain
    method, _, selector = case.row.partition("+")
    config = make_config(method, selector, network=network, steps=steps, rounds=4, round_steps=50, seed=case.seed)
    return config, baseline_of(config)


def run(case: Case, out: Path) -> None:
    """Train and keep what both models say."""
    torch.set_num_threads(1)
    keep_freed_memory()
    split, configs = draw(case), configs_of(case)
    unlabeled, labels = split.target_unlabeled.inputs, split.target_labeled.labels
    whole = [log_probabilities(fit(split, config).method.network, unlabeled) for config in configs]
    folds = draw_folds(labels, FOLDS, seed=case.seed)
    said = [[fit_without(split, config, fold) for fold in folds] for config in configs]
    images = torch.cat(folds)
    tensors = {
        "truth": true_labels(split.target_unlabeled),
        "images": images,
        "labels": labels[images],
        "adapted": torch.cat(said[0]),
        "baseline": torch.cat(said[1]),
        "adapted_unlabeled": whole[0].half(),
        "baseline_unlabeled": whole[1].half(),
    }
    write_atomically(out / case.file, safetensors.torch.save(tensors))


def paired_interval(first: Tensor, second: Tensor) -> tuple[float, float]:
    """The rule of version 0.1: 95 % interval of the difference of two shares that were measured on the same images.

    With b images where only the first is right, c where only the second is, each raised by 1/2, and n raised by 2:
    (b - c) / n +- 1.96 sqrt(b + c - (b - c)^2 / n) / n. Agresti and Min, 2005.
    """
    b, c = (float((one & ~other).sum()) + 0.5 for one, other in ((first, second), (second, first)))
    n = len(first) + 2
    half = 1.96 * math.sqrt(b + c - (b - c) ** 2 / n) / n
    return (b - c) / n - half, (b - c) / n + half


def judge_case(case: Case, path: Path) -> dict[str, object]:
    """Truth and both verdicts."""
    kept = safetensors.torch.load_file(path)
    held_out = HeldOut(kept["images"], kept["labels"], kept["adapted"], kept["baseline"])
    low, high = paired_interval(*(kept[who].argmax(dim=1) == kept["labels"] for who in ("adapted", "baseline")))
    whole = [kept[f"{who}_unlabeled"].float() for who in ("adapted", "baseline")]
    found = estimate_gain(held_out, *whole)
    right = [(said.argmax(dim=1) == kept["truth"]).double() for said in whole]
    gain = float((right[0] - right[1]).mean())
    classes = kept["truth"].unique()
    balanced = float(np.mean([float((right[0] - right[1])[kept["truth"] == label].mean()) for label in classes]))
    return {
        **dataclasses.asdict(case),
        "images": len(held_out.images),
        "gain": 100 * gain,
        "balanced_gain": 100 * balanced,
        "before": "helps" if low > 0 else "harms" if high < 0 else "unclear",
        "now": verdict_of(found.gain),
        **_said(found, gain, balanced),
    }


def _said(found: GainEstimate, gain: float, balanced: float) -> dict[str, object]:
    disputed = max(found.disagreement, 1e-9)
    return {
        "estimate": 100 * found.gain.estimate,
        "held": found.gain.low <= gain <= found.gain.high,
        "held_balanced": found.balanced.low <= balanced <= found.balanced.high,
        "smallest": 100 * found.gain.smallest,
        "disagreement": 100 * found.disagreement,
        "theta": gain / disputed,
        "unlabeled": found.unlabeled.value,
        "labeled": found.labeled.value,
        "labeled_deviation": found.labeled.deviation,
    }


def to_markdown(table: pd.DataFrame) -> str:
    """How often each rule said what, by the true gain."""
    ranges = pd.cut(table["gain"], [-math.inf, *EDGES, math.inf])
    heads = [f"{rule}: {verdict}" for rule in ("before", "now") for verdict in VERDICTS]
    lines = [f"| true gain, points | runs | {' | '.join(heads)} |", "|" + "---|" * (2 + len(heads))]
    for place in ranges.cat.categories:
        rows = table[ranges == place]
        counts = [int((rows[rule] == verdict).sum()) for rule in ("before", "now") for verdict in VERDICTS]
        lines.append(f"| {_words(place)} | {len(rows)} | {' | '.join(map(str, counts))} |")
    lines += ["", "| rule | right | wrong | of the verdicts given, wrong |", "|---|---|---|---|"]
    for rule, title in (("before", "before: paired interval, right or wrong"), ("now", "now")):
        right, wrong = count_right(table, rule)
        lines.append(f"| {title} | {right} of {len(table)} | {wrong} | {wrong / max(1, right + wrong):.1%} |")
    return "\n".join(lines) + "\n"


def count_right(table: pd.DataFrame, rule: str) -> tuple[int, int]:
    """Verdicts whose sign is that of the true gain, and verdicts whose sign is the other."""
    said = table[rule].map({"helps": 1, "unclear": 0, "harms": -1}) * np.sign(table["gain"])
    return int((said > 0).sum()), int((said < 0).sum())


def _words(place: pd.Interval) -> str:
    if math.isinf(place.left):
        return f"{place.right:g} or less"
    return f"above {place.left:g}" if math.isinf(place.right) else f"{place.left:g} to {place.right:g}"


def to_page(table: pd.DataFrame, command: str, planned: int) -> str:
    """docs/verdict.md.

    Args:
        table: A row for each run that is done.
        command: That makes the page.
        planned: How many runs it is made of in the end.
    """
    rows = ", ".join(f"{row} ({number})" for row, number in table["row"].value_counts(sort=False).items())
    unlabeled = float(((table["unlabeled"] - table["theta"]) ** 2).mean() ** 0.5)
    labeled = ((table["labeled"] - table["theta"]) / table["labeled_deviation"]).to_numpy(dtype=float)
    seen = table["smallest"][np.isfinite(table["smallest"])]
    parts = [
        _HEAD,
        f"`{command}`: {len(table)} of {planned} runs are finished: {rows}.\n"
        "The true gain is measured with the final models on the hidden labels of D_u.\n",
        f"## All runs\n\n{to_markdown(table)}",
        *(f"## {suite}\n\n{to_markdown(rows)}" for suite, rows in table.groupby("suite", sort=False)),
        "## Expected and found\n",
        "| | expected | found |\n|---|---|---|\n"
        f"| intervals that contain the true gain | 95 % | {table['held'].mean():.1%} |\n"
        f"| the same, balanced accuracy | 95 % | {table['held_balanced'].mean():.1%} |\n"
        f"| deviation of theta (`SPREAD`) | {_constant('SPREAD')} | {table['theta'].pow(2).mean() ** 0.5:.2f} |\n"
        f"| error of the unlabelled evidence about theta (`UNLABELED_ERROR`) | {_constant('UNLABELED_ERROR')} | "
        f"{unlabeled:.2f} |\n"
        f"| error of the labelled evidence, relative to its estimate | 1 | {np.sqrt((labeled**2).mean()):.2f} |\n"
        f"| median of the smallest detectable gain, points | | {seen.median():.1f} |\n",
    ]
    return "\n".join(parts)


def _constant(name: str) -> float:
    from qurate.runs import verdict

    return float(getattr(verdict, name))


_HEAD = """# Is the verdict right?

A run on your own images ends with "helps", "not clear" or "harms".
This page compares that verdict with the true gain, in runs whose hidden labels are known.
The rule is in `qurate/runs/verdict.py` and described under
[Is it helping?](own_images.md#is-it-helping).
"before" is the rule of version 0.1 on the same models: a paired interval of right and wrong on the
held-out images.
The cases are digits with 2 to 10 labels per class and Office-31 with 3, the unlabelled target as it
is and thinned to long tails of 5:1 and 20:1, with methods and selectors that help, that help
little, and S+T against S+T with another seed.

Many true gains are too small to detect with so few labels; the verdict is then "not clear".
No run loses more than two points by adaptation, so "harms" was never the right verdict.
The rule is symmetric in both models (a test swaps them), so it finds "harms" as readily as "helps".
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="folder of the records")
    parser.add_argument("--seeds", type=int, default=1, help="draws of each case of the digits")
    parser.add_argument("--office-seeds", type=int, default=1, help="draws of each case of Office-31; 0 leaves it out")
    parser.add_argument("--processes", type=int, default=os.cpu_count())
    parser.add_argument("--page", type=Path, default=REPOSITORY / "docs" / "verdict.md")
    parser.add_argument("--judge-only", action="store_true", help="judge the records that are there")
    arguments = parser.parse_args()
    cases: Sequence[Case] = list_cases(arguments.seeds, arguments.office_seeds)
    out: Path = arguments.out
    out.mkdir(parents=True, exist_ok=True)
    if not arguments.judge_only:
        train_missing([case for case in cases if not (out / case.file).is_file()], out, arguments.processes)
    done = [case for case in cases if (out / case.file).is_file()]
    table = pd.DataFrame([judge_case(case, out / case.file) for case in done])
    write_atomically(out / "verdicts.csv", table.to_csv(index=False))
    command = f"python benchmarks/verdict.py --seeds {arguments.seeds} --office-seeds {arguments.office_seeds}"
    page = to_page(table, command, len(cases))
    write_atomically(arguments.page, page)
    print(page)


def train_missing(missing: Sequence[Case], out: Path, processes: int) -> None:
    began, context = time.perf_counter(), multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(processes, mp_context=context) as pool:
        futures = [pool.submit(run, case, out) for case in missing]
        for number, future in enumerate(as_completed(futures), 1):
            future.result()
            print(f"[{(time.perf_counter() - began) / 60:4.1f} min] {number} of {len(missing)}", flush=True)


if __name__ == "__main__":
    main()
