"""Training steps per second against a plain loop of the MME reference recipe, on the same images and network.

    python benchmarks/step_rate.py --backbone resnet34 --pixels 224 --batch 8 --steps 8
    python benchmarks/step_rate.py --backbone tf_efficientnet_lite0 --pixels 96 --batch 16 --steps 20

The plain loop is the reference code's: three loaders that decode by PIL and torchvision, one pass with a step for the
labelled samples and one pass with a step for the unlabelled ones. Ours is method 'mme' in the one training loop, on
files and on images stored once at training size, as the command line runs it. Each side runs in processes of its own,
because settings of the memory allocator last as long as a process; the sides take turns, forwards and backwards, and
the ratio is the median over the rounds. Building the network and two steps are not counted.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import cast

import timm
import torch
import torchvision
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, Dataset
from torchvision import transforms

from qurate.config import ExecutionConfig, NetworkConfig, Precision
from qurate.data.batches import TrainingData
from qurate.data.images import ImageFiles, Transform
from qurate.data.own_images import prepare_images, read_prepared
from qurate.data.samples import Inputs, Split
from qurate.data.suites import load_suite, read_suite_split
from qurate.embedding.embed import image_paths
from qurate.networks.adversarial import reverse_gradient
from qurate.presets import make_config
from qurate.runtime.machine import keep_freed_memory
from qurate.training import Trainer, start

SHARED = Path(__file__).resolve().parents[2] / "shared"
DATA = Path(os.environ.get("QURATE_DATA") or SHARED / "data") / "office31"
WARM_UP = 2
SIDES = {
    "plain": "the reference recipe, torch's defaults",
    "files": "qurate, decoding images in each step",
    "prepared": "qurate, images stored at training size",
    "bfloat16": "the same in precision bf16-mixed",
}


class Files(Dataset[tuple[Tensor, int]]):
    """Images as the reference code loads them."""

    def __init__(self, inputs: Inputs, labels: Tensor | None, transform: Transform) -> None:
        assert isinstance(inputs, ImageFiles)
        self.paths, self.labels = inputs.paths, labels
        steps = [
            transforms.Resize((transform.resize, transform.resize)),
            transforms.RandomHorizontalFlip(),
            transforms.RandomCrop(transform.crop),
            transforms.ToTensor(),
            transforms.Normalize(transform.mean, transform.std),
        ]
        self.transform = transforms.Compose(steps)

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        loader = torchvision.datasets.folder.pil_loader
        return self.transform(loader(str(self.paths[index]))), -1 if self.labels is None else int(self.labels[index])


def endless(files: Files, size: int, workers: int) -> Iterator[tuple[Tensor, Tensor]]:
    while True:
        yield from DataLoader(files, batch_size=size, shuffle=True, drop_last=True, num_workers=workers)


class PlainLoop:
    """The reference recipe."""

    def __init__(self, split: Split, backbone: str, transform: Transform, batch: int, workers: int) -> None:
        self.features = timm.create_model(backbone, num_classes=0)
        self.layer, self.classes = (
            nn.Linear(cast(int, self.features.num_features), 512),
            nn.Linear(512, split.n_classes, bias=False),
        )
        rates = ((self.features, 0.001), (self.layer, 0.01))
        self.first = torch.optim.SGD(
            [{"params": part.parameters(), "lr": rate} for part, rate in rates], lr=0.01, momentum=0.9, nesterov=True
        )
        self.second = torch.optim.SGD(self.classes.parameters(), lr=0.01, momentum=0.9, nesterov=True)
        parts = ((split.source, batch), (split.target_labeled, batch))
        self.labeled = [endless(Files(part.inputs, part.labels, transform), size, workers) for part, size in parts]
        self.unlabeled = endless(Files(split.target_unlabeled.inputs, None, transform), 2 * batch, workers)

    def logits(self, images: Tensor, *, reverse: bool = False) -> Tensor:
        """Of images, (N, K)."""
        features = self.layer(self.features(images))
        return self.classes(F.normalize(reverse_gradient(features, 0.1) if reverse else features)) / 0.05  # type: ignore[no-any-return]

    def run(self, steps: int) -> None:
        """Take some steps."""
        for _ in range(steps):
            images, labels = zip(*[next(part) for part in self.labeled], strict=True)
            unlabeled, _ = next(self.unlabeled)
            self._step(F.cross_entropy(self.logits(torch.cat(images)), torch.cat(labels)))
            probabilities = F.softmax(self.logits(unlabeled, reverse=True), dim=1)
            self._step((probabilities * (probabilities + 1e-5).log()).sum(dim=1).mean())

    def _step(self, loss: Tensor) -> None:
        for optimizer in (self.first, self.second):
            optimizer.zero_grad()
        loss.backward()
        for optimizer in (self.first, self.second):
            optimizer.step()


def ours(split: Split, backbone: str, transform: Transform, batch: int, workers: int, precision: Precision) -> Trainer:
    config = make_config("mme", "none", network=NetworkConfig(f"timm/{backbone}", bottleneck="linear"), device="cpu")
    training = replace(
        config.training,
        batch_source=batch,
        batch_target=batch,
        batch_unlabeled=2 * batch,
        precision=precision,
    )
    trainer = start(split, replace(config, training=training, execution=ExecutionConfig("cpu", workers=workers)))
    trainer.method.network.transform = transform
    return trainer


Measured = tuple[float, float]
"""Seconds per step, and the share of the time that the network waited for data; -1 where it is not known."""


def run_side(side: str, split: Split, options: argparse.Namespace) -> Measured:
    """Take the steps in this process."""
    transform = Transform(round(options.pixels * 256 / 224), options.pixels)
    common = (options.backbone, transform, options.batch, options.workers)
    if side == "plain":
        plain = PlainLoop(split, *common)
        plain.run(WARM_UP)
        began = time.perf_counter()
        plain.run(options.steps)
        return (time.perf_counter() - began) / options.steps, -1.0
    keep_freed_memory()  # as the command line does
    if side in ("prepared", "bfloat16"):
        split = read_prepared(split, prepare_images(image_paths(split), transform, options.folder)[0])
    precision: Precision = "bf16-mixed" if side == "bfloat16" else "32-true"
    trainer, data = ours(split, *common, precision), TrainingData.of(split)
    trainer.run(data, steps=WARM_UP, seed=0)
    trainer.waited = trainer.seconds = 0.0
    began = time.perf_counter()
    trainer.run(data, steps=options.steps, seed=1)
    return (time.perf_counter() - began) / options.steps, trainer.waited / trainer.seconds


def measure_side(side: str, folder: str) -> Measured:
    """Run a side in a process of its own."""
    environment = {name: value for name, value in os.environ.items() if name != "OMP_NUM_THREADS"}  # all cores
    command = [sys.executable, *sys.argv, "--side", side, "--folder", folder]
    output = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, env=environment).stdout
    seconds, waited = (float(number) for number in output.split())
    return seconds, waited


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--backbone", default="resnet34", help="a name of timm's")
    parser.add_argument("--pixels", type=int, default=224)
    parser.add_argument(
        "--batch", type=int, default=8, help="source images of a step; as many target, twice unlabelled"
    )
    parser.add_argument("--steps", type=int, default=12)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--side", choices=SIDES, help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    suite = load_suite("office31")
    split = read_suite_split(suite, DATA, "webcam:amazon", shots=3, seed=0, protocol="mme", validation=False)
    if options.side:
        print(*run_side(options.side, split, options))
        return
    measured: dict[str, list[Measured]] = {side: [] for side in SIDES}
    with tempfile.TemporaryDirectory() as folder:
        for number in range(options.rounds):
            for side in SIDES if number % 2 == 0 else tuple(SIDES)[::-1]:
                measured[side].append(measure_side(side, folder))
                seconds, waited = measured[side][-1]
                share = "" if waited < 0 else f", waited for data {waited:.1%} of the time"
                load = os.getloadavg()[0]
                print(
                    f"  round {number + 1} {side:8}: {seconds:.2f} s a step{share} (load average {load:.1f})",
                    flush=True,
                )
    for side in list(SIDES)[1:]:
        pairs = zip(measured["plain"], measured[side], strict=True)
        ratio = statistics.median(plain[0] / other[0] for plain, other in pairs)
        waited = statistics.median(each[1] for each in measured[side])
        print(f"{side} ({SIDES[side]}): {ratio:.2f} times as fast as the plain loop; waits {waited:.1%} of the time")


if __name__ == "__main__":
    main()
