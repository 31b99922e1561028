"""Embeddings on disk, keyed by the content of files.

Shards that are written whole, checked when read, and memory-mapped.
"""

from __future__ import annotations

import hashlib
import json
import re
import time
import warnings
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import safetensors.torch
import torch
from safetensors import safe_open
from torch import Tensor

from qurate.embedding.digests import EmbeddingCacheWarning as EmbeddingCacheWarning
from qurate.errors import QurateError
from qurate.runtime.compute import torch_threads
from qurate.runtime.files import file_lock, write_atomically

_FORMAT = "qurate-embeddings-1"
_KEY_BYTES = 32
_SHARD_NAME = re.compile(r"[0-9a-f]{32}\.safetensors")
_ABOUT = "about.json"
_LEFTOVER_SECONDS = 24 * 3600


class EmbeddingCacheError(QurateError, RuntimeError):
    """The cache cannot be used; the message says why and what to do."""


@dataclass(frozen=True, eq=False)
class _Shard:
    path: Path
    keys: list[bytes]
    vectors: Tensor
    checksum: str


class EmbeddingCache:
    """Rows of one backbone with one set of weights and one transform, found by 32-byte keys.

    A shard is a safetensors file: `keys` (n, 32) uint8, `vectors` (n, width) float32, and in its header the
    space it belongs to and the checksums of both. Shards are never changed after they were renamed into
    place, so any number of processes may read and add at once; the same rows added twice do no harm.

    Args:
        folder: Where the shards of this space are; None keeps rows in memory, for as long as this object is.
        space: The identity of backbone, weights and transform.
        width: Length of a row.
        about: The same identity in words, kept beside the shards for people.
        required: Whether rows that cannot be written are an error; otherwise a warning says so, and they are kept in
            memory.
    """

    def __init__(self, folder: Path | None, space: str, width: int, about: str = "", *, required: bool = False) -> None:
        self.folder = folder
        self.space = space
        self.width = width
        self.about = about
        self.required = required
        self._seen: set[str] = set()
        self._shards: list[_Shard] = []
        self._sound: set[int] = set()
        self._rows: dict[bytes, tuple[int, int]] = {}  # shard and row
        if folder is not None:
            _remove_leftovers(folder)

    def missing(self, keys: Sequence[bytes]) -> set[bytes]:
        """The keys without a sound row, after a look at what other processes added.

        Every shard that holds one of the keys is checked; a damaged one is removed with a warning.
        """
        self._find_shards()
        used = {self._rows[key][0] for key in keys if key in self._rows}
        for number in used - self._sound:
            shard = self._shards[number]
            if _checksum(shard.vectors) == shard.checksum:
                self._sound.add(number)
            else:
                self._remove_damaged(shard.path, f"its {len(shard.keys)} rows do not match their checksum")
                for key in shard.keys:
                    if self._rows.get(key, (-1, 0))[0] == number:
                        del self._rows[key]
        return {key for key in keys if key not in self._rows}

    def take(self, keys: Sequence[bytes]) -> Tensor:
        """Copies of the rows, (N, width) float32, in the order of the keys; none may be missing."""
        positions = torch.tensor([self._rows[key] for key in keys], dtype=torch.int64).view(-1, 2)
        rows = torch.empty(len(keys), self.width)
        by_shard = positions[:, 0].argsort()
        numbers, counts = positions[by_shard, 0].unique_consecutive(return_counts=True)
        with torch_threads(1):  # copies of a few megabytes; threads would mostly wait for each other
            for number, wanted in zip(numbers.tolist(), by_shard.split(counts.tolist()), strict=True):
                rows.index_copy_(0, wanted, self._shards[number].vectors.index_select(0, positions[wanted, 1]))
        return rows

    def add(self, keys: Sequence[bytes], vectors: Tensor) -> None:
        """Write rows as one shard.

        Args:
            keys: N keys.
            vectors: (N, width) float32.
        """
        vectors = vectors.contiguous()
        checksum = _checksum(vectors)
        if self.folder is None:
            self._add_shard(_Shard(Path(), list(keys), vectors, checksum), is_sound=True)
            return
        stacked = torch.frombuffer(bytearray(b"".join(keys)), dtype=torch.uint8).view(-1, _KEY_BYTES)
        header = {"format": _FORMAT, "space": self.space, "keys": _checksum(stacked), "vectors": checksum}
        content = _sort_header(safetensors.torch.save({"keys": stacked, "vectors": vectors}, metadata=header))
        path = self.folder / f"{_name(keys)}.safetensors"
        try:
            if self.about and not (self.folder / _ABOUT).exists():
                write_atomically(self.folder / _ABOUT, self.about)
            write_atomically(path, content)
        except OSError as error:
            problem = f"{self.folder}: the embedding cache cannot be written ({error.strerror})"
            if self.required:
                raise EmbeddingCacheError(f"{problem}. Make room, or pass another `cache`.") from error
            _warn(f"{problem}. Embeddings are made without it, and the next run makes them again.")
            self._add_shard(_Shard(path, list(keys), vectors, checksum), is_sound=True)

    @contextmanager
    def claim(self, keys: Sequence[bytes], *, wait: bool) -> Iterator[bool]:
        """Claim the work on these rows for the length of the block; the system ends it if the process dies.

        Yields:
            Whether the claim is ours. With `wait` it always is, once the other process has finished.
        """
        if self.folder is None:
            yield True
            return
        path = self.folder / f".{_name(keys)}.lock"
        with suppress(OSError):  # what cannot be locked cannot be written either; `add` says so
            self.folder.mkdir(parents=True, exist_ok=True)
        with file_lock(path, wait=wait) as mine:
            try:
                yield mine  # where nobody can lock, two runs may do the same work, with the same result
            finally:
                if mine:
                    with suppress(OSError):
                        path.unlink(missing_ok=True)

    def _add_shard(self, shard: _Shard, *, is_sound: bool) -> None:
        number = len(self._shards)
        self._shards.append(shard)
        if is_sound:
            self._sound.add(number)
        self._rows.update((key, (number, row)) for row, key in enumerate(shard.keys))

    def _find_shards(self) -> None:
        try:
            found = sorted(self.folder.iterdir()) if self.folder is not None and self.folder.is_dir() else []
        except OSError:  # a cache that may not be read holds nothing for us
            return
        for path in found:
            if path.name in self._seen or path.name == _ABOUT or path.name.startswith("."):
                continue
            self._seen.add(path.name)
            if not _SHARD_NAME.fullmatch(path.name):
                _warn(f"{path}: not a file of the embedding cache; it is ignored. Move it elsewhere.")
            elif shard := self._open(path):
                self._add_shard(shard, is_sound=False)

    def _open(self, path: Path) -> _Shard | None:
        try:
            with safe_open(path, framework="pt") as file:
                about = file.metadata() or {}
                if (about.get("format"), about.get("space")) != (_FORMAT, self.space):
                    _warn(f"{path}: embeddings of another backbone, weights or transform; it is ignored.")
                    return None
                keys, vectors = file.get_tensor("keys"), file.get_tensor("vectors")
        except FileNotFoundError:  # another process found it damaged first, and may write it again
            self._seen.discard(path.name)
            return None
        except PermissionError:
            return None
        except Exception as error:  # a damaged file fails in many ways
            self._remove_damaged(path, str(error))
            return None
        if _checksum(keys) != about.get("keys") or vectors.shape != (len(keys), self.width):
            self._remove_damaged(path, "its keys do not match their checksum")
            return None
        return _Shard(path, [bytes(key) for key in keys.numpy()], vectors, about.get("vectors", ""))

    def _remove_damaged(self, path: Path, why: str) -> None:
        try:
            path.unlink(missing_ok=True)
            self._seen.discard(path.name)
            done = "it is removed and its images are embedded again"
        except OSError as error:
            done = f"its images are embedded again, but it cannot be removed ({error.strerror})"
        _warn(f"{path}: damaged ({why}); {done}.")


def _name(keys: Sequence[bytes]) -> str:
    return hashlib.sha256(b"".join(keys)).hexdigest()[:32]


def _checksum(values: Tensor) -> str:
    return f"{zlib.crc32(values.numpy()):08x}"  # type: ignore[arg-type]  # an array is a buffer


def _sort_header(content: bytes) -> bytes:
    """The same safetensors file with a sorted header, so that the same rows always make the same bytes."""
    size = int.from_bytes(content[:8], "little")
    header = json.dumps(json.loads(content[8 : 8 + size]), sort_keys=True, separators=(",", ":")).encode()
    header += b" " * (-len(header) % 8)  # the format aligns the tensors so
    return len(header).to_bytes(8, "little") + header + content[8 + size :]


def _warn(message: str) -> None:
    warnings.warn(message, EmbeddingCacheWarning, stacklevel=4)


def _remove_leftovers(folder: Path) -> None:
    """Remove what killed writers left: temporary files and locks that nobody has touched for a day."""
    with suppress(OSError):  # a folder that may not be read
        for path in folder.glob(".*"):
            with suppress(OSError):  # gone already, or not ours to remove
                if time.time() - path.stat().st_mtime > _LEFTOVER_SECONDS:
                    path.unlink()
