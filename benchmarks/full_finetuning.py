"""All layers of a small pretrained backbone against its frozen features, on Office-31 at a low resolution.

    python benchmarks/full_finetuning.py --minutes 13 --backbone-rate 1e-4 --frozen-norms
    python benchmarks/full_finetuning.py --minutes 13 --backbone-rate 1e-4

Rows: S+T, TML, TML with the selectors adaptive and dqn (TML_DQNPL), each with the head on frozen features and with all
layers, on the same crops' size. Line 1 of TML is trained once for its three rows. The steps of full fine-tuning are as
many as fit into the minutes, by a few steps that are timed first; those of the head are the benchmark's.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

from qurate.config import NetworkConfig, RunConfig
from qurate.data.batches import TrainingData
from qurate.data.images import Transform
from qurate.data.own_images import prepare_images, read_prepared
from qurate.data.samples import Split
from qurate.data.suites import load_suite, read_suite_split
from qurate.embedding.backbone import freeze_backbone
from qurate.embedding.embed import embed_files, image_paths, put_embeddings
from qurate.evaluation import evaluate
from qurate.methods import Method
from qurate.networks.backbone_names import find_weights
from qurate.presets import make_config
from qurate.runtime.machine import keep_freed_memory
from qurate.selection.algorithm import fit
from qurate.selection.callbacks import Callback
from qurate.selection.session import Pretraining
from qurate.training import start

SHARED = Path(__file__).resolve().parents[2] / "shared"
DATA = Path(os.environ.get("QURATE_DATA") or SHARED / "data") / "office31"
BACKBONE = "timm/tf_efficientnet_lite0"
ROWS = (("source_target", "none"), ("tml", "none"), ("tml", "adaptive"), ("tml", "dqn"))
ROUNDS = 3
SHARE = 4
"""Rounds have this part of the steps of line 1 each."""
LOOKS = 12
"""What pseudo-labelling and evaluation take, in training steps per round, of 2,800 images; measured roughly."""


class Resolution(Callback):
    """Prepares images at another size than the backbone's own."""

    def __init__(self, transform: Transform) -> None:
        self._transform = transform

    def on_start(self, method: Method) -> None:
        """Before the first image is read."""
        method.network.transform = self._transform


def config_of(
    method: str, selector: str, network: NetworkConfig, steps: int, batch: int | None, **training: Any
) -> RunConfig:
    round_steps = max(1, steps // SHARE) if batch is not None else None
    config = make_config(
        method, selector, network=network, steps=steps, rounds=ROUNDS, round_steps=round_steps, device="cpu"
    )
    if batch is None:
        return config
    sizes: dict[str, Any] = {"batch_source": batch, "batch_target": batch, "batch_unlabeled": 2 * batch}
    return replace(config, training=replace(config.training, **sizes, **training))


def run_rows(
    train: str,
    split: Split,
    network: NetworkConfig,
    steps: int,
    batch: int | None,
    looks: Resolution,
    **training: Any,
) -> None:
    """Train and print all rows; those of one method share line 1."""
    shared: dict[str, Pretraining] = {}
    for method, selector in ROWS:
        config = config_of(method, selector, network, steps, batch, **training)
        pretrained = shared.setdefault(method, Pretraining())
        began = time.perf_counter() - pretrained.seconds  # 0 until it is done
        done = fit(split, config, callbacks=[looks], pretrained=pretrained)
        seconds = time.perf_counter() - began
        accuracy = evaluate(done.method, split.target_unlabeled).accuracy
        taken = steps + len(done.rounds) * config.selection.round_steps
        print(f"{train:5s} {method:14s} {selector:9s} {taken:5d} steps {accuracy:.1%} {seconds:6.0f} s", flush=True)


def affordable_steps(split: Split, network: NetworkConfig, batch: int, looks: Resolution, minutes: float) -> int:
    """Steps of line 1 with which all rows end in time, by timing three."""
    config = config_of("tml", "none", network, 3, batch)
    trainer = start(split, config)
    looks.on_start(trainer.method)
    data = TrainingData.of(split)
    trainer.run(data, steps=1, seed=0)
    began = time.perf_counter()
    trainer.run(data, steps=3, seed=0)
    each = (time.perf_counter() - began) / 3
    of_rounds = 2 * ROUNDS * LOOKS  # rounds of two rows
    steps = (60 * minutes / each - of_rounds - 4 * LOOKS) / (2 + 2 * ROUNDS / SHARE)
    print(f"{each:.2f} s a step: {steps:.0f} steps of line 1 end in {minutes:.0f} minutes", flush=True)
    return max(20, min(1500, int(steps)))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--scenario", default="webcam:amazon")
    parser.add_argument("--pixels", type=int, default=96)
    parser.add_argument(
        "--batch", type=int, default=16, help="source samples of a step; as many target, twice unlabelled"
    )
    parser.add_argument("--minutes", type=float, default=16)
    parser.add_argument("--frozen-norms", action="store_true", help="batch norms keep their statistics")
    parser.add_argument("--backbone-rate", type=float, default=1e-3, help="learning rate of the backbone")
    arguments = parser.parse_args()
    keep_freed_memory()
    suite, weights = load_suite("office31"), find_weights(BACKBONE, "auto")
    files = read_suite_split(suite, DATA, arguments.scenario, shots=3, seed=0, protocol="mme", validation=False)
    frozen = freeze_backbone(BACKBONE, weights)
    transform = replace(frozen.transform, resize=round(arguments.pixels * 256 / 224), crop=arguments.pixels)
    looks = Resolution(transform)
    began = time.perf_counter()
    small = replace(frozen, transform=transform)
    embedded = put_embeddings(files, embed_files(image_paths(files), small, device="cpu"))
    print(f"embedded in {time.perf_counter() - began:.0f} s", flush=True)
    run_rows("head", embedded, NetworkConfig(bottleneck="normalized"), 1500, None, looks)
    network = NetworkConfig(BACKBONE, weights, "normalized")
    with tempfile.TemporaryDirectory() as folder:
        split = read_prepared(files, prepare_images(image_paths(files), transform, Path(folder))[0])
        left = arguments.minutes - (time.perf_counter() - began) / 60
        steps = affordable_steps(split, network, arguments.batch, looks, left)
        training = {"backbone_learning_rate": arguments.backbone_rate, "frozen_norms": arguments.frozen_norms}
        run_rows("full", split, network, steps, arguments.batch, looks, **training)
    print(f"{(time.perf_counter() - began) / 60:.1f} minutes in all")


if __name__ == "__main__":
    main()
