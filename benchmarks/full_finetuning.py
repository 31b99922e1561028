"""The head on frozen features, all layers as the paper trains them, and all layers as `adapt --train full` does.

    python benchmarks/full_finetuning.py --seeds 0 1 2 --batch 8 --steps 400 --full-steps 60

Office-31 at a low resolution with a small backbone. Rows: S+T, TML, TML with the selectors adaptive (the default) and
dqn (TML_DQNPL). Columns:

- head: on embeddings of the frozen backbone, 1,500 steps;
- was: all layers from the start with the rates and norms of the MME reference code, `--steps` of line 1 and a quarter
  of them in each round; this is the benchmark's `--train full`;
- now: all layers from the head, with its pseudo-labels, as `qurate.runs.full_training` does, the rates in proportion to
  the batch;
- kept: of the default, the better of head and now by held-out labelled images, as `adapt` decides it.

Line 1 of TML is trained once for the three rows that share it.
"""

from __future__ import annotations

import argparse
import copy
import os
import tempfile
import time
from collections import defaultdict
from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor, nn

from qurate.config import NetworkConfig, RunConfig
from qurate.data.own_images import prepare_images, read_prepared
from qurate.data.samples import Labeled, Split, take
from qurate.data.suites import load_suite, read_suite_split
from qurate.embedding.backbone import FrozenBackbone, freeze_backbone, freeze_module
from qurate.embedding.embed import embed_files, image_paths, put_embeddings
from qurate.evaluation import evaluate
from qurate.methods import Method
from qurate.networks.backbone_names import find_weights, name_with
from qurate.networks.inference import log_probabilities
from qurate.presets import make_config
from qurate.runs.comparison import plan_comparison
from qurate.runs.full_training import fine_tune, full_config, full_training, train_all_layers
from qurate.runtime.machine import keep_freed_memory
from qurate.runtime.progress import follow
from qurate.selection.algorithm import Adaptation, fit
from qurate.selection.session import Pretraining

SHARED = Path(__file__).resolve().parents[2] / "shared"
DATA = Path(os.environ.get("QURATE_DATA") or SHARED / "data") / "office31"
ROWS = (("source_target", "none"), ("tml", "none"), ("tml", "adaptive"), ("tml", "dqn"))
ROUNDS = 3
DEFAULT = "tml adaptive"


class Table:
    """Accuracies by column, row and seed, printed as they come."""

    def __init__(self) -> None:
        self.found: dict[tuple[str, str], list[float]] = defaultdict(list)
        self._began = time.perf_counter()

    def add(self, column: str, row: str, seed: int, accuracy: float) -> None:
        """One more."""
        self.found[column, row].append(100 * accuracy)
        seconds = time.perf_counter() - self._began
        print(f"seed {seed} {column:5s} {row:22s} {accuracy:6.1%}  {seconds:5.0f} s in all", flush=True)

    def __str__(self) -> str:
        means = (f"{c:5s} {r:22s} {sum(v) / len(v):5.1f} of {len(v)}" for (c, r), v in self.found.items())
        return "\n".join(sorted(means))


def sized(config: RunConfig, batch: int) -> RunConfig:
    """The run with other batch sizes."""
    training = replace(config.training, batch_source=batch, batch_target=batch, batch_unlabeled=2 * batch)
    return replace(config, training=training)


def embed_by(method: Method, files: Split, frozen: FrozenBackbone) -> tuple[Method, Split]:
    """A network of all layers as `adapt` looks at images with it: a head, and what its backbone embeds."""
    backbone = freeze_module(frozen.name, method.network.backbone, frozen.width, (frozen.transform,))
    embedded = put_embeddings(files, embed_files(image_paths(files), backbone, cached=False, device="cpu"))
    head = copy.deepcopy(method, {id(method.network.backbone): nn.Identity()})
    head.network.transform = None
    return head, embedded


def accuracy(method: Method, split: Split) -> float:
    return evaluate(method, split.target_unlabeled).accuracy


