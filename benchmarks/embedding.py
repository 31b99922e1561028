"""Embedding throughput against timm's plain inference loop over the same images, as ratios measured in one run.

The plain loop is what one writes first: PIL, one batch after the other, torch's defaults; 'loader' is the same with
torch's loader, which decodes in a process per core. Each side runs in processes of its own, because settings of the
memory allocator last as long as a process; the sides take turns, forwards and backwards, so that whatever else the
machine is doing meets all of them. Loading libraries and converting the network, once per backbone, are not counted;
compiling it, hashing files and writing the cache are. With --network 32 decoded images are in memory, and nothing is
counted but the forward passes.

    python benchmarks/embedding.py --backbone lite0 --images 600
    python benchmarks/embedding.py --backbone lite2 --images 300 --network
    python benchmarks/embedding.py --backbone vit_small --images 100
    python benchmarks/embedding.py --backbone lite0 --sides before,qurate --before ../other-checkout/src
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import numpy as np
import safetensors.torch
import timm
import torch
from torch import Tensor
from torch.utils.data import DataLoader

from qurate.data.batches import ImageDataset
from qurate.data.images import ImageFiles, Transform, read_image
from qurate.embedding.backbone import choose_precision, freeze_backbone
from qurate.embedding.embed import embed_files
from qurate.embedding.forward import CPU_BATCH, BatchEncoder, DecodedBatch
from qurate.networks.backbones import build_backbone
from qurate.runtime.compute import torch_threads
from qurate.runtime.machine import keep_freed_memory

BACKBONES = {
    "lite0": "timm/tf_efficientnet_lite0",
    "lite2": "timm/tf_efficientnet_lite2",
    "vit_small": "timm/vit_small_patch16_224",
}
SHARED = Path(__file__).resolve().parents[2] / "shared"
DATA = Path(os.environ.get("QURATE_DATA") or SHARED / "data")
LITE0 = DATA.parent / "weights" / "tf_efficientnet_lite0.safetensors"
PLAIN_BATCH = 32
SIDES = {
    "plain": "timm's model, PIL, one batch after the other",
    "loader": "the same with torch's loader, a process per core",
    "before": "qurate of another checkout (--before)",
    "torch": "qurate without OpenVINO",
    "float32": "qurate with OpenVINO in float32",
    "bfloat16": "qurate with OpenVINO in bfloat16",
    "qurate": "qurate as it is",
}
SETTINGS = {
    "torch": {"QURATE_ENGINE": "torch"},
    "float32": {"QURATE_ENGINE": "openvino", "QURATE_PRECISION": "float32"},
    "bfloat16": {"QURATE_ENGINE": "openvino", "QURATE_PRECISION": "bfloat16"},
}
Measured = tuple[float, float, float]
"""Wall seconds, processor seconds, mean size of an embedding's entries."""


