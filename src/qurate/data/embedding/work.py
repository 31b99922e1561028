"""Making the embeddings that a cache lacks, shard by shard, beside other processes that may be doing the same."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, closing
from dataclasses import dataclass, field
from pathlib import Path

import torch
from torch import Tensor

from qurate.data.embedding.batches import Embed, EmbeddingError, Made
from qurate.data.embedding.cache import Store
from qurate.data.embedding.contents import Content
from qurate.data.images import OnProgress

SHARD_ROWS = 512
"""Rows per shard: what is lost, at most, when the process is killed, but for the batches under way. Our choice."""


@dataclass(eq=False)
class _Shard:
    """Rows on their way to the cache.

    Args:
        claim: Ends our claim on them when it is closed.
        left: How many files have yet to come back.
    """

    claim: ExitStack
    left: int
    keys: list[bytes] = field(default_factory=list)
    rows: list[Tensor] = field(default_factory=list)

    def take(self, made: Made) -> None:
        """A batch that came back."""
        self.keys += [file.digest for file in made.contents]
        self.rows.append(made.vectors)
        self.left -= len(made.contents) + len(made.unreadable)


class EmbeddingWork:
    """Rows that are wanted, and the making of those that are missing.

    Args:
        store: Where rows are looked up and put.
        wanted: A file for each row, by the digest of its content.
        size: Files per batch that is handed out.
        on_progress: Told how many rows there are and how many are wanted: at the start and after each batch.
    """

    def __init__(
        self, store: Store, wanted: dict[bytes, Content], size: int, on_progress: OnProgress | None = None
    ) -> None:
        self.store = store
        self.wanted = wanted
        self.size = size
        self.on_progress = on_progress
        self.unreadable: dict[Path, str] = {}
        self._left = 0

    def missing(self) -> list[Content]:
        """Files without a row, but for those that were found unreadable."""
        missing = self.store.missing(list(self.wanted))
        return [file for key, file in self.wanted.items() if key in missing and file.path not in self.unreadable]

    def complete(self, start: Callable[[], AbstractContextManager[Embed]]) -> None:
        """Embed what is missing, beside other processes that may be doing the same; note what cannot be read.

        Args:
            start: Starts those who embed; called where there is something to do.
        """
        with ExitStack() as stack:
            embed: Embed | None = None
            for _ in range(3):  # once, unless a shard goes bad between being written and being read
                files = self.missing()
                self._report(len(files))
                if not files:
                    return
                embed = embed or stack.enter_context(start())
                self._embed(files, embed)
        raise EmbeddingError(
            "Embeddings disappear or change after they were written to the cache. Check the disk, or pass another "
            "cache folder."
        )

    def _embed(self, files: list[Content], embed: Embed) -> None:
        """All shards that no other process is making; then, once they are done with, the others."""
        shards = [files[start : start + SHARD_ROWS] for start in range(0, len(files), SHARD_ROWS)]
        others: list[list[Content]] = []
        self._embed_shards(shards, embed, others)
        for shard in others:  # one by one: who waits for others holds nothing that others wait for
            self._embed_shards([shard], embed, None)

    def _embed_shards(self, shards: list[list[Content]], embed: Embed, others: list[list[Content]] | None) -> None:
        """Embed shards in one stream and write each when it is whole; on an error, the rows that came before it."""
        claimed: deque[_Shard] = deque()
        try:
            with closing(embed(self._claim(shards, claimed, others))) as stream:  # type: ignore[type-var]
                for made in stream:
                    claimed[0].take(made)
                    self.unreadable |= made.unreadable
                    self._report(self._left - len(made.contents) - len(made.unreadable))
                    if claimed[0].left == 0:
                        self._write(claimed.popleft())
        finally:
            while claimed:
                self._write(claimed.popleft())

    def _claim(
        self, shards: list[list[Content]], claimed: deque[_Shard], others: list[list[Content]] | None
    ) -> Iterator[Sequence[Content]]:
        """Batches of the shards that are ours to make; those of other processes are noted, or waited for."""
        for shard in shards:
            keys = [file.digest for file in shard]
            with ExitStack() as stack:
                if not stack.enter_context(self.store.claim(keys, wait=others is None)):
                    assert others is not None, "a claim that was waited for is ours"
                    others.append(shard)
                    continue
                missing = self.store.missing(keys)
                self._left -= len(shard) - len(missing)
                files = [file for file in shard if file.digest in missing]
                if not files:
                    continue
                claimed.append(_Shard(stack.pop_all(), len(files)))
            for start in range(0, len(files), self.size):
                yield files[start : start + self.size]

    def _write(self, shard: _Shard) -> None:
        with shard.claim:
            if shard.keys:
                self.store.add(shard.keys, torch.cat(shard.rows))

    def _report(self, left: int) -> None:
        self._left = left
        if self.on_progress is not None:
            self.on_progress(len(self.wanted) - left, len(self.wanted))
