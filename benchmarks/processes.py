"""One process, two and three on real images: the same losses, trusted pseudo-labels and predictions.

    python benchmarks/processes.py --backbone torchvision/resnet34 --pixels 64 --images 24 --steps 20

Images of Office-31 W to A in double precision, random weights, frozen norms and a linear bottleneck, selector adaptive.
Few small images, because convolutions in double precision are slow on a CPU. In float32 the order of sums decides the
last digit, and training carries that on: `--single` shows how far, beside what another number of threads does in one
process. `--norms` trains with a normalized bottleneck and norms that learn, of which each process has its own share's
statistics and masks: the losses differ.
"""

from __future__ import annotations

import argparse
import os
import time
from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor

from qurate.config import ExecutionConfig, NetworkConfig, RunConfig
from qurate.data.images import ImageFiles, Transform
from qurate.data.samples import Inputs, Labeled, Split, Unlabeled, take
from qurate.data.suites import load_suite, read_suite_split
from qurate.distributed import shutdown
from qurate.evaluation import predict_probabilities
from qurate.presets import make_config
from qurate.runtime.machine import keep_freed_memory
from qurate.selection.algorithm import fit
from qurate.selection.callbacks import Callback
from qurate.selection.pseudo_labels import Positives

SHARED = Path(__file__).resolve().parents[2] / "shared"
DATA = Path(os.environ.get("QURATE_DATA") or SHARED / "data") / "office31"


class Losses(Callback):
    """Keeps them."""

    def __init__(self) -> None:
        self.found: list[float] = []

    def on_step(self, step: int, terms: dict[str, float]) -> None:
        """One more."""
        self.found.append(terms["loss"])


def some_of(split: Split, count: int, transform: Transform, kind: torch.dtype) -> Split:
    """Few images of each part, evenly, as tensors."""

    def load(inputs: Inputs, chosen: Tensor) -> Tensor:
        files = take(inputs, chosen)
        assert isinstance(files, ImageFiles)
        return torch.stack([transform.for_testing(transform.read(path)) for path in files.paths]).to(kind)

    def labeled(part: Labeled) -> Labeled:
        chosen = evenly(len(part))
        return Labeled(load(part.inputs, chosen), part.labels[chosen])

    def evenly(size: int) -> Tensor:
        return torch.linspace(0, size - 1, min(count, size)).long()

    every = split.target_unlabeled.inputs
    unlabeled = Unlabeled(load(every, evenly(len(every))))
    return Split(split.classes, labeled(split.source), labeled(split.target_labeled), unlabeled)


def config_of(backbone: str, steps: int, devices: int, threads: int, *, norms: bool) -> RunConfig:
    network = NetworkConfig(backbone, bottleneck="normalized" if norms else "linear")
    config = make_config("tml", "adaptive", network=network, steps=steps, rounds=1, round_steps=2)
    training = replace(config.training, batch_source=6, batch_target=6, batch_unlabeled=12, frozen_norms=not norms)
    return replace(config, training=training, execution=ExecutionConfig("cpu", devices, threads=threads))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--backbone", default="torchvision/resnet34")
    parser.add_argument("--pixels", type=int, default=64)
    parser.add_argument("--images", type=int, default=24, help="of each part")
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--devices", type=int, nargs="+", default=[2], help="numbers of processes")
    parser.add_argument("--single", action="store_true", help="in float32")
    parser.add_argument("--norms", action="store_true", help="batch norms and dropout")
    arguments = parser.parse_args()
    keep_freed_memory()
    suite = load_suite("office31")
    whole = read_suite_split(suite, DATA, "webcam:amazon", shots=3, seed=0, protocol="mme", validation=False)
    transform = Transform(round(arguments.pixels * 256 / 224), arguments.pixels)
    kind = torch.float32 if arguments.single else torch.float64
    split = some_of(whole, arguments.images, transform, kind)
    ones: tuple[Tensor, Positives, Tensor] | None = None
    threaded = [(1, 2)] if arguments.single else []
    for devices, threads in ((1, 1), *threaded, *((count, 1) for count in arguments.devices)):
        heard, began = Losses(), time.perf_counter()
        config = config_of(arguments.backbone, arguments.steps, devices, threads, norms=arguments.norms)
        done = fit(split, config, callbacks=[heard])
        losses, said = (
            torch.tensor(heard.found, dtype=torch.float64),
            predict_probabilities(done.method, split.target_unlabeled.inputs),
        )
        ones = ones or (losses, done.positives, said)
        positives = "the same" if done.positives.same_as(ones[1]) else "others"
        predictions = float((said.argmax(dim=1) == ones[2].argmax(dim=1)).float().mean())
        first, last = (float((losses - ones[0])[:count].abs().max()) for count in (1, len(losses)))
        print(
            f"{devices} processes of {threads} threads: the first loss within {first:.0e}, all {len(losses)}", end=" "
        )
        print(f"within {last:.0e}; {len(done.positives)} positives, {positives}; {predictions:.0%} of", end=" ")
        print(f"predictions the same; {time.perf_counter() - began:.0f} s", flush=True)
    shutdown()


if __name__ == "__main__":
    main()
