"""From samples to batches: the same stream for tensors in memory and for image files."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import repeat
from typing import NamedTuple

import torch
from torch import Tensor
from torch.utils.data import DataLoader

from qurate.config import TrainingConfig
from qurate.data.images import ImageDataset, ImageFiles, Transform
from qurate.data.samples import Inputs, Labeled, Split, move, take
from qurate.randomness import generator

_TEST_DRAW = -1


class Batch(NamedTuple):
    """One step's data. Inputs are (B, ...), labels (B,) int64."""

    source: Tensor
    source_labels: Tensor
    target: Tensor
    target_labels: Tensor
    unlabeled: Tensor

    def to(self, device: torch.device) -> Batch:
        """The batch on a device."""
        return Batch(*(part.to(device) for part in self))


@dataclass(frozen=True, eq=False)
class TrainingData:
    """What a method may see: two labelled parts and inputs without labels.

    Args:
        source: D_s.
        target: D_t.
        unlabeled: The inputs of D_u.
        positives: D_p, target samples with trusted pseudo-labels; None before any was chosen.
    """

    source: Labeled
    target: Labeled
    unlabeled: Inputs
    positives: Labeled | None = None

    def __post_init__(self) -> None:
        for name, size in (
            ("source", len(self.source)),
            ("target", len(self.target)),
            ("unlabeled", len(self.unlabeled)),
        ):
            if size == 0:
                raise ValueError(f"TrainingData: {name} is empty; training needs at least one sample of it.")

    @classmethod
    def of(cls, split: Split) -> TrainingData:
        """The training side of a split; sealed labels and validation stay behind."""
        return cls(split.source, split.target_labeled, split.target_unlabeled.inputs)

    def with_positives(self, indices: Tensor, labels: Tensor) -> TrainingData:
        """The same data with these samples of D_u, under these labels, as D_p."""
        return replace(self, positives=Labeled(take(self.unlabeled, indices), labels))

    def to(self, device: torch.device) -> TrainingData:
        """Tensors moved to a device; image files stay files."""
        positives = None if self.positives is None else self.positives.to(device)
        return TrainingData(self.source.to(device), self.target.to(device), move(self.unlabeled, device), positives)


def draw_batches(n: int, size: int, steps: int, rng: torch.Generator) -> Tensor:
    """Positions for `steps` batches: passes over a fresh shuffle each, cut into rows.

    Every sample comes up once before any comes up twice, and a batch is full even where n < size.

    Returns:
        (steps, size) int64.
    """
    passes = -(-steps * size // n)
    order = torch.cat([torch.randperm(n, generator=rng) for _ in range(passes)])
    return order[: steps * size].view(steps, size)


def draw_target(data: TrainingData, config: TrainingConfig, steps: int, rng: torch.Generator) -> tuple[Labeled, Tensor]:
    """The labelled target samples, D_t then D_p, and positions in them for `steps` batches.

    By `positive_share` a batch holds a fixed share of positives, or whatever falls to them when D_t and D_p
    are drawn from alike.
    """
    if data.positives is None or len(data.positives) == 0:
        return data.target, draw_batches(len(data.target), config.batch_target, steps, rng)
    pool = data.target.joined_with(data.positives)
    if config.positive_share is None:
        return pool, draw_batches(len(pool), config.batch_target, steps, rng)
    n_positive = round(config.positive_share * config.batch_target)
    target = draw_batches(len(data.target), config.batch_target - n_positive, steps, rng)
    positive = draw_batches(len(data.positives), n_positive, steps, rng)
    return pool, torch.cat([target, positive + len(data.target)], dim=1)


def stream_batches(
    data: TrainingData,
    config: TrainingConfig,
    *,
    steps: int,
    seed: int,
    transform: Transform | None = None,
    labeled_only: bool = False,
) -> Iterator[Batch]:
    """The batches of `steps` steps; all randomness comes from the seed.

    Args:
        data: The three parts.
        config: Batch sizes and workers.
        steps: How many batches.
        seed: Decides order, crops and flips.
        transform: Needed where inputs are image files.
        labeled_only: Leave the unlabelled part of every batch empty.
    """
    pool, target = draw_target(data, config, steps, generator(seed, 2))
    source = draw_batches(len(data.source), config.batch_source, steps, generator(seed, 1))
    unlabeled = draw_batches(len(data.unlabeled), config.batch_unlabeled, steps, generator(seed, 3))
    nothing = repeat(torch.empty(0), steps)
    streams = zip(
        _stream(data.source.inputs, source, config.workers, transform, generator(seed, 4)),
        data.source.labels[source],
        _stream(pool.inputs, target, config.workers, transform, generator(seed, 5)),
        pool.labels[target],
        nothing if labeled_only else _stream(data.unlabeled, unlabeled, config.workers, transform, generator(seed, 6)),
        strict=True,
    )
    return (Batch(*parts) for parts in streams)


def stream_in_order(
    inputs: Inputs, *, batch_size: int, transform: Transform | None = None, workers: int = 0
) -> Iterator[Tensor]:
    """All inputs once, in order, prepared for testing."""
    starts = range(0, len(inputs), batch_size)
    if isinstance(inputs, Tensor):
        yield from (inputs[start : start + batch_size] for start in starts)
    else:
        ends = (min(start + batch_size, len(inputs)) for start in starts)
        keys = [[(i, _TEST_DRAW) for i in range(start, end)] for start, end in zip(starts, ends, strict=True)]
        yield from _load_images(inputs, keys, workers, transform)


def _stream(
    inputs: Inputs, rows: Tensor, workers: int, transform: Transform | None, rng: torch.Generator
) -> Iterator[Tensor]:
    if isinstance(inputs, Tensor):
        yield from (inputs[row] for row in rows)
    else:
        draws = torch.randint(2**62, rows.shape, generator=rng)
        keys = [list(zip(row, draw, strict=True)) for row, draw in zip(rows.tolist(), draws.tolist(), strict=True)]
        yield from _load_images(inputs, keys, workers, transform)


def _load_images(
    files: ImageFiles, keys: list[list[tuple[int, int]]], workers: int, transform: Transform | None
) -> Iterator[Tensor]:
    if transform is None:
        raise ValueError("Inputs are image files but no transform was given; pass the backbone's transform.")
    dataset = ImageDataset(files, transform)
    yield from DataLoader(dataset, batch_sampler=keys, num_workers=workers, generator=torch.Generator())
