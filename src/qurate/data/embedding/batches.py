"""Batches of files on their way: decoded, passed through the backbone, and handed on in order."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple, TypeVar

import torch
from torch import Tensor

from qurate.data.embedding.contents import Content, stamp_of
from qurate.data.embedding.frozen import FrozenBackbone
from qurate.data.images import Transform, UnreadableImageError
from qurate.errors import QurateError

_Item = TypeVar("_Item")
_Result = TypeVar("_Result")


class EmbeddingError(QurateError, RuntimeError):
    """Images cannot be embedded; the message says why and what to do."""


class Made(NamedTuple):
    """What became of one batch.

    Args:
        contents: The B files that could be read, in order.
        vectors: Their embeddings, (B, width) float32 on the CPU.
        unreadable: The other files, and why.
    """

    contents: list[Content]
    vectors: Tensor
    unreadable: dict[Path, str]


Embed = Callable[[Iterable[Sequence[Content]]], Iterator[Made]]
"""Batches of files to their embeddings, in order. Batches are asked for a little ahead of the results."""


@dataclass(frozen=True, eq=False)
class Decoded:
    """One batch, ready for the network.

    Args:
        contents: The B files that could be read, in order.
        images: (B, 3, crop, crop) float32.
        unreadable: The other files, and why.
        changed: What to say of a file that was written to in the meantime; empty if there is none.
    """

    contents: list[Content]
    images: Tensor
    unreadable: dict[Path, str]
    changed: str = ""

    def pin_memory(self) -> Decoded:
        """The batch in memory that a GPU can fetch by itself; torch's loader asks for it."""
        return replace(self, images=self.images.pin_memory())

    def made(self, vectors: Tensor) -> Made:
        """The batch with its embeddings."""
        return Made(self.contents, vectors, self.unreadable)


def decode(batch: Sequence[Content], transform: Transform, folder: Path = Path()) -> Decoded:
    """The images of a batch as one tensor, and why others cannot be read; relative paths begin at the folder."""
    images: list[Tensor] = []
    contents: list[Content] = []
    unreadable: dict[Path, str] = {}
    changed = ""
    for content in batch:
        try:
            image = transform.read(folder / content.path)
            if stamp_of(folder / content.path) != content.stamp:
                changed = f"{content.path}: changed while it was being embedded. Embed again when nothing writes to it."
                break
        except UnreadableImageError as error:
            unreadable[content.path] = str(error)
            continue
        images.append(transform.for_testing(image))
        contents.append(content)
    side = transform.crop
    return Decoded(contents, torch.stack(images) if images else torch.empty(0, 3, side, side), unreadable, changed)


class Passage:
    """The way through a backbone on one device, in batches that its memory holds.

    Args:
        frozen: The backbone; it is moved to the device.
        device: Where it computes.
        precision: What it computes in.
        size: Images per forward pass to begin with; halved whenever the device runs out of memory.
    """

    def __init__(self, frozen: FrozenBackbone, device: torch.device, precision: torch.dtype, size: int) -> None:
        self.size = size
        self._width = frozen.width
        self._device = device
        self._precision = precision
        self._module = frozen.module.to(device, memory_format=torch.channels_last)  # type: ignore[call-overload]

    def embed(self, batch: Decoded) -> Made:
        """One batch."""
        return self.embed_all([batch])[0]

    def embed_all(self, batches: Sequence[Decoded]) -> list[Made]:
        """Several batches in one forward pass, if the memory allows.

        Raises:
            UnreadableImageError: If a file of them was written to in the meantime.
            EmbeddingError: If the device has too little memory for a single image.
        """
        for batch in batches:
            if batch.changed:
                raise UnreadableImageError(batch.changed)
        counts = [len(batch.contents) for batch in batches]
        rows = self._embed([batch.images for batch in batches]).split(counts)
        return [batch.made(vectors) for batch, vectors in zip(batches, rows, strict=True)]

    @torch.inference_mode()
    def _embed(self, images: Sequence[Tensor]) -> Tensor:
        while True:
            try:
                return self._try(images)
            except RuntimeError as error:
                if not _is_out_of_memory(error):
                    raise
                if self.size == 1:
                    raise EmbeddingError(
                        f"The memory of the device ({self._device}) does not hold the backbone and one image. "
                        "Use `device='cpu'` or a smaller backbone, or end what else uses the device."
                    ) from error
                self.size = max(1, self.size // 2)
            if self._device.type == "cuda":
                torch.cuda.empty_cache()  # outside of `except`, where the error keeps the tensors alive

    def _try(self, images: Sequence[Tensor]) -> Tensor:
        if not any(len(part) for part in images):
            return torch.empty(0, self._width)
        parts = [part.to(self._device, non_blocking=True) for part in images]
        moved = torch.cat(parts) if len(parts) > 1 else parts[0]
        rows = [self._forward(part.contiguous(memory_format=torch.channels_last)) for part in moved.split(self.size)]
        return torch.cat(rows).to("cpu")

    def _forward(self, images: Tensor) -> Tensor:
        reduced = self._precision != torch.float32
        with torch.autocast(self._device.type, dtype=self._precision) if reduced else nullcontext():
            vectors: Tensor = self._module(images).float()
        if reduced and not bool(vectors.isfinite().all()):  # float16 ends at 65,504, and some networks go beyond
            vectors = self._module(images).float()
        return vectors


def _is_out_of_memory(error: RuntimeError) -> bool:
    return isinstance(error, torch.cuda.OutOfMemoryError) or "out of memory" in str(error).lower()


def in_order(submit: Callable[[_Item], Future[_Result]], items: Iterable[_Item], ahead: int) -> Iterator[_Result]:
    """The results of work that is done elsewhere, in the order of the items; no more than `ahead` are under way."""
    waiting: deque[Future[_Result]] = deque()
    try:
        for item in items:
            waiting.append(submit(item))
            if len(waiting) >= ahead:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()
    finally:
        for future in waiting:
            future.cancel()
