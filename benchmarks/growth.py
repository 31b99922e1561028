"""How time and memory of a run on embeddings grow with the unlabelled images, up to a million.

    python benchmarks/growth.py --rows 10000 100000 1000000

The embeddings are synthetic: 31 classes, a shift between the domains, 2,000 source and 93 labelled target rows. The
spread of a class falls over the directions as 1 / sqrt(number). More rows than `MOST_IN_MEMORY` are float16 in a
mapped file, as those of images are. Each size is a process of its own, which trains S+T and the default as `qurate.fit`
does, with the steps given: the number of steps does not depend on the images.
Seconds are those of the processor. The exponent is that of a power law between one size and the next. Recall is how
many of the ten nearest of 1,000 rows are found.

    python benchmarks/growth.py --tables --rows 10000 100000 1000000

measures predictions.csv, reading it, the choice of what to label next, and the page, after a training of 20 steps.

    python benchmarks/growth.py --recall ../shared/data

forces clusters of 50 rows on Office-31, W to A, where they are not needed: how many of the ten nearest images are
found, and the accuracy of the default with them, and with float16 embeddings.
"""

from __future__ import annotations

import argparse
import math
import multiprocessing
import resource
import tempfile
import time
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple
from unittest.mock import patch

import numpy as np
import torch
from open_set import Case as OpenCase
from open_set import read
from torch import Tensor
from torch.nn import functional

from qurate import neighbors
from qurate.combined import CombinedModel
from qurate.config import RunConfig
from qurate.data.batches import TrainingData
from qurate.data.images import ImageFiles
from qurate.data.samples import Inputs, Labeled, SealedLabels, Split, Unlabeled
from qurate.embedding.embed import MOST_IN_MEMORY
from qurate.evaluation import true_labels
from qurate.networks.heads import Network
from qurate.networks.inference import log_probabilities
from qurate.presets import make_config
from qurate.report.run_page import gather_record, write_run_page
from qurate.runs.model import EmbeddedImages
from qurate.runs.predictions import predict_record, prediction_table
from qurate.runs.suggestions import suggest_first
from qurate.runtime.machine import keep_freed_memory
from qurate.runtime.tables import read_csv, to_csv
from qurate.selection.algorithm import fit
from qurate.selection.pseudo_labels import find_neighbors

CLASSES, SOURCE, SHOTS = 31, 2000, 3
NOISE, SHIFT = 1.5, 0.5


class Growth(NamedTuple):
    """What one size took."""

    rows: int
    seconds: float
    neighbors: float
    recall: float
    data: float
    peak: float


class Tables(NamedTuple):
    """What the tables and the page of one size took."""

    rows: int
    seconds: float
    parts: dict[str, float]
    megabytes: tuple[float, float]
    data: float
    peak: float


