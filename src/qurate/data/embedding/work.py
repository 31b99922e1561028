"""Making the embeddings that a cache lacks, shard by shard, beside other processes that may be doing the same."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor

from qurate.data.embedding.cache import Store
from qurate.data.embedding.contents import Content
from qurate.data.embedding.frozen import Embed, FrozenBackbone, embedder
from qurate.data.images import OnProgress
from qurate.errors import QurateError

SHARD_ROWS = 512
"""Rows per shard: what is lost, at most, when the process is killed. Our choice."""
CPU_BATCH = 8
"""Images per forward pass of one CPU worker: 4 to 16 were about equally fast, larger ones only took more memory.
Our choice."""
DEVICE_BATCH = 64
"""Images per forward pass on an accelerator. Our choice."""


class EmbeddingError(QurateError, RuntimeError):
    """Images cannot be embedded; the message says why and what to do."""


class EmbeddingWork:
    """Rows that are wanted, and the making of those that are missing.

    Args:
        store: Where rows are looked up and put.
        frozen: Makes the missing ones.
        wanted: A file for each row, by the digest of its content.
        on_progress: Told how many rows there are and how many are wanted: at the start and after each batch.
    """

    def __init__(
        self, store: Store, frozen: FrozenBackbone, wanted: dict[bytes, Content], on_progress: OnProgress | None
    ) -> None:
        self.store = store
        self.frozen = frozen
        self.wanted = wanted
        self.on_progress = on_progress
        self.unreadable: dict[Path, str] = {}

    def missing(self) -> list[Content]:
        """Files without a row, but for those that were found unreadable."""
        missing = self.store.missing(list(self.wanted))
        return [file for key, file in self.wanted.items() if key in missing and file.path not in self.unreadable]

    def complete(self, device: torch.device, batch_size: int | None) -> None:
        """Embed what is missing, beside other processes that may be doing the same; note what cannot be read."""
        size = batch_size or (CPU_BATCH if device.type == "cpu" else DEVICE_BATCH)
        for _ in range(3):  # once, unless a shard goes bad between being written and being read
            files = self.missing()
            self._report(len(files))
            if not files:
                return
            with embedder(self.frozen, device, size) as embed:
                self._embed(files, embed)
        raise EmbeddingError(
            "Embeddings disappear or change after they were written to the cache. Check the disk, or pass another "
            "cache folder."
        )

    def _embed(self, files: list[Content], embed: Embed) -> None:
        """All shards that no other process is making; then, once they are done with, the others."""
        shards = [files[start : start + SHARD_ROWS] for start in range(0, len(files), SHARD_ROWS)]
        others: list[list[Content]] = []
        left = len(files)
        for wait in (False, True):
            for shard in others if wait else shards:
                with self.store.claim([file.digest for file in shard], wait=wait) as mine:
                    if mine:
                        self._embed_shard(shard, embed, left)
                        left -= len(shard)
                    else:
                        others.append(shard)

    def _embed_shard(self, shard: list[Content], embed: Embed, left: int) -> None:
        """Embed one shard's rows and write them; on an error, those that came before it."""
        missing = self.store.missing([file.digest for file in shard])
        left -= len(shard) - len(missing)
        keys: list[bytes] = []
        rows: list[Tensor] = []
        try:
            for made in embed([file for file in shard if file.digest in missing]):
                keys += [file.digest for file in made.contents]
                rows.append(made.vectors)
                self.unreadable |= made.unreadable
                left -= len(made.contents) + len(made.unreadable)
                self._report(left)
        finally:
            if keys:
                self.store.add(keys, torch.cat(rows))

    def _report(self, left: int) -> None:
        if self.on_progress is not None:
            self.on_progress(len(self.wanted) - left, len(self.wanted))
