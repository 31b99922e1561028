"""How time and memory of a run on embeddings grow with the unlabelled images, up to a million.

    python benchmarks/growth.py --rows 10000 100000 1000000

The embeddings are synthetic: 31 classes, a shift between the domains, 2,000 source and 93 labelled target rows. Each
size is a process of its own, which trains S+T and the default as `qurate.fit` does, with the steps given: the number
of steps does not depend on the images. Seconds are those of the processor. The exponent is that of a power law
between one size and the next.

    python benchmarks/growth.py --recall ../shared/data

forces the approximate index on Office-31, W to A, where it is not needed: how many of the ten nearest images it finds,
and the accuracy of the default with it.
"""

from __future__ import annotations

import argparse
import math
import multiprocessing
import resource
import time
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import NamedTuple
from unittest.mock import patch

import torch
from open_set import Case as OpenCase
from open_set import read
from torch import Tensor
from torch.nn import functional

from qurate import neighbors
from qurate.data.samples import Labeled, SealedLabels, Split, Unlabeled
from qurate.evaluation import true_labels
from qurate.networks.inference import log_probabilities
from qurate.presets import make_config
from qurate.runtime.machine import keep_freed_memory
from qurate.selection.algorithm import fit
from qurate.selection.pseudo_labels import find_neighbors

CLASSES, SOURCE, SHOTS = 31, 2000, 3
NOISE, SHIFT = 1.5, 0.5


class Growth(NamedTuple):
    """What one size took."""

    rows: int
    seconds: float
    neighbors: float
    data: float
    peak: float


def make_split(rows: int, width: int) -> Split:
    rng = torch.Generator().manual_seed(0)
    centers = torch.randn(CLASSES, width, generator=rng)

    def draw(count: int, shift: float) -> tuple[Tensor, Tensor]:
        labels = torch.arange(count) % CLASSES
        inputs = torch.randn(count, width, generator=rng).mul_(NOISE)
        for part, classes in zip(inputs.split(2**16), labels.split(2**16), strict=True):
            part.add_(centers[classes]).add_(shift)
        return inputs, labels

    source, labeled, (unlabeled, truth) = draw(SOURCE, 0), draw(SHOTS * CLASSES, SHIFT), draw(rows, SHIFT)
    names = tuple(map(str, range(CLASSES)))
    return Split(names, Labeled(*source), Labeled(*labeled), Unlabeled(unlabeled, SealedLabels(truth)))


def peak() -> float:
    """Of this process, in GB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20


def measure(rows: int, width: int, steps: int, rounds: int) -> Growth:
    torch.set_num_threads(1)
    keep_freed_memory()
    split = make_split(rows, width)
    data, searched = peak(), [0.0]

    def timed(*arguments: object, **options: object) -> Tensor:
        began = time.process_time()
        found = find_neighbors(*arguments, **options)  # type: ignore[arg-type]
        searched.append(time.process_time() - began)
        return found

    config = make_config("tml", "adaptive", seed=0, steps=steps, rounds=rounds, round_steps=steps // 4)
    began = time.process_time()
    with patch("qurate.selection.session.find_neighbors", timed):
        fit(split, config)
    seconds = time.process_time() - began
    return Growth(rows, seconds, sum(searched), data, peak())


def compare_searches(data: Path) -> None:
    """Print the recall of the index, and accuracies with exact and with approximate neighbours."""
    torch.set_num_threads(1)
    for seed in range(3):
        split = read(OpenCase("webcam:amazon", seed, 0), data)
        unlabeled, truth = split.target_unlabeled.inputs, true_labels(split.target_unlabeled)
        assert isinstance(unlabeled, Tensor)
        rows, found, accuracies = functional.normalize(unlabeled.float(), dim=1), [], []
        for most in (neighbors.MOST_EXACT, 0):
            with patch("qurate.neighbors.MOST_EXACT", most):
                found.append(neighbors.nearest_rows(rows, rows, 10, torch.arange(len(rows))))
                network = fit(split, make_config("tml", "adaptive", seed=seed)).method.network
            predicted = log_probabilities(network, unlabeled).argmax(dim=1)
            accuracies.append(f"{100 * float((predicted == truth).double().mean()):.1f}")
        both = (found[0].unsqueeze(2) == found[1].unsqueeze(1)).any(dim=2).double().mean()
        print(
            f"seed {seed}: recall {float(both):.4f}, accuracy exact {accuracies[0]}, index {accuracies[1]}", flush=True
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", nargs="+", type=int, default=[10_000, 100_000])
    parser.add_argument("--width", type=int, default=1280)
    parser.add_argument("--steps", type=int, default=1500)
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--recall", type=Path, help="folder with office31: force the index there, and nothing else")
    options = parser.parse_args()
    if options.recall is not None:
        compare_searches(options.recall)
        return
    print("| unlabelled rows | seconds | of them neighbours | exponent | GB with the data | GB at most |")
    print("|---:|---:|---:|---:|---:|---:|")
    before: Growth | None = None
    for rows in options.rows:
        context = multiprocessing.get_context("spawn")
        with ProcessPoolExecutor(1, mp_context=context) as pool:
            found = pool.submit(measure, rows, options.width, options.steps, options.rounds).result()
        exponent = ""
        if before is not None:
            exponent = f"{math.log(found.seconds / before.seconds) / math.log(found.rows / before.rows):.2f}"
        print(
            f"| {rows:,} | {found.seconds:.0f} | {found.neighbors:.0f} | {exponent} "
            f"| {found.data:.1f} | {found.peak:.1f} |",
            flush=True,
        )
        before = found


if __name__ == "__main__":
    main()
