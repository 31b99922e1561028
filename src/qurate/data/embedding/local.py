"""Where embedding is done on this machine: on the cores of its processor, or on a device beside it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import torch
from torch.utils.data import DataLoader, Dataset

from qurate.data.embedding.batches import Decoded, Embed, EmbeddingError, Made, Passage, decode, in_order
from qurate.data.embedding.contents import Content
from qurate.data.embedding.frozen import FrozenBackbone
from qurate.data.images import Transform
from qurate.runtime.machine import available_cores, torch_threads

CPU_BATCH = 8
"""Images per forward pass of one CPU worker: 4 to 16 were about equally fast, larger ones only took more memory.
Our choice."""
DEVICE_BATCH = 256
"""Images per forward pass on an accelerator to begin with; halved where its memory does not hold them. Our choice."""
DECODED_BATCH = 16
"""Images that a process decodes before it hands them to the accelerator: 10 MB at 224 pixels. Our choice."""

_MOST_WORKERS = 16  # each holds the activations of a batch, or decoded images


@contextmanager
def on_cores(frozen: FrozenBackbone, precision: torch.dtype, size: int) -> Iterator[Embed]:
    """Workers that take a batch through decoding and the network, each on a core of its own.

    While one decodes another computes, and none waits for the others inside an operation.
    """
    cores = available_cores()
    workers = min(cores, _MOST_WORKERS)
    passage = Passage(frozen, torch.device("cpu"), precision, size)

    def work(batch: Sequence[Content]) -> Made:
        return passage.embed(decode(batch, frozen.transform))

    with (
        torch_threads(cores // workers),
        ThreadPoolExecutor(workers, thread_name_prefix="qurate-embed") as pool,
    ):
        yield lambda batches: in_order(lambda batch: pool.submit(work, batch), batches, 2 * workers)


@contextmanager
def on_device(
    frozen: FrozenBackbone, device: torch.device, precision: torch.dtype, size: int, workers: int = 0
) -> Iterator[Embed]:
    """Processes that decode, and a device that computes what they decoded, `size` images at once.

    Args:
        frozen: The backbone.
        device: Where it computes.
        precision: What it computes in.
        size: Images per forward pass to begin with.
        workers: Processes that decode; one per core unless given.
    """
    passage = Passage(frozen, device, precision, size)
    count = workers or min(available_cores(), _MOST_WORKERS)

    def embed(batches: Iterable[Sequence[Content]]) -> Iterator[Made]:
        group: list[Decoded] = []
        for decoded in _decode_beside(batches, frozen.transform, count, pinned=device.type == "cuda"):
            full = sum(len(some.contents) for some in [*group, decoded]) > passage.size
            if group and (full or decoded.changed):
                yield from passage.embed_all(group)
                group.clear()
            group.append(decoded)
        if group:
            yield from passage.embed_all(group)

    yield embed


class _Files(Dataset[Decoded]):
    """What the processes of a loader do: a batch of files in, decoded images out."""

    def __init__(self, transform: Transform) -> None:
        self._transform = transform

    def __getitems__(self, batch: Sequence[Content]) -> Decoded:
        return decode(batch, self._transform)


def _as_it_is(decoded: Decoded) -> Decoded:
    return decoded


def _decode_beside(
    batches: Iterable[Sequence[Content]], transform: Transform, workers: int, *, pinned: bool
) -> Iterator[Decoded]:
    loader: DataLoader[Decoded] = DataLoader(
        _Files(transform),
        batch_sampler=batches,  # type: ignore[arg-type]  # any iterable of lists does
        collate_fn=_as_it_is,  # type: ignore[arg-type]  # what __getitems__ gave
        num_workers=workers,
        pin_memory=pinned,
        generator=torch.Generator(),  # else the loader draws from the global one
    )
    try:
        yield from loader
    except RuntimeError as error:
        if "DataLoader worker" not in str(error):
            raise
        raise EmbeddingError(
            "A process that decoded images was ended from outside, perhaps for want of memory. What was embedded "
            "before is kept; embed again to continue."
        ) from error