def choose_images(count: int) -> ImageFiles:
    """Images of all classes of Amazon, DSLR and Webcam, evenly."""
    paths = sorted((DATA / "office31").glob("*/images/*/*.jpg"))
    if not paths:
        sys.exit(f"This benchmark needs {DATA / 'office31'} (or QURATE_DATA).")
    count = min(count, len(paths))
    return ImageFiles(tuple(paths[i * len(paths) // count] for i in range(count)))


def find_weights(backbone: str, folder: Path) -> Path:
    """The weights of Lite0, or random ones."""
    if backbone == "lite0":
        return LITE0 if LITE0.is_file() else sys.exit(f"This benchmark needs {LITE0}.")
    torch.manual_seed(0)
    module = timm.create_model(BACKBONES[backbone].removeprefix("timm/"), num_classes=0)
    safetensors.torch.save_file(module.state_dict(), folder / "random.safetensors")
    return folder / "random.safetensors"


def batches(files: ImageFiles, transform: Transform, loader: bool) -> Iterator[Tensor]:
    starts = range(0, len(files), PLAIN_BATCH)
    if loader:
        keys = [[(i, -1) for i in range(start, min(start + PLAIN_BATCH, len(files)))] for start in starts]
        yield from DataLoader(ImageDataset(files, transform), batch_sampler=keys, num_workers=os.cpu_count() or 1)
        return
    for start in starts:
        yield torch.stack([transform.for_testing(read_image(p)) for p in files.paths[start : start + PLAIN_BATCH]])


def embed_plainly(files: ImageFiles, name: str, weights: str, *, loader: bool) -> Tensor:
    backbone = build_backbone(name, weights)
    assert backbone.transform is not None
    backbone.module.eval()
    with torch.no_grad():
        return torch.cat([backbone.module(images) for images in batches(files, backbone.transform, loader)])


def embed_cached(files: ImageFiles, name: str, weights: str, cache: str) -> Tensor:
    frozen = freeze_backbone(name, weights)
    return embed_files(files.paths, frozen, strict=True, cache=Path(cache), device="cpu").of(files)


def pass_network(side: str, count: int, name: str, weights: str) -> Callable[[], Tensor]:
    """What passes 32 images in memory through the network alone, `count` in all, as the side does."""
    from qurate.embedding.forward import core_workers
    from qurate.embedding.openvino import choose_engine, compile_backbone  # not in every checkout

    frozen = freeze_backbone(name, weights)
    crops = [frozen.transform.center(frozen.transform.read(path)) for path in choose_images(32).paths]
    pixels = torch.from_numpy(np.stack(crops))
    if side in ("plain", "loader"):
        images = frozen.transform.normalize(pixels).contiguous()
        starts = range(0, count, PLAIN_BATCH)
        return torch.no_grad()(lambda: torch.cat([frozen.module(images[: min(32, count - one)]) for one in starts]))
    precision, compiled = choose_precision(frozen.module, "cpu"), None
    if choose_engine(frozen, "cpu", precision) == "openvino":
        compiled = compile_backbone(frozen, precision, lambda: pixels[:1], None, core_workers())
    encoder = BatchEncoder(frozen, torch.device("cpu"), precision, CPU_BATCH, compiled)

    def encode(start: int) -> Tensor:
        some = pixels[start % 32 :][: min(CPU_BATCH, count - start)]
        return encoder.encode(DecodedBatch([None] * len(some), some, {}))[0].vectors  # type: ignore[list-item]

    def embed() -> Tensor:
        with torch_threads(1), ThreadPoolExecutor(core_workers()) as pool:
            return torch.cat(list(pool.map(encode, range(0, count, CPU_BATCH))))

    return embed


def run_side(side: str, files: ImageFiles, name: str, weights: str, *, network: bool) -> None:
    """Embed once in this process; print wall seconds, processor seconds and the mean size of the entries."""
    plain = side in ("plain", "loader")
    if not plain:
        keep_freed_memory()  # as the command line does
    with tempfile.TemporaryDirectory() as cache:

        def embed(some: ImageFiles) -> Tensor:
            if plain:
                return embed_plainly(some, name, weights, loader=side == "loader")
            return embed_cached(some, name, weights, cache)

        if network:
            whole = pass_network(side, len(files), name, weights)
            pass_network(side, CPU_BATCH, name, weights)()
        else:
            whole = partial(embed, files)
            embed(ImageFiles(files.paths[:1]))  # loads libraries; all sides then build the network again, in the clock
            compiled = getattr(sys.modules.get("qurate.embedding.openvino"), "_ready", {})  # not in every checkout
            compiled.clear()
        wall, processor = time.perf_counter(), busy()
        rows = whole()
        print(time.perf_counter() - wall, busy() - processor, float(rows.double().abs().mean()))


def busy() -> float:
    """Processor seconds of this process and of those that it started and that ended."""
    times = os.times()
    return times.user + times.system + times.children_user + times.children_system


def measure_side(side: str, options: argparse.Namespace, weights: Path) -> Measured:
    command = [sys.executable, __file__, "--backbone", options.backbone, "--images", str(options.images)]
    environment = {**os.environ}
    environment.pop("OMP_NUM_THREADS", None)  # all sides have all cores
    environment |= SETTINGS.get(side, {})
    command += ["--network"] if options.network else []
    if side == "before":
        environment["PYTHONPATH"] = str(options.before.resolve())
    command += ["--side", side, "--weights", str(weights)]
    output = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, env=environment).stdout
    wall, processor, mean = (float(number) for number in output.split())
    return wall, processor, mean


def compare_sides(sides: list[str], options: argparse.Namespace, weights: Path) -> None:
    print(f"{BACKBONES[options.backbone]}: {options.images} images, {options.rounds} rounds, {os.cpu_count()} cores.")
    print("The sides took turns in this one run. Only the ratios count: this machine may do other work meanwhile.")
    measured: dict[str, list[Measured]] = {side: [] for side in sides}
    for number in range(options.rounds):
        for side in sides if number % 2 == 0 else sides[::-1]:
            measured[side].append(measure_side(side, options, weights))
            wall, processor, _ = measured[side][-1]
            print(
                f"  round {number + 1} {side:8}: {options.images / wall:6.1f} images/s, "
                f"{options.images / processor:6.1f} per processor second (load average {os.getloadavg()[0]:.1f})",
                flush=True,
            )
    print_ratios(measured)


def print_ratios(measured: dict[str, list[Measured]]) -> None:
    base, *others = measured
    for side in others:
        means = [rounds[0][2] for rounds in (measured[base], measured[side])]
        if abs(means[0] - means[1]) > 1e-2 * means[0]:  # bfloat16 has 8 bits
            sys.exit(f"'{base}' and '{side}' disagree: {means}.")
        pairs = list(zip(measured[base], measured[side], strict=True))
        wall, processor = (statistics.median(one[which] / two[which] for one, two in pairs) for which in (0, 1))
        print(f"{side} ({SIDES[side]}) is {wall:.2f} times as fast as {base}, {processor:.2f} times by processor time")


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--backbone", choices=BACKBONES, default="lite0")
    parser.add_argument("--images", type=int, default=600, help="images per round")
    parser.add_argument("--rounds", type=int, default=3, help="turns of each side; the ratio is their median")
    parser.add_argument(
        "--sides", default="torch,float32,bfloat16,plain", help=f"the first is the base: {', '.join(SIDES)}"
    )
    parser.add_argument("--network", action="store_true", help="the network alone, on images in memory")
    parser.add_argument("--before", type=Path, help="src of another checkout, for the side 'before'")
    parser.add_argument("--side", choices=SIDES, help=argparse.SUPPRESS)
    parser.add_argument("--weights", help=argparse.SUPPRESS)
    options = parser.parse_args()
    files = choose_images(options.images)
    options.images = len(files)
    if options.side:
        run_side(options.side, files, BACKBONES[options.backbone], options.weights, network=options.network)
        return
    sides = options.sides.split(",")
    if not set(sides) <= SIDES.keys() or ("before" in sides) != (options.before is not None):
        parser.error(f"--sides must be some of {', '.join(SIDES)}; 'before' and --before go together.")
    if options.network and "before" in sides:
        parser.error("--network is for the networks of this checkout; leave out 'before'.")
    with tempfile.TemporaryDirectory() as folder:
        compare_sides(sides, options, find_weights(options.backbone, Path(folder)))


if __name__ == "__main__":
    main()
