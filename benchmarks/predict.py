"""Time per image of `AdaptedModel.predict`, from a warm model, against a plain loop in torch and onnxruntime.

The model is Lite0 with a random head, its ONNX file what `qurate export --format onnx` writes. The images are new to
it: its cache is empty, but for the converted network. The plain loops decode with PIL and pass 32 images at a time,
with the defaults of torch and onnxruntime. Each side runs in processes of its own and the sides take turns. Loading is
not counted; 'one by one' is `predict` of a single path.

    python benchmarks/predict.py --images 300
"""

from __future__ import annotations

import argparse
import importlib
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import torch

import qurate
from embedding import BACKBONES, LITE0, PLAIN_BATCH, choose_images
from qurate.config import NetworkConfig
from qurate.data.images import read_image
from qurate.networks.heads import build_network
from qurate.runs.export import export_onnx
from qurate.runs.model import AdaptedModel
from qurate.runtime.machine import keep_freed_memory

SIDES = ("plain", "onnxruntime", "torch", "qurate")
ONE_BY_ONE = 20


def save_model(folder: Path) -> None:
    config = NetworkConfig(backbone=BACKBONES["lite0"], weights=str(LITE0))
    classes = tuple(f"class {number}" for number in range(31))
    network = build_network(config, n_classes=len(classes), input_width=None, seed=0).eval()
    model = AdaptedModel(network, config, classes, {"trained": "head"})
    model.save(folder)
    export_onnx(model, folder / "model.onnx")


def loop(model: AdaptedModel, compute: Callable[[torch.Tensor], object]) -> Callable[[Sequence[Path]], None]:
    (transform,) = model.transforms

    def run(paths: Sequence[Path]) -> None:
        for start in range(0, len(paths), PLAIN_BATCH):
            some = paths[start : start + PLAIN_BATCH]
            compute(torch.stack([transform.for_testing(read_image(path)) for path in some]))

    return run


def prepare(side: str, run: Path, cache: Path) -> Callable[[Sequence[Path]], object]:
    os.environ["QURATE_CACHE"] = str(cache)
    model = qurate.load(run)
    if side == "onnxruntime":
        session = importlib.import_module("onnxruntime").InferenceSession(
            run / "model.onnx", providers=["CPUExecutionProvider"]
        )
        (name,) = (each.name for each in session.get_inputs())
        return loop(model, lambda images: session.run(None, {name: np.ascontiguousarray(images.numpy())}))
    if side == "plain":
        return torch.no_grad()(loop(model, model.network))
    keep_freed_memory()  # as the command line does
    return model.predict


def run_side(side: str, run: Path, paths: Sequence[Path]) -> None:
    """Milliseconds per image in this process, all at once and one by one."""
    with tempfile.TemporaryDirectory() as cache:
        predict = prepare(side, run, Path(cache))
        warm, single, many = paths[:1], paths[1 : 1 + ONE_BY_ONE], paths[1 + ONE_BY_ONE :]
        predict(warm)
        began = time.perf_counter()
        predict(many)
        middle = time.perf_counter()
        for path in single:
            predict([path])
        end = time.perf_counter()
    print(1000 * (middle - began) / len(many), 1000 * (end - middle) / len(single))


def compare_sides(options: argparse.Namespace, model: Path) -> None:
    measured: dict[str, list[tuple[float, float]]] = {side: [] for side in SIDES}
    for number in range(options.rounds):
        for side in SIDES if number % 2 == 0 else SIDES[::-1]:
            environment = {**os.environ, "QURATE_ENGINE": "torch" if side == "torch" else "auto"}
            environment.pop("OMP_NUM_THREADS", None)  # all sides have all cores
            command = [sys.executable, __file__, "--model", str(model), "--images", str(options.images), "--side", side]
            output = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, env=environment).stdout
            many, single = (float(value) for value in output.split())
            measured[side].append((many, single))
    print(f"{options.images} images, {options.rounds} rounds, {os.cpu_count()} cores; milliseconds per image")
    for side, rounds in measured.items():
        many, single = (statistics.median(each) for each in zip(*rounds, strict=True))
        print(f"  {side:12} {many:6.1f} all at once, {single:6.1f} one by one")


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--images", type=int, default=300)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--side", choices=SIDES, help=argparse.SUPPRESS)
    parser.add_argument("--model", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.side:
        run_side(options.side, options.model, choose_images(options.images + 1 + ONE_BY_ONE).paths)
        return
    with tempfile.TemporaryDirectory() as folder:
        save_model(Path(folder))
        compare_sides(options, Path(folder))


if __name__ == "__main__":
    main()
