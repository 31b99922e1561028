"""Embedding throughput against a plain loop over the same images, as a ratio measured in one run.

The plain loop is what one writes first: PIL, one batch after the other, torch's defaults. Each side runs in
processes of its own, because settings of the memory allocator last as long as a process; the sides take turns,
so that whatever else the machine is doing meets both. Loading libraries is not counted; hashing files
and writing the cache is.

    python benchmarks/embedding.py --images 600
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import torch

from qurate.data.embedding.embed import embed_files
from qurate.data.embedding.frozen import freeze_backbone
from qurate.data.images import ImageFiles, read_image
from qurate.networks.backbones import build_backbone
from qurate.runtime.machine import keep_freed_memory

BACKBONE = "timm/tf_efficientnet_lite0"
SHARED = Path(__file__).resolve().parents[2] / "shared"
DATA = Path(os.environ.get("QURATE_DATA") or SHARED / "data")
WEIGHTS = DATA.parent / "weights" / "tf_efficientnet_lite0.safetensors"
PLAIN_BATCH = 32
SIDES = ("plain", "qurate")


def choose_images(count: int) -> ImageFiles:
    """Images of all classes of Amazon, DSLR and Webcam, evenly."""
    paths = sorted((DATA / "office31").glob("*/images/*/*.jpg"))
    if not paths or not WEIGHTS.is_file():
        sys.exit(f"This benchmark needs {DATA / 'office31'} (or QURATE_DATA) and {WEIGHTS}.")
    count = min(count, len(paths))
    return ImageFiles(tuple(paths[i * len(paths) // count] for i in range(count)))


def embed_plainly(files: ImageFiles) -> torch.Tensor:
    backbone = build_backbone(BACKBONE, str(WEIGHTS))
    assert backbone.transform is not None
    backbone.module.eval()
    rows = []
    with torch.no_grad():
        for start in range(0, len(files), PLAIN_BATCH):
            paths = files.paths[start : start + PLAIN_BATCH]
            images = torch.stack([backbone.transform.for_testing(read_image(path)) for path in paths])
            rows.append(backbone.module(images))
    return torch.cat(rows)


def embed_cached(files: ImageFiles) -> torch.Tensor:
    with tempfile.TemporaryDirectory() as cache:
        frozen = freeze_backbone(BACKBONE, str(WEIGHTS))
        return embed_files(files.paths, frozen, strict=True, cache=Path(cache)).of(files)


def run_side(side: str, files: ImageFiles) -> None:
    """Embed once in this process; print wall seconds, processor seconds and the mean size of the entries."""
    embed = embed_plainly if side == "plain" else embed_cached
    if side == "qurate":
        keep_freed_memory()  # as the command line does
    embed(ImageFiles(files.paths[:1]))  # loads libraries; both sides then build the network once more, in the clock
    wall, processor = time.perf_counter(), time.process_time()
    rows = embed(files)
    print(time.perf_counter() - wall, time.process_time() - processor, float(rows.double().abs().mean()))


def measure_side(side: str, count: int) -> tuple[float, float, float]:
    command = [sys.executable, __file__, "--images", str(count), "--side", side]
    output = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    wall, processor, mean = (float(number) for number in output.split())
    return wall, processor, mean


def compare_sides(count: int, rounds: int) -> None:
    print(f"{count} images per round, {rounds} rounds, {os.cpu_count()} cores, load average {os.getloadavg()[0]:.1f}")
    wall, processor, means = dict.fromkeys(SIDES, 0.0), dict.fromkeys(SIDES, 0.0), {}
    for number in range(rounds):
        for side in SIDES if number % 2 == 0 else SIDES[::-1]:
            seconds, busy, means[side] = measure_side(side, count)
            wall[side] += seconds
            processor[side] += busy
            print(
                f"  round {number + 1} {side:6}: {count / seconds:5.1f} images/s, {count / busy:5.1f} per processor "
                f"second (load average {os.getloadavg()[0]:.1f})"
            )
    if abs(means["plain"] - means["qurate"]) > 1e-4 * means["plain"]:
        sys.exit(f"The two sides disagree: {means}.")
    print(f"ratio in time:           {wall['plain'] / wall['qurate']:.2f} (target: at least 1.5, on an idle machine)")
    print(f"ratio in processor time: {processor['plain'] / processor['qurate']:.2f}")


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--images", type=int, default=600, help="images per round")
    parser.add_argument("--rounds", type=int, default=2, help="turns of each side")
    parser.add_argument("--side", choices=SIDES, help=argparse.SUPPRESS)
    options = parser.parse_args()
    files = choose_images(options.images)
    if options.side:
        run_side(options.side, files)
    else:
        compare_sides(len(files), options.rounds)


if __name__ == "__main__":
    main()
