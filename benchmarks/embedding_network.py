"""A backbone alone, without decoding: workers against threads, precision, batch, compiled or not.

Random weights and images; the variants take turns, forwards and backwards. Rates per processor second are the ones to
compare on a machine that does other work: threads that wait for each other inside an operation count there too.

    python benchmarks/embedding_network.py --backbone tf_efficientnet_lite0
    python benchmarks/embedding_network.py --backbone vit_small_patch16_224
    python benchmarks/embedding_network.py --backbone tf_efficientnet_lite0 --compile
"""

from __future__ import annotations

import argparse
import os
import statistics
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import timm
import torch
from torch import Tensor

from qurate.runtime.machine import available_cores, keep_freed_memory


@dataclass(frozen=True)
class Variant:
    """How images pass the network."""

    workers: int
    threads: int
    batch: int
    precision: torch.dtype = torch.float32
    compiled: bool = False

    def __str__(self) -> str:
        kind = str(self.precision).removeprefix("torch.") + (", compiled" if self.compiled else "")
        return f"{self.workers} workers of {self.threads} threads, batches of {self.batch}, {kind}"


def pass_images(module: Any, images: Tensor, variant: Variant) -> tuple[float, float, Tensor]:
    """Images per second, per processor second, and the rows."""
    torch.set_num_threads(variant.threads)

    def embed(part: Tensor) -> Tensor:
        reduced = variant.precision != torch.float32
        with torch.inference_mode(), torch.autocast("cpu", dtype=torch.bfloat16, enabled=reduced):
            rows: Tensor = module(part.contiguous(memory_format=torch.channels_last)).float()
            return rows

    wall, processor = time.perf_counter(), time.process_time()
    with ThreadPoolExecutor(variant.workers) as pool:
        rows = list(pool.map(embed, images.split(variant.batch)))
    return len(images) / (time.perf_counter() - wall), len(images) / (time.process_time() - processor), torch.cat(rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--backbone", default="tf_efficientnet_lite0", help="a name of timm's")
    parser.add_argument("--images", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--compile", action="store_true", help="compare with torch.compile instead")
    options = parser.parse_args()
    keep_freed_memory()
    torch.manual_seed(0)
    module: Any = timm.create_model(options.backbone, num_classes=0)
    module = module.eval().to(memory_format=torch.channels_last)
    images = torch.randn(options.images, *module.default_cfg["input_size"])
    cores = available_cores()
    first = Variant(cores, 1, 8)
    variants = [
        first,
        *(Variant(cores, 1, batch) for batch in (1, 4, 16)),
        *(Variant(1, cores, batch) for batch in (8, 32)),
        Variant(cores, 1, 8, torch.bfloat16),
    ]
    compiled = module
    if options.compile:
        began = time.perf_counter()
        compiled = torch.compile(module)
        variants = [first, Variant(cores, 1, 8, compiled=True)]
        pass_images(compiled, images[:8], variants[1])
        print(f"compiling took {time.perf_counter() - began:.0f} s")
    rates: dict[Variant, list[tuple[float, float]]] = {variant: [] for variant in variants}
    rows: dict[Variant, Tensor] = {}
    for number in range(options.rounds + 1):  # the first warms up
        for variant in variants if number % 2 else variants[::-1]:
            wall, processor, rows[variant] = pass_images(compiled if variant.compiled else module, images, variant)
            if number:
                rates[variant].append((wall, processor))
    for variant in variants:
        wall, processor = (statistics.median(rate[which] for rate in rates[variant]) for which in (0, 1))
        change = ((rows[variant] - rows[first]).norm(dim=1) / rows[first].norm(dim=1)).max()
        print(f"{variant}: {wall:.1f} images/s, {processor:.1f} per processor second; rows differ by {change:.0e}")
    print(f"load average {os.getloadavg()[0]:.1f}; only ratios within this run count")


if __name__ == "__main__":
    main()
