"""How long query strategies take and how much memory they need, on random embeddings of many images.

Features of clusters, as embeddings of a backbone are, and predictions of all degrees of doubt. Each query strategy
runs in a process of its own, so that its peak memory is its own; the time includes the words. On a machine that others
use as well, the seconds of work are those to compare.

    python benchmarks/asking.py --images 100000 --count 100
"""

from __future__ import annotations

import argparse
import multiprocessing
import resource
import time

import torch

from qurate.active.pool import Pool
from qurate.registry import QUERY_STRATEGIES

WIDTH, CLASSES, GROUPS = 1280, 126, 1000


def make_pool(images: int) -> Pool:
    """Images around the middles of groups; a group has one doubt."""
    rng = torch.Generator().manual_seed(0)
    group = torch.randint(GROUPS, (images,), generator=rng)
    features = torch.randn(GROUPS, WIDTH, generator=rng)[group]
    for part in features.split(4096):
        part += torch.randn(part.shape, generator=rng)
    logits = (torch.randn(GROUPS, CLASSES, generator=rng) * torch.rand(GROUPS, 1, generator=rng) * 8)[group]
    probabilities = (logits + torch.randn(images, CLASSES, generator=rng)).softmax(dim=1)
    trusted = torch.where(probabilities.amax(dim=1) > 0.5, probabilities.argmax(dim=1), -1)
    return Pool(features, probabilities, trusted)


def measure(name: str, images: int, count: int) -> None:
    pool = make_pool(images)
    strategy, began, worked = QUERY_STRATEGIES[name].load()(), time.perf_counter(), time.process_time()
    asked = strategy.ask(pool, count, 0)
    strategy.explain(pool, asked, [f"class {k}" for k in range(CLASSES)])
    seconds, busy = time.perf_counter() - began, time.process_time() - worked
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    print(
        f"{name:12} {images:,} images, {len(asked)} asked: {seconds:.1f} s ({busy:.1f} s of work), peak {peak:.2f} GB",
        flush=True,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--images", type=int, default=100_000)
    parser.add_argument("--count", type=int, default=100)
    parser.add_argument("--query-strategies", default=",".join(QUERY_STRATEGIES))
    arguments = parser.parse_args()
    for name in arguments.query_strategies.split(","):
        alone = multiprocessing.get_context("spawn").Process(
            target=measure, args=(name, arguments.images, arguments.count)
        )
        alone.start()
        alone.join()


if __name__ == "__main__":
    main()
