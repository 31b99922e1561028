"""Is the verdict of a run right? Runs whose truth is known, some of them harmful.

    python benchmarks/verdict.py --out verdict

Each case draws few labelled images from a target, trains the adapted model and S+T on all of them and in folds, and
keeps what they say in OUT/*.safetensors. Finished cases are not run again, so --judge-only tries another rule in
seconds. The model that is judged is the combination of both, as `qurate adapt` gives it. The table goes to
docs/verdict.md, or to --page. The constants of the rule were chosen on the part 'tuning' alone.
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

from qurate.calibration import combine, fit_combination
from qurate.config import NetworkConfig, RunConfig
from qurate.data.digits import digits_split
from qurate.data.samples import Labeled, SealedLabels, Split, Unlabeled
from qurate.data.splits import read_mme_split
from qurate.data.suites import hide_classes, thin_to_tail
from qurate.embedding.embed import embed_split
from qurate.evaluation import true_labels
from qurate.methods.mme import MinimaxEntropyConfig
from qurate.networks.backbone_names import find_weights
from qurate.networks.inference import log_probabilities
from qurate.presets import baseline_of, make_config
from qurate.runs.comparison import plan_comparison
from qurate.runs.verdict import SPREAD, UNLABELED_ERROR, estimate_gain, verdict_of
from qurate.runtime.files import write_atomically
from qurate.runtime.machine import keep_freed_memory
from qurate.selection.algorithm import fit
from qurate.selection.crossfit import HeldOut, fit_fold

REPOSITORY = Path(__file__).resolve().parents[1]
DATA = Path(os.environ.get("QURATE_DATA") or REPOSITORY.parent / "shared" / "data")
WEIGHTS = DATA.parent / "weights" / "tf_efficientnet_lite0.safetensors"
BACKBONE = "timm/tf_efficientnet_lite0"
ANOTHER_SEED = "S+T, another seed"
HARMFUL = "mme, entropy weight 2"
"""A deliberately harmful run: twenty times the usual weight."""
DIGITS_ROWS = ("tml+adaptive", "tml+random", "mme+none", HARMFUL, ANOTHER_SEED)
MANY_SHOTS_ROWS = ("tml+adaptive", HARMFUL)
OFFICE_ROWS = ("tml+adaptive", HARMFUL)
EDGES = (-5.0, -2.0, -0.5, 0.5, 2.0, 5.0)
"""Points of true gain between the rows of the table."""
VERDICTS = ("helps", "unclear", "harms")
PARTS = ("tuning", "test")


@dataclasses.dataclass(frozen=True)
class Case:
    """One run.

    Args:
        suite: 'digits', or two domains of Office-31.
        row: What is compared with S+T.
        shots: Labels per class.
        imbalance: Of D_u.
        unknown: Classes whose images are in D_u alone.
        seed: Of draw and training.
    """

    suite: str
    row: str
    shots: int
    imbalance: int
    unknown: int
    seed: int

    @property
    def file(self) -> str:
        """Name of its record."""
        words = "-".join(map(str, dataclasses.astuple(self)))
        return "".join(letter if letter.isalnum() or letter == "-" else "_" for letter in words) + ".safetensors"

    @property
    def part(self) -> str:
        """'tuning', on which the constants were chosen, or 'test'."""
        return "tuning" if self.suite == "webcam to amazon" or (self.suite == "digits" and self.seed < 2) else "test"


def list_cases() -> list[Case]:
    digits = [
        Case("digits", row, shots, imbalance, unknown, seed)
        for seed in range(4)
        for row in DIGITS_ROWS
        for shots in ((3, 10, 30) if row in MANY_SHOTS_ROWS else (3, 10))
        for imbalance in (1, 20)
        for unknown in (0, 5)
    ]
    office = [
        Case(f"{source} to amazon", row, 3, 1, unknown, seed)
        for source in ("webcam", "dslr")
        for seed in range(2)
        for row in OFFICE_ROWS
        for unknown in (0, 16)
    ]
    return sorted(digits + office, key=lambda case: (PARTS.index(case.part), case.seed))


def draw(case: Case) -> Split:
    """D_s, a draw of D_t, and D_u thinned, then with unknown classes."""
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
    return hide_classes(thin_to_tail(split, case.imbalance, case.seed), case.unknown, 0, case.seed)


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
    steps = 200 if is_digits else 300
    plain = make_config("source_target", "none", network=network, steps=steps, seed=case.seed)
    if case.row == ANOTHER_SEED:
        return dataclasses.replace(plain, seed=case.seed + 5000), plain
    if case.row == HARMFUL:
        config = make_config("mme", "none", network=network, steps=steps, seed=case.seed)
        return dataclasses.replace(config, method=MinimaxEntropyConfig(entropy_weight=2.0)), plain
    method, _, selector = case.row.partition("+")
    config = make_config(method, selector, network=network, steps=steps, rounds=4, round_steps=50, seed=case.seed)
    return config, baseline_of(config)


def run(case: Case, out: Path) -> None:
    """Train and keep what both models say."""
    torch.set_num_threads(1)
    keep_freed_memory()
    split = draw(case)
    unlabeled, labels = split.target_unlabeled.inputs, split.target_labeled.labels
    config, plain = configs_of(case)
    by_baseline = log_probabilities(fit(split, plain).method.network, unlabeled)
    whole = [log_probabilities(fit(split, config, baseline=by_baseline).method.network, unlabeled), by_baseline]
    folds, every = plan_comparison(labels, seed=case.seed).folds, torch.arange(len(unlabeled))
    of_baseline = [fit_fold(split, plain, images) for images in folds]
    of_adapted = [
        fit_fold(split, config, fold.images, baseline=fold.unlabeled_log_probs(every)) for fold in of_baseline
    ]
    said = [[fold.log_probs for fold in each] for each in (of_adapted, of_baseline)]
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


def combine_models(kept: dict[str, Tensor]) -> tuple[HeldOut, Tensor]:
    """The combination that adapt gives: of the held-out images (as `adapted`, beside S+T) and of D_u, calibrated."""
    both = HeldOut(kept["images"], kept["labels"], kept["adapted"], kept["baseline"])
    calibration = fit_combination(both.adapted, both.baseline, both.labels)
    unlabeled = combine(kept["adapted_unlabeled"].double(), kept["baseline_unlabeled"].double(), calibration)
    return both.combined(calibration), unlabeled


def judge_case(case: Case, path: Path) -> dict[str, object]:
    """The truth on images of known classes, and the verdict."""
    kept = safetensors.torch.load_file(path)
    held_out, combined = combine_models(kept)
    baseline, truth = kept["baseline_unlabeled"].double(), kept["truth"]
    found = estimate_gain(held_out, combined, baseline)
    right = [(said.argmax(dim=1) == truth)[truth >= 0].double() for said in (combined, baseline)]
    gain = float((right[0] - right[1]).mean())
    return {
        **dataclasses.asdict(case),
        "part": case.part,
        "images": len(held_out.images),
        "gain": 100 * gain,
        "verdict": verdict_of(found.gain),
        "estimate": 100 * found.gain.estimate,
        "low": 100 * found.gain.low,
        "high": 100 * found.gain.high,
        "held": found.gain.low <= gain <= found.gain.high,
        "smallest": 100 * found.gain.smallest,
        "disagreement": 100 * found.disagreement,
        "theta": gain / max(found.disagreement, 1e-9),
        "unlabeled": found.unlabeled.value,
        "labeled": found.labeled.value,
        "labeled_deviation": found.labeled.deviation,
    }


def _found(table: pd.DataFrame) -> str:
    test = table[table["part"] == "test"]
    lost = test[test["gain"] <= EDGES[2]]
    return (
        f"Found on the {len(test)} test runs: {test['held'].mean():.1%}. Of the {len(lost)} that lose half a point or "
        f"more, {int((lost['verdict'] == 'harms').sum())} were called harmful."
    )


def verdicts_by_gain(table: pd.DataFrame) -> str:
    """How often which verdict was given, by the true gain."""
    ranges = pd.cut(table["gain"], [-math.inf, *EDGES, math.inf])
    lines = [f"| true gain, points | runs | {' | '.join(VERDICTS)} |", "|" + "---|" * (2 + len(VERDICTS))]
    for place in ranges.cat.categories:
        rows = table[ranges == place]
        counts = [int((rows["verdict"] == verdict).sum()) for verdict in VERDICTS]
        lines.append(f"| {_words(place)} | {len(rows)} | {' | '.join(map(str, counts))} |")
    return "\n".join(lines) + "\n"


def _words(place: pd.Interval) -> str:
    if math.isinf(place.left):
        return f"{place.right:g} or less"
    return f"above {place.left:g}" if math.isinf(place.right) else f"{place.left:g} to {place.right:g}"


def coverage(table: pd.DataFrame) -> str:
    """How often the interval holds the true gain and the verdicts are right, by part and kind of case."""
    kinds = [
        ("all", table["gain"].notna()),
        ("no unknown classes", table["unknown"] == 0),
        ("unknown classes", table["unknown"] > 0),
        ("adaptation harms", table["gain"] < 0),
        *((suite, table["suite"] == suite) for suite in table["suite"].unique()),
    ]
    head = ("part", "runs of", "runs", "interval holds the gain", "helps: said, right", "harms: said, right")
    lines = [f"| {' | '.join(head)} |", "|" + "---|" * len(head)]
    for part in PARTS:
        for title, chosen in kinds:
            rows = table[chosen & (table["part"] == part)]
            if len(rows):
                cells = [part, title, str(len(rows)), f"{rows['held'].mean():.1%}"]
                cells += [_said_and_right(rows, verdict, sign) for verdict, sign in (("helps", 1), ("harms", -1))]
                lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def _said_and_right(rows: pd.DataFrame, verdict: str, sign: int) -> str:
    said = rows[rows["verdict"] == verdict]
    return f"{len(said)}, {int((np.sign(said['gain']) == sign).sum())}"


def errors(table: pd.DataFrame) -> str:
    """What the constants say, and what was found."""
    labeled = (table["labeled"] - table["theta"]) / table["labeled_deviation"]
    found = [(table["part"] == part) & (table["disagreement"] > 0) for part in PARTS]
    rows = [
        ("deviation of theta (`SPREAD`)", f"{SPREAD:g}", table["theta"]),
        (
            "error of the unlabelled evidence (`UNLABELED_ERROR`)",
            f"{UNLABELED_ERROR:g}",
            table["unlabeled"] - table["theta"],
        ),
        ("error of the labelled evidence, relative to its deviation", "1", labeled),
    ]
    lines = [f"| | expected | {' | '.join(PARTS)} |", "|" + "---|" * (2 + len(PARTS))]
    for title, expected, values in rows:
        lines.append(f"| {title} | {expected} | {' | '.join(_rms(values[part]) for part in found)} |")
    return "\n".join(lines) + "\n"


def _rms(values: pd.Series) -> str:
    return f"{float((values**2).mean()) ** 0.5:.2f}" if len(values) else ""


def to_page(table: pd.DataFrame, planned: int) -> str:
    """docs/verdict.md.

    Args:
        table: A row for each run that is done.
        planned: How many runs it is made of in the end.
    """
    groups = table.groupby(["part", "suite", "seed"]).size().reset_index(name="number").itertuples()
    done = ", ".join(f"{row.number} of {row.suite} seed {row.seed} ({row.part})" for row in groups)
    parts = [
        _HEAD,
        f"`python benchmarks/verdict.py --out verdict`: {len(table)} of {planned} runs are finished:\n{done}.\n",
        f"## Coverage\n\nStated: 95 %. {_found(table)}\n\n{coverage(table)}",
        *(f"## Verdicts, {part} runs\n\n{verdicts_by_gain(table[table['part'] == part])}" for part in PARTS),
        f"## The constants of the rule\n\nRoot mean squares over the runs.\n\n{errors(table)}",
    ]
    return "\n".join(parts)


_HEAD = """# Is the verdict right?

