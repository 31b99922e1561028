"""From samples to batches: the same stream for tensors in memory and for image files."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor
from torch.utils.data import DataLoader

from qurate.config import TrainingConfig
from qurate.data.images import ImageDataset, ImageFiles, Transform
from qurate.data.samples import Inputs, Labeled, Split
from qurate.randomness import generator

_TEST_DRAW = -1


class Batch(NamedTuple):
    """One step's data. Inputs are (B, ...), labels (B,) int64."""

    source: Tensor
    source_labels: Tensor
    target: Tensor
    target_labels: Tensor
    unlabeled: Tensor


@dataclass(frozen=True, eq=False)
class TrainingData:
    """What a method may see: two labelled parts and inputs without labels.

    Args:
        source: D_s.
        target: D_t, or D_t and the positives D_p.
        unlabeled: The inputs of D_u.
    """

    source: Labeled
    target: Labeled
    unlabeled: Inputs

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


def draw_batches(n: int, size: int, steps: int, rng: torch.Generator) -> Tensor:
    """Positions for `steps` batches: passes over a fresh shuffle each, cut into rows.

    Every sample comes up once before any comes up twice, and a batch is full even where n < size.

    Returns:
        (steps, size) int64.
    """
    passes = -(-steps * size // n)
    order = torch.cat([torch.randperm(n, generator=rng) for _ in range(passes)])
    return order[: steps * size].view(steps, size)


def stream_batches(
    data: TrainingData, config: TrainingConfig, *, steps: int, seed: int, transform: Transform | None = None
) -> Iterator[Batch]:
    """The batches of `steps` steps; all randomness comes from the seed.

    Args:
        data: The three parts.
        config: Batch sizes and workers.
        steps: How many batches.
        seed: Decides order, crops and flips.
        transform: Needed where inputs are image files.
    """
    source = draw_batches(len(data.source), config.batch_source, steps, generator(seed, 1))
    target = draw_batches(len(data.target), config.batch_target, steps, generator(seed, 2))
    unlabeled = draw_batches(len(data.unlabeled), config.batch_unlabeled, steps, generator(seed, 3))
    streams = zip(
        _stream(data.source.inputs, source, config.workers, transform, generator(seed, 4)),
        data.source.labels[source],
        _stream(data.target.inputs, target, config.workers, transform, generator(seed, 5)),
        data.target.labels[target],
        _stream(data.unlabeled, unlabeled, config.workers, transform, generator(seed, 6)),
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