def run_seed(
    seed: int,
    files: Split,
    embedded: Split,
    images: Split,
    frozen: FrozenBackbone,
    network: NetworkConfig,
    arguments: argparse.Namespace,
    table: Table,
) -> None:
    """All rows and columns of one seed."""
    part = Split(files.classes, take_some(files.source), take_some(files.target_labeled), files.target_unlabeled)
    heads: dict[str, tuple[RunConfig, Adaptation]] = {}
    shared: dict[str, Pretraining] = defaultdict(Pretraining)
    for method, selector in ROWS:
        config = make_config(method, selector, rounds=ROUNDS, seed=seed, device="cpu")
        head = fit(embedded, config, pretrained=shared[method])
        heads[f"{method} {selector}"] = config, head
        table.add("head", f"{method} {selector}", seed, accuracy(head.method, embedded))
    for row, (config, head) in heads.items():
        training = full_training(sized(config, arguments.batch).training, arguments.full_steps)
        scale = arguments.batch / config.training.batch_source  # rates in proportion to the batch
        training = replace(
            training,
            learning_rate=scale * training.learning_rate,
            backbone_learning_rate=scale * training.backbone_learning_rate,
        )
        full = full_config(config, network, training)
        tuned = fine_tune(images, head, full)
        after = embed_by(tuned, part, frozen)
        table.add("now", row, seed, accuracy(*after))
        if row == DEFAULT and arguments.choose:
            log_probs = log_probabilities(after[0].network, after[1].target_unlabeled.inputs)
            chosen = choose(embedded, images, heads[row], full, tuned, log_probs)
            table.add("kept", row, seed, table.found["now" if chosen else "head", row][-1] / 100)


def run_seed_from_start(
    seed: int,
    files: Split,
    images: Split,
    frozen: FrozenBackbone,
    network: NetworkConfig,
    arguments: argparse.Namespace,
    table: Table,
) -> None:
    """The column 'was' of one seed."""
    shared: dict[str, Pretraining] = defaultdict(Pretraining)
    part = Split(files.classes, take_some(files.source), take_some(files.target_labeled), files.target_unlabeled)
    for method, selector in ROWS:
        quarter = max(1, arguments.steps // 4)
        config = make_config(
            method, selector, network=network, steps=arguments.steps, rounds=ROUNDS, round_steps=quarter, seed=seed
        )
        done = fit(images, sized(config, arguments.batch), pretrained=shared[method])
        table.add("was", f"{method} {selector}", seed, accuracy(*embed_by(done.method, part, frozen)))


def take_some(part: Labeled) -> Labeled:
    """One image: a split needs some, and nobody looks at it."""
    return Labeled(take(part.inputs, torch.arange(1)), part.labels[:1])


def choose(
    embedded: Split,
    images: Split,
    head: tuple[RunConfig, Adaptation],
    full: RunConfig,
    tuned: Method,
    log_probs: Tensor,
) -> bool:
    """Whether `adapt` would keep the fully trained model, whose log-probabilities of D_u are given, (N_u, K)."""
    config, adaptation = head
    folds = plan_comparison(embedded.target_labeled.labels, seed=config.seed).folds
    with follow(False) as quiet:
        done = train_all_layers(
            embedded, images, adaptation, config, full, folds, lambda _: log_probs, None, quiet, tuned
        )
    print(done.sentence, flush=True)
    return done.kept


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--backbone", default="timm/tf_efficientnet_lite0.in1k")
    parser.add_argument("--scenario", default="webcam:amazon")
    parser.add_argument("--pixels", type=int, default=96)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    parser.add_argument(
        "--batch", type=int, default=16, help="source samples of a step; as many target, twice unlabelled"
    )
    parser.add_argument("--steps", type=int, default=60, help="of line 1, where all layers are trained from the start")
    parser.add_argument("--full-steps", type=int, default=60, help="of all layers after the head")
    parser.add_argument("--no-now", dest="now", action="store_false", help="leave out all columns but 'was'")
    parser.add_argument("--no-was", dest="was", action="store_false", help="leave out the column 'was'")
    parser.add_argument("--no-choose", dest="choose", action="store_false", help="leave out the column 'kept'")
    arguments = parser.parse_args()
    keep_freed_memory()
    torch.manual_seed(0)
    suite, backbone = load_suite("office31"), name_with(arguments.backbone, arguments.pixels, None)
    network = NetworkConfig(backbone, find_weights(backbone, "auto"), "normalized")
    frozen, table = freeze_backbone(backbone, network.weights), Table()
    with tempfile.TemporaryDirectory() as folder:
        for seed in arguments.seeds:
            files = read_suite_split(
                suite, DATA, arguments.scenario, shots=3, seed=seed, protocol="mme", validation=False
            )
            paths = image_paths(files)
            embedded = put_embeddings(files, embed_files(paths, frozen, cache=Path(folder) / "cache", device="cpu"))
            images = read_prepared(files, prepare_images(paths, frozen.transform, Path(folder) / "images")[0])
            if arguments.now:
                run_seed(seed, files, embedded, images, frozen, network, arguments, table)
            if arguments.was:
                run_seed_from_start(seed, files, images, frozen, network, arguments, table)
    print(table)


if __name__ == "__main__":
    main()