A run on your own images ends with "helps", "not clear" or "harms".
This page compares that verdict, and the 95 % interval of the gain, with the true gain, in runs whose
hidden labels are known.
The rule is in `src/qurate/runs/verdict.py` and described under
[Is it helping?](own_images.md#is-it-helping).

The gain is the accuracy of what `qurate adapt` gives, the combination of the adapted model and plain
training (S+T), minus that of S+T alone, on the unlabelled images that belong to a class.
The cases are digits with 3, 10 and 30 labels per class and Office-31 with 3.
The unlabelled target is as it is, or (digits) thinned to a long tail of 20:1.
In half of the cases 5 of 10 or 16 of 31 classes are unknown: their images are among the unlabelled
ones, and nothing removes them.
The methods help, help little, or harm: minimax entropy with twenty times its usual weight harms.
S+T is also compared with S+T of another seed.

The constants were chosen on the tuning runs alone, so that the interval holds 95 % of their gains; the
test runs were then judged with them.
Many true gains are too small to detect with so few labels; the verdict is then "not clear".
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="folder of the records")
    parser.add_argument("--part", choices=PARTS, help="only the runs of this part; writes no page")
    parser.add_argument("--processes", type=int, default=os.cpu_count())
    parser.add_argument("--page", type=Path, default=REPOSITORY / "docs" / "verdict.md")
    parser.add_argument("--judge-only", action="store_true", help="judge the records that are there")
    arguments = parser.parse_args()
    cases = [case for case in list_cases() if arguments.part in (None, case.part)]
    out: Path = arguments.out
    out.mkdir(parents=True, exist_ok=True)
    if not arguments.judge_only:
        train_missing([case for case in cases if not (out / case.file).is_file()], out, arguments.processes)
    done = [case for case in cases if (out / case.file).is_file()]
    table = pd.DataFrame([judge_case(case, out / case.file) for case in done])
    write_atomically(out / "verdicts.csv", table.to_csv(index=False))
    page = to_page(table, len(cases))
    if arguments.part is None:
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
