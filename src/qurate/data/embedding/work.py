"""Making the embeddings that a cache lacks, shard by shard, beside other processes that may be doing the same."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from PIL import Image
from torch import Tensor

from qurate.data.embedding.cache import EmbeddingCache
from qurate.data.embedding.frozen import Embed, FrozenBackbone, View, embedder
from qurate.data.images import read_image
from qurate.errors import QurateError

OnProgress = Callable[[int, int], None]
"""Called with how many embeddings there are and how many are wanted: at the start and after each batch."""

SHARD_ROWS = 512
"""Rows a shard: what is lost, at most, when the process is killed. Our choice."""
CPU_BATCH = 8
"""Images a forward pass of one CPU worker: 4 to 16 were about equally fast, larger ones only took more memory.
Our choice."""
DEVICE_BATCH = 64
"""Images a forward pass on an accelerator. Our choice."""


class EmbeddingError(QurateError, RuntimeError):
    """Images cannot be embedded; the message says why and what to do."""


class EmbeddingWork:
    """Rows that are wanted, and the making of those that are missing.

    Args:
        store: Where rows are looked up and put.
        frozen: Makes the missing ones.
        wanted: The rows by key.
        on_progress: Told how far it is.
    """

    def __init__(
        self, store: EmbeddingCache, frozen: FrozenBackbone, wanted: dict[bytes, View], on_progress: OnProgress | None
    ) -> None:
        self.store = store
        self.frozen = frozen
        self.wanted = wanted
        self.on_progress = on_progress

    def complete(self, device: torch.device, batch_size: int | None) -> None:
        """Embed what is missing, beside other processes that may be doing the same."""
        size = batch_size or (CPU_BATCH if device.type == "cpu" else DEVICE_BATCH)
        for _ in range(3):  # once, unless a shard goes bad between being written and being read
            missing = self.store.missing(list(self.wanted))
            self._report(len(missing))
            if not missing:
                return
            views = [view for key, view in self.wanted.items() if key in missing]
            _check_headers(views)
            with embedder(self.frozen, device, size) as embed:
                self._embed(views, embed)
        raise EmbeddingError(
            f"{self.store.folder}: embeddings disappear or change after they were written. "
            "Check the disk, or pass another cache folder."
        )

    def _embed(self, views: list[View], embed: Embed) -> None:
        """All shards that no other process is making; then, once they are done with, the others."""
        shards = [views[start : start + SHARD_ROWS] for start in range(0, len(views), SHARD_ROWS)]
        others: list[list[View]] = []
        left = len(views)
        for wait in (False, True):
            for shard in others if wait else shards:
                with self.store.claim([view.key for view in shard], wait=wait) as mine:
                    if mine:
                        self._embed_shard(shard, embed, left)
                        left -= len(shard)
                    else:
                        others.append(shard)

    def _embed_shard(self, shard: list[View], embed: Embed, left: int) -> None:
        """Embed one shard's rows and write them; on an error, those that came before it."""
        missing = self.store.missing([view.key for view in shard])
        views = [view for view in shard if view.key in missing]
        left -= len(shard) - len(views)
        batches: list[Tensor] = []
        try:
            for batch in embed(views):
                batches.append(batch)
                left -= len(batch)
                self._report(left)
        finally:
            if batches:
                vectors = torch.cat(batches)
                self.store.add([view.key for view in views[: len(vectors)]], vectors)

    def _report(self, left: int) -> None:
        if self.on_progress is not None:
            self.on_progress(len(self.wanted) - left, len(self.wanted))


def _check_headers(views: Sequence[View]) -> None:
    """Find files that are no images before the work on the others begins; damage deeper inside shows later."""
    for path in {view.path for view in views}:
        try:
            with Image.open(path):
                pass
        except Exception:  # say it as the reader of images does
            read_image(path)
