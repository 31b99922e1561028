"""From samples to batches: the same stream for tensors in memory and for image files."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import repeat
from typing import NamedTuple

import torch
from torch import Tensor
from torch.utils.data import DataLoader

from qurate.config import TrainingConfig
from qurate.data.images import ImageDataset, ImageFiles, Transform
from qurate.data.samples import DataError, Inputs, Labeled, Split, join, move, take
from qurate.errors import ConfigError
from qurate.runtime.randomness import generator

_TEST_DRAW = -1


class Batch(NamedTuple):
    """One step's data. Inputs are (B, ...), labels (B,) int64.

    `sizes` are those of the sets it was drawn from: N_s, and N_t with N_p, for D_p is labelled target data once it is
    trained on. None where they are not known.
    """

    source: Tensor
    source_labels: Tensor
    target: Tensor
    target_labels: Tensor
    unlabeled: Tensor
    sizes: tuple[int, int] | None = None

    def to(self, device: torch.device) -> Batch:
        """The batch on a device."""
        first, second, third, fourth, fifth = (part.to(device) for part in self[:5])
        return Batch(first, second, third, fourth, fifth, self.sizes)


@dataclass(frozen=True, eq=False)
class TrainingData:
    """What a method may see: two labelled parts and inputs without labels.

    Args:
        source: D_s.
        target: D_t.
        unlabeled: The inputs of D_u.
        positives: D_p: positions in D_u, (N_p,) int64, and the labels trusted there, (N_p,) int64.
    """

    source: Labeled
    target: Labeled
    unlabeled: Inputs
    positives: tuple[Tensor, Tensor] = (torch.empty(0, dtype=torch.int64), torch.empty(0, dtype=torch.int64))

    def __post_init__(self) -> None:
        for name, size in (
            ("source", len(self.source)),
            ("target", len(self.target)),
            ("unlabeled", len(self.unlabeled)),
        ):
            if size == 0:
                raise DataError(f"TrainingData: {name} is empty; training needs at least one sample of it.")

    @classmethod
    def of(cls, split: Split) -> TrainingData:
        """The training side of a split; sealed labels and validation stay behind."""
        return cls(split.source, split.target_labeled, split.target_unlabeled.inputs)

    def with_positives(self, indices: Tensor, labels: Tensor) -> TrainingData:
        """The same data with these samples of D_u, under these labels, as D_p; nothing is copied."""
        return replace(self, positives=(indices, labels))

    def to(self, device: torch.device) -> TrainingData:
        """Tensors moved to a device; image files stay files."""
        indices, labels = self.positives
        return TrainingData(
            self.source.to(device),
            self.target.to(device),
            move(self.unlabeled, device),
            (indices.to(device), labels.to(device)),
        )


def draw_batches(n: int, size: int, steps: int, rng: torch.Generator) -> Tensor:
    """Positions for `steps` batches: passes over a fresh shuffle each, cut into rows.

    Every sample comes up once before any comes up twice, and a batch is full even where n < size.

    Returns:
        (steps, size) int64.
    """
    passes = -(-steps * size // n)
    order = torch.cat([torch.randperm(n, generator=rng) for _ in range(passes)])
    return order[: steps * size].view(steps, size)


def draw_target(data: TrainingData, config: TrainingConfig, steps: int, rng: torch.Generator) -> Tensor:
    """Positions in D_t followed by D_p for `steps` batches, (steps, batch_target) int64.

    By `positive_share` a batch holds a fixed share of positives, or whatever falls to them when D_t and D_p
    are drawn from alike.
    """
    n_target, n_positive, size = len(data.target), len(data.positives[0]), config.batch_target
    if n_positive == 0 or config.positive_share is None:
        return draw_batches(n_target + n_positive, size, steps, rng)
    of_positives = min(max(1, round(config.positive_share * size)), size - 1)  # some of both
    target = draw_batches(n_target, size - of_positives, steps, rng)
    return torch.cat([target, draw_batches(n_positive, of_positives, steps, rng) + n_target], dim=1)


def draw_labeled(data: TrainingData, config: TrainingConfig, steps: int, seed: int) -> tuple[Tensor, Tensor]:
    """Positions in D_s and in D_t followed by D_p for `steps` batches, (steps, B) int64 each."""
    source = draw_batches(len(data.source), config.batch_source, steps, generator(seed, 1))
    return source, draw_target(data, config, steps, generator(seed, 2))


def target_labels(data: TrainingData) -> Tensor:
    """Labels of D_t followed by those of D_p."""
    return torch.cat([data.target.labels, data.positives[1]])


def target_inputs(data: TrainingData, rows: Tensor) -> tuple[Tensor, Tensor]:
    """Inputs in which to look up batches of D_t followed by D_p, and the positions to look up.

    D_p grows with every action, so no more of it is copied than the batches hold.
    """
    first, second, (places, _) = data.target.inputs, data.unlabeled, data.positives
    assert isinstance(first, Tensor)
    if len(places) == 0:
        return first, rows
    assert isinstance(second, Tensor)
    if rows.numel() >= len(first) + len(places):
        return torch.cat([first, second[places]]), rows
    flat = rows.flatten().to(first.device)
    labeled = flat < len(first)
    batches = second[places[(flat - len(first)).clamp_min(0)]]
    batches[labeled] = first[flat[labeled]]
    return batches, torch.arange(rows.numel()).view_as(rows)


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
    source, target = draw_labeled(data, config, steps, seed)
    unlabeled: Iterable[Tensor] = repeat(torch.empty(0), steps)
    if not labeled_only:
        rows = draw_batches(len(data.unlabeled), config.batch_unlabeled, steps, generator(seed, 3))
        unlabeled = _stream(data.unlabeled, rows, config.workers, transform, generator(seed, 6))
    streams = zip(
        _stream(data.source.inputs, source, config.workers, transform, generator(seed, 4)),
        data.source.labels[source],
        _stream_target(data, target, config.workers, transform, generator(seed, 5)),
        target_labels(data)[target],
        unlabeled,
        strict=True,
    )
    sizes = len(data.source), len(data.target) + len(data.positives[0])
    return (Batch(*parts, sizes=sizes) for parts in streams)


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
        yield from (inputs.index_select(0, row) for row in rows.to(inputs.device))
    else:
        draws = torch.randint(2**62, rows.shape, generator=rng)
        keys = [list(zip(row, draw, strict=True)) for row, draw in zip(rows.tolist(), draws.tolist(), strict=True)]
        yield from _load_images(inputs, keys, workers, transform)


def _stream_target(
    data: TrainingData, rows: Tensor, workers: int, transform: Transform | None, rng: torch.Generator
) -> Iterator[Tensor]:
    """Batches of D_t and D_p together."""
    inputs, positives = data.target.inputs, data.positives[0]
    if isinstance(inputs, Tensor) and isinstance(data.unlabeled, Tensor):
        inputs, rows = target_inputs(data, rows)
    elif len(positives):
        inputs = join(inputs, take(data.unlabeled, positives))
    return _stream(inputs, rows, workers, transform, rng)


def _load_images(
    files: ImageFiles, keys: list[list[tuple[int, int]]], workers: int, transform: Transform | None
) -> Iterator[Tensor]:
    if transform is None:
        raise ConfigError("Inputs are image files but no transform was given; pass the backbone's transform.")
    dataset = ImageDataset(files, transform)
    yield from DataLoader(dataset, batch_sampler=keys, num_workers=workers, generator=torch.Generator())
