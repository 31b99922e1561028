"""Training steps per second of two processes: this checkout against another one, in turns.

    git worktree add ../before c679b57
    python benchmarks/device_rate.py --other ../before/src --batch 16 --steps 10
    python benchmarks/device_rate.py --other ../before/src --backbone torchvision/resnet34 --pixels 112 --steps 6
    python benchmarks/device_rate.py --other ../before/src --backbone digits --pixels 8 --batch 24 --steps 200

Random images and weights; 'mme' with a normalized bottleneck. Each side runs in processes of its own, the sides take
turns, forwards and backwards, and the ratios are the medians over the rounds: by the clock, and by the processor time
of rank 0, which other work on the machine changes less. The first two steps are not counted.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

WARM_UP = 2


def measure(arguments: argparse.Namespace) -> None:
    """Print the seconds of a step in this process and those that train with it."""
    import torch

    from qurate.config import ExecutionConfig, NetworkConfig
    from qurate.data.samples import Labeled, Split, Unlabeled
    from qurate.presets import make_config
    from qurate.runtime.machine import keep_freed_memory
    from qurate.selection.algorithm import fit
    from qurate.selection.callbacks import Callback

    class Times(Callback):
        def __init__(self) -> None:
            self.found: list[tuple[float, float]] = []

        def on_step(self, step: int, terms: dict[str, float]) -> None:
            self.found.append((time.perf_counter(), time.process_time()))

    keep_freed_memory()
    torch.set_num_threads(1)
    rng = torch.Generator().manual_seed(0)
    channels, size = (1, 8) if arguments.backbone == "digits" else (3, arguments.pixels)
    images = [torch.randn(64, channels, size, size, generator=rng) for _ in range(3)]
    labels = torch.arange(64) % 31
    classes = tuple(map(str, range(31)))
    split = Split(classes, Labeled(images[0], labels), Labeled(images[1], labels), Unlabeled(images[2]))
    network = NetworkConfig(arguments.backbone, bottleneck="normalized")
    config = make_config("mme", "none", network=network, steps=WARM_UP + arguments.steps)
    batch = arguments.batch
    training = replace(config.training, batch_source=batch, batch_target=batch, batch_unlabeled=2 * batch)
    execution = ExecutionConfig("cpu", arguments.devices, threads=1)
    times = Times()
    fit(split, replace(config, training=training, execution=execution), callbacks=[times])
    began, ended = times.found[WARM_UP - 1], times.found[-1]
    print(*((after - before) / arguments.steps for before, after in zip(began, ended, strict=True)))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--other", type=Path, help="folder `src` of the other checkout")
    parser.add_argument("--backbone", default="timm/tf_efficientnet_lite0")
    parser.add_argument("--pixels", type=int, default=96)
    parser.add_argument("--batch", type=int, default=16, help="source samples; as many target, twice unlabelled")
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--devices", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--measure", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.measure:
        measure(arguments)
        return
    sides = {"this": Path(__file__).resolve().parents[1] / "src", "other": arguments.other.resolve()}
    found: dict[str, list[list[float]]] = {side: [] for side in sides}
    for number in range(arguments.rounds):
        for side in sides if number % 2 == 0 else reversed(sides):
            command = (sys.executable, __file__, *sys.argv[1:], "--measure")
            environment = {**os.environ, "PYTHONPATH": str(sides[side]), "OMP_NUM_THREADS": "1"}
            done = subprocess.run(command, env=environment, check=True, capture_output=True, text=True)
            found[side].append([float(number) for number in done.stdout.split()[-2:]])
        words = ("{} {:.4f} s a step, {:.4f} s of a processor".format(side, *found[side][-1]) for side in sides)
        print(*words, sep="; ", flush=True)
    pairs = list(zip(found["this"], found["other"], strict=True))
    clock, processor = (statistics.median(other[i] / this[i] for this, other in pairs) for i in (0, 1))
    print(
        f"{arguments.backbone}: {clock:.2f} times as fast as the other checkout by the clock, {processor:.2f} times",
        end=" ",
    )
    print("by processor time")


if __name__ == "__main__":
    main()
