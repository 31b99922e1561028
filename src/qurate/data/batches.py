"""From samples to batches: the same stream for tensors in memory and for image files."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor
from torch.utils.data import DataLoader

from qurate.config import TrainingConfig
from qurate.data.images import ImageFiles, Transform
from qurate.data.samples import DataError, Inputs, Labeled, Split, join, move, take
from qurate.errors import ConfigError
from qurate.runtime.compute import at_least_float32
from qurate.runtime.randomness import generator
from qurate.runtime.signals import ignore_signals

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
        for name in ("source", "target", "unlabeled"):
            if len(getattr(self, name)) == 0:
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


def draw_weighted(weights: Tensor, size: int, steps: int, rng: torch.Generator) -> Tensor:
    """Positions for `steps` batches in which sample i comes up in proportion to its weight, in random order.

    By systematic sampling: its count is steps * size * w_i / sum(w), rounded up or down, so that equal weights give
    whole passes as in `draw_batches`.

    Args:
        weights: Of each sample, (N,), positive.
        size: Samples of a batch.
        steps: Batches.
        rng: Decides the order, and which way counts are rounded.

    Returns:
        (steps, size) int64.
    """
    total = steps * size
    ends = weights.detach().cpu().double().cumsum(0)
    points = (torch.arange(total) + torch.rand((), generator=rng, dtype=torch.float64)) / total * ends[-1]
    drawn = torch.searchsorted(ends, points, right=True).clamp_max(len(ends) - 1)
    return drawn[torch.randperm(total, generator=rng)].view(steps, size)


def draw_source(source: Labeled, size: int, steps: int, rng: torch.Generator) -> Tensor:
    """Positions in D_s for `steps` batches, (steps, size) int64, by its weights where it has any."""
    if source.weights is None:
        return draw_batches(len(source), size, steps, rng)
    return draw_weighted(source.weights, size, steps, rng)


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


def target_labels(data: TrainingData) -> Tensor:
    """Labels of D_t followed by those of D_p."""
    return torch.cat([data.target.labels, data.positives[1]])


def target_inputs(data: TrainingData, rows: Tensor) -> tuple[Inputs, Tensor]:
    """Inputs in which to look up batches of D_t followed by D_p, and the positions to look up.

    D_p grows with every action, so no more of it is copied than the batches hold.
    """
    first, second, (indices, _) = data.target.inputs, data.unlabeled, data.positives
    if len(indices) == 0:
        return first, rows
    are_few = len(first) + len(indices) <= rows.numel()
    if are_few or not isinstance(first, Tensor) or not isinstance(second, Tensor):
        return join(first, take(second, indices)), rows
    flat = rows.flatten().to(first.device)
    labeled = flat < len(first)
    batches = at_least_float32(second[indices[(flat - len(first)).clamp_min(0)]])
    batches[labeled] = first[flat[labeled]].to(batches.dtype)  # each may be in half precision, or not
    return batches, torch.arange(rows.numel()).view_as(rows)


def stream_batches(
    data: TrainingData,
    config: TrainingConfig,
    *,
    steps: int,
    seed: int,
    transform: Transform | None = None,
    labeled_only: bool = False,
    share: tuple[int, int] = (0, 1),
    first: int = 0,
    workers: int = 0,
) -> Iterator[Batch]:
    """The batches of `steps` steps; all randomness comes from the seed.

    Args:
        data: The three parts.
        config: Batch sizes.
        steps: How many batches.
        seed: Decides order, crops and flips.
        transform: Needed where inputs are image files.
        labeled_only: Leave the unlabelled part of every batch empty.
        share: Which of how many equal parts of each batch to take; no other rows are prepared.
        first: How many of the batches to leave out; they were had before.
        workers: Processes that decode images.
    """
    rows = [
        draw_source(data.source, config.batch_source, steps, generator(seed, 1)),
        draw_target(data, config, steps, generator(seed, 2)),
    ]
    if not labeled_only:
        rows.append(draw_batches(len(data.unlabeled), config.batch_unlabeled, steps, generator(seed, 3)))
    own = [slice(part.shape[1] * share[0] // share[1], part.shape[1] * (share[0] + 1) // share[1]) for part in rows]
    labels = data.source.labels[rows[0][first:, own[0]]], target_labels(data)[rows[1][first:, own[1]]]
    inputs, rows[1] = target_inputs(data, rows[1])
    mine = [part[first:, which] for part, which in zip(rows, own, strict=True)]
    found = (data.source.inputs, inputs, data.unlabeled)[: len(rows)]
    streams: Iterator[tuple[Tensor, ...]]
    if any(isinstance(part, Tensor) for part in found):
        streams = zip(*(_look_up(part, positions) for part, positions in zip(found, mine, strict=True)), strict=True)
    else:
        draws = [torch.randint(2**62, part.shape, generator=generator(seed, 4 + i)) for i, part in enumerate(rows)]
        drawn = [draw[first:, which] for draw, which in zip(draws, own, strict=True)]
        streams = _load_together(found, mine, drawn, workers, transform)
    sizes = len(data.source), len(data.target) + len(data.positives[0])
    for (source, target, *unlabeled), of_source, of_target in zip(streams, *labels, strict=True):
        nothing_or_all = unlabeled[0] if unlabeled else torch.empty(0)
        yield Batch(source, of_source, target, of_target, nothing_or_all, sizes)


def stream_in_order(
    inputs: Inputs, *, batch_size: int, transform: Transform | None = None, workers: int = 0
) -> Iterator[Tensor]:
    """All inputs once, in order, prepared for testing."""
    starts = range(0, len(inputs), batch_size)
    if isinstance(inputs, Tensor):
        yield from (at_least_float32(inputs[start : start + batch_size]) for start in starts)
    else:
        positions = range(len(inputs))
        keys = ([(i, _TEST_DRAW) for i in positions[start : start + batch_size]] for start in starts)
        yield from _load_images(inputs, keys, workers, transform)


def _look_up(inputs: Inputs, rows: Tensor) -> Iterator[Tensor]:
    if not isinstance(inputs, Tensor):
        raise DataError("TrainingData: all parts must be tensors or all image files, got some of both.")
    return (at_least_float32(inputs.index_select(0, row)) for row in rows.to(inputs.device))


def _load_together(
    parts: Sequence[Inputs], rows: Sequence[Tensor], draws: Sequence[Tensor], workers: int, transform: Transform | None
) -> Iterator[tuple[Tensor, ...]]:
    """The images of all parts of each batch, in one stream, so that workers are not divided between the parts."""
    paths: tuple[Path, ...] = ()
    offset = []
    for part, positions in zip(parts, rows, strict=True):
        assert isinstance(part, ImageFiles)
        offset.append(positions + len(paths))
        paths += part.paths
    pairs = zip(torch.cat(offset, dim=1), torch.cat(list(draws), dim=1), strict=True)
    keys = (list(zip(row.tolist(), draw.tolist(), strict=True)) for row, draw in pairs)
    sizes = [part.shape[1] for part in rows]
    return (batch.split(sizes) for batch in _load_images(ImageFiles(paths), keys, workers, transform))


def _load_images(
    files: ImageFiles, keys: Iterable[list[tuple[int, int]]], workers: int, transform: Transform | None
) -> Iterator[Tensor]:
    if transform is None:
        raise ConfigError("Inputs are image files but no transform was given; pass the backbone's transform.")
    loader: DataLoader[Tensor] = DataLoader(
        ImageDataset(files, transform),
        batch_sampler=keys,
        num_workers=workers,
        worker_init_fn=_end_with_parent,
        generator=torch.Generator(),
    )
    yield from loader


def _end_with_parent(number: int) -> None:
    """A worker does not obey what stops all processes at once: the one that trains needs it until it has been kept."""
    ignore_signals()


class ImageDataset(torch.utils.data.Dataset[Tensor]):
    """Decoded and transformed images, addressed by (index, draw).

    The draw seeds the random crop and flip of that one access, so a batch does not depend on how many
    worker processes decoded it. A negative draw asks for the test transform.
    """

    def __init__(self, files: ImageFiles, transform: Transform) -> None:
        self.files = files
        self.transform = transform

    def __len__(self) -> int:
        return len(self.files)

    def __getitem__(self, key: tuple[int, int]) -> Tensor:
        index, draw = key
        image = self.transform.read(self.files.paths[index])
        if draw < 0:
            return self.transform.for_testing(image)
        return self.transform.for_training(image, torch.Generator().manual_seed(draw))