def make_split(rows: int, width: int) -> Split:
    rng = torch.Generator().manual_seed(0)
    centers = torch.randn(CLASSES, width, generator=rng)
    spread = torch.arange(1, width + 1).rsqrt()
    spread *= NOISE / spread.square().mean().sqrt()

    def draw(count: int, shift: float) -> tuple[Tensor, Tensor]:
        labels = torch.arange(count) % CLASSES
        inputs = torch.empty(count, width)
        if count > MOST_IN_MEMORY:
            with tempfile.TemporaryFile() as file:
                inputs = torch.from_numpy(np.memmap(file, np.float16, "w+", shape=(count, width)))
        for part, classes in zip(inputs.split(2**14), labels.split(2**14), strict=True):
            part.copy_(torch.randn(part.shape, generator=rng) * spread + centers[classes] + shift)
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
    data, searched, recalls, checking = peak(), [0.0], [math.nan], [0.0]

    def timed(network: Network, data: TrainingData, count: int, **options: object) -> Tensor:
        began = time.process_time()
        found = find_neighbors(network, data, count, **options)  # type: ignore[arg-type]
        searched.append(time.process_time() - began)
        recalls.append(recall_of(data, found))
        checking.append(time.process_time() - began - searched[-1])
        return found

    config = make_config("tml", "adaptive", seed=0, steps=steps, rounds=rounds, round_steps=steps // 4)
    began = time.process_time()
    with patch("qurate.selection.session.find_neighbors", timed):
        fit(split, config)
    seconds = time.process_time() - began - sum(checking)
    return Growth(rows, seconds, sum(searched), recalls[-1], data, peak())


def recall_of(data: TrainingData, found: Tensor) -> float:
    """The share of the nearest rows of 1,000 that was found."""
    assert isinstance(data.unlabeled, Tensor)
    assert isinstance(data.target.inputs, Tensor)
    start, rows = len(data.target), torch.randperm(len(found), generator=torch.Generator().manual_seed(0))[:1000]
    asked = functional.normalize(data.unlabeled[rows].float(), dim=1)
    cosines = torch.empty(len(asked), start + len(found))
    cosines[:, :start] = asked @ functional.normalize(data.target.inputs.float(), dim=1).T
    for number, part in enumerate(data.unlabeled.split(2**14)):
        at = start + number * 2**14
        cosines[:, at : at + len(part)] = asked @ functional.normalize(part.float(), dim=1).T
    cosines[torch.arange(len(rows)), start + rows] = -2
    exact = cosines.topk(found.shape[1], dim=1).indices
    return float((exact.unsqueeze(2) == found[rows].unsqueeze(1)).any(dim=2).double().mean())


def measure_tables(rows: int, width: int) -> Tables:
    """Everything that is written of a run, with images that are not there."""
    torch.set_num_threads(1)
    keep_freed_memory()
    split, parts = make_split(rows, width), {}
    config = make_config("source_target", "none", seed=0, steps=20)
    result = fit(split, config)
    files = split.convert_inputs(lambda part: ImageFiles(tuple(Path(f"images/{i:07d}.jpg") for i in range(len(part)))))
    data, clock = peak(), time.process_time()

    def lap(name: str) -> None:
        nonlocal clock
        parts[name], clock = time.process_time() - clock, time.process_time()

    def before(part: Inputs) -> Tensor:
        assert isinstance(part, Tensor)
        return part

    model = CombinedModel(result.method.network)
    predicted = model.predict(split.target_unlabeled.inputs)
    record = gather_record(files, split, result, predicted.labels, config, (), title="growth", before=before)
    record = predict_record(record, predicted, None, model)
    lap("record")
    unlabeled = record.predictions
    seen = EmbeddedImages(tuple(map(Path, unlabeled["file"])), before(split.target_unlabeled.inputs), predicted, {})
    record = replace(record, suggested=suggest_first(record.classes, seen, {}, {}))
    lap("suggestions")
    columns = (unlabeled[name] for name in ("file", "label", "probability", "known"))
    table = prediction_table(
        {file: (*row, "") for file, *row in zip(*columns, strict=True)}, list(unlabeled["file"]), ()
    )
    with tempfile.TemporaryDirectory() as folder:
        csv, page = Path(folder, "predictions.csv"), Path(folder, "report.html")
        csv.write_bytes(to_csv(table))
        lap("predictions.csv")
        read_csv(csv)
        lap("reading it")
        write_run_page(record, page)
        lap("page")
        sizes = csv.stat().st_size / 1e6, page.stat().st_size / 1e6
    return Tables(rows, sum(parts.values()), parts, sizes, data, peak())


def compare_searches(data: Path) -> None:
    """Print the recall of clusters, and accuracies with exact and with approximate neighbours, and in float16."""
    torch.set_num_threads(1)
    for seed in range(3):
        split = read(OpenCase("webcam:amazon", seed, 0), data)
        unlabeled, truth = split.target_unlabeled, true_labels(split.target_unlabeled)
        assert isinstance(unlabeled.inputs, Tensor)
        rows = functional.normalize(unlabeled.inputs.float(), dim=1)
        half = replace(split, target_unlabeled=Unlabeled(unlabeled.inputs.half(), unlabeled.sealed))

        def accuracy(split: Split, config: RunConfig, truth: Tensor = truth) -> str:
            network = fit(split, config).method.network
            predicted = log_probabilities(network, split.target_unlabeled.inputs).argmax(dim=1)
            return f"{100 * float((predicted == truth).double().mean()):.2f}"

        default, plain = make_config("tml", "adaptive", seed=seed), make_config("source_target", "none", seed=seed)
        found = [neighbors.nearest_rows(rows, rows, 10, torch.arange(len(rows)))]
        words = [f"S+T {accuracy(split, plain)}, float16 {accuracy(half, plain)}"]
        words += [f"default {accuracy(split, default)}, float16 {accuracy(half, default)}"]
        with patch("qurate.neighbors.MOST_EXACT", 0), patch("qurate.neighbors.CLUSTER_ROWS", 50):
            found.append(neighbors.nearest_rows(rows, rows, 10, torch.arange(len(rows))))
            words += [f"clusters {accuracy(split, default)}, both {accuracy(half, default)}"]
        both = (found[0].unsqueeze(2) == found[1].unsqueeze(1)).any(dim=2).double().mean()
        print(f"seed {seed}: recall {float(both):.4f}; {', '.join(words)}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", nargs="+", type=int, default=[10_000, 100_000])
    parser.add_argument("--width", type=int, default=1280)
    parser.add_argument("--steps", type=int, default=1500)
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--tables", action="store_true", help="tables and page instead of training")
    parser.add_argument("--recall", type=Path, help="folder with office31: force the clusters there, and nothing else")
    options = parser.parse_args()
    if options.recall is not None:
        compare_searches(options.recall)
        return
    columns = ["seconds", "exponent", "of them neighbours", "recall", "GB with the data", "GB at most"]
    if options.tables:
        columns[2:4] = ["parts", "MB of predictions.csv", "MB of the page"]
    print(f"| unlabelled rows | {' | '.join(columns)} |\n|{'---:|' * (len(columns) + 1)}")
    before: Growth | Tables | None = None
    for rows in options.rows:
        context = multiprocessing.get_context("spawn")
        found: Growth | Tables
        with ProcessPoolExecutor(1, mp_context=context) as pool:
            if options.tables:
                found = pool.submit(measure_tables, rows, options.width).result()
                parts = ", ".join(f"{name} {seconds:.1f}" for name, seconds in found.parts.items())
                words = [parts, *(f"{size:.2f}" for size in found.megabytes)]
            else:
                found = pool.submit(measure, rows, options.width, options.steps, options.rounds).result()
                words = [f"{found.neighbors:.0f}", f"{found.recall:.3f}"]
        exponent = ""
        if before is not None:
            exponent = f"{math.log(found.seconds / before.seconds) / math.log(found.rows / before.rows):.2f}"
        numbers = [f"{found.seconds:.1f}", exponent, *words, f"{found.data:.1f}", f"{found.peak:.1f}"]
        print(f"| {rows:,} | {' | '.join(numbers)} |", flush=True)
        before = found


if __name__ == "__main__":
    main()
