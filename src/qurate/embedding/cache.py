"""Embeddings on disk, keyed by the content of files.

Shards that are written whole, checked when read, and memory-mapped.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import sqlite3
import stat
import tempfile
import time
import warnings
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import safetensors.torch
import torch
from safetensors import safe_open
from torch import Tensor

from qurate.data.images import UnreadableImageError, try_all, unreadable_image
from qurate.errors import QurateError
from qurate.runtime.files import file_lock, write_atomically
from qurate.runtime.machine import torch_threads

_SETTLED_NS = 2_000_000_000
"""A file younger than this may change again within one tick of its clock, so its digest is not remembered."""
_LOCK_SECONDS = 2.0
"""How long to wait for another process that has locked the index of digests. Our choice."""


class FileStatus(NamedTuple):
    """What of a file changes, as far as the system tells, when its content does."""

    size: int
    modified_ns: int
    changed_ns: int


class HashedFile(NamedTuple):
    """One file and the SHA-256 of its bytes."""

    path: Path
    status: FileStatus
    digest: bytes


def default_cache() -> Path:
    """The cache of this user: `QURATE_CACHE`, or `qurate/embeddings` in the user's cache folder."""
    if named := os.environ.get("QURATE_CACHE"):
        return Path(named)
    try:
        return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "qurate" / "embeddings"
    except RuntimeError:  # a user without a home, as in some containers
        return Path(tempfile.gettempdir()) / f"qurate-{os.getuid()}" / "embeddings"


def digest_index(cache: Path | None) -> Path:
    """The SQLite file of a cache that remembers the digests of image files."""
    return Path(cache or default_cache()) / "digests.sqlite"


def file_status(path: Path) -> FileStatus:
    """The file's status now; UnreadableImageError if it is missing or no regular file."""
    try:
        status = path.stat()
    except OSError as error:
        raise unreadable_image(path, error) from error
    if not stat.S_ISREG(status.st_mode):  # reading a pipe would wait for ever
        raise UnreadableImageError(f"{path}: not a regular file. Remove it, or give the image itself.")
    return FileStatus(status.st_size, status.st_mtime_ns, status.st_ctime_ns)


def hash_files(paths: Iterable[Path], index: Path | None = None) -> tuple[dict[Path, HashedFile], dict[Path, str]]:
    """Digests of files by path; a file whose status is the remembered one is not read again.

    Args:
        paths: The files.
        index: The SQLite file that remembers digests; made where it is absent, replaced where it is damaged. None
            remembers nothing.

    Returns:
        The files, and for those that cannot be read the reason.
    """
    found, unreadable = try_all(file_status, dict.fromkeys(paths))
    known, is_usable = ({}, False) if index is None else _recall(index, found)
    fresh, failed = try_all(_digest, [path for path in found if path not in known])
    if index is not None and is_usable:
        _remember(index, ((path, found[path], digest) for path, digest in fresh.items()))
    files = {path: HashedFile(path, found[path], digest) for path, digest in (known | fresh).items()}
    return files, unreadable | failed


def with_copies(reasons: Mapping[Path, str], files: Mapping[Path, HashedFile]) -> dict[Path, str]:
    """Why files cannot be read, repeated for every file with the same content."""
    by_digest = {files[path].digest: (str(path), reason) for path, reason in reasons.items() if path in files}
    same = {path: by_digest[file.digest] for path, file in files.items() if file.digest in by_digest}
    return {**reasons, **{path: reason.replace(first, str(path)) for path, (first, reason) in same.items()}}


def _digest(path: Path) -> bytes:
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").digest()
    except OSError as error:
        raise unreadable_image(path, error) from error


def _recall(index: Path, statuses: dict[Path, FileStatus]) -> tuple[dict[Path, bytes], bool]:
    """The digests that are remembered, and whether others can be added."""
    if not os.path.exists(index):  # noqa: PTH110  # no error where it may not be looked at
        return {}, True
    if not os.path.isfile(index):  # noqa: PTH113  # SQLite would wait for a pipe for ever
        return {}, False
    query = "SELECT digest FROM digests WHERE path = ? AND size = ? AND modified_ns = ? AND changed_ns = ?"
    known: dict[Path, bytes] = {}
    try:
        with closing(sqlite3.connect(index, timeout=_LOCK_SECONDS)) as database:
            for path, status in statuses.items():
                row = database.execute(query, (_index_key(path), *status)).fetchone()
                if row is not None and isinstance(row[0], bytes) and len(row[0]) == 32:
                    known[path] = row[0]
    except sqlite3.OperationalError as error:  # locked too long, or without its table: read the files instead
        return {}, not _warn_if_locked(index, error)
    except sqlite3.DatabaseError:
        warnings.warn(f"{index}: damaged; it is replaced and all files are read again.", stacklevel=2)
        with suppress(OSError):
            index.unlink(missing_ok=True)
        return {}, True
    return known, True


def _warn_if_locked(index: Path, error: sqlite3.Error) -> bool:
    is_locked = getattr(error, "sqlite_errorname", "").startswith(("SQLITE_BUSY", "SQLITE_LOCKED"))
    if is_locked:
        _warn(f"{index}: locked by another process, so all files are read again. It is safe to remove it.")
    return is_locked


def _remember(index: Path, digests: Iterable[tuple[Path, FileStatus, bytes]]) -> None:
    now = time.time_ns()
    rows = [
        (_index_key(path), *status, digest)
        for path, status, digest in digests
        if now - max(status.modified_ns, status.changed_ns) > _SETTLED_NS
    ]
    if not rows:
        return
    try:
        index.parent.mkdir(parents=True, exist_ok=True)
        with closing(sqlite3.connect(index, timeout=_LOCK_SECONDS)) as database, database:
            database.execute(
                "CREATE TABLE IF NOT EXISTS digests "
                "(path TEXT PRIMARY KEY, size INTEGER, modified_ns INTEGER, changed_ns INTEGER, digest BLOB)"
            )
            database.executemany("INSERT OR REPLACE INTO digests VALUES (?, ?, ?, ?, ?)", rows)
    except sqlite3.Error as error:  # a cache that cannot be written still serves; the next run reads again
        _warn_if_locked(index, error)
    except OSError:
        return


def _index_key(path: Path) -> bytes:
    return os.fsencode(path.absolute())  # a name need not be valid text


_FORMAT = "qurate-embeddings-1"
_KEY_BYTES = 32
_SHARD_NAME = re.compile(r"[0-9a-f]{32}\.safetensors")
_ABOUT = "about.json"
_LEFTOVER_SECONDS = 24 * 3600


class EmbeddingCacheWarning(UserWarning):
    """Something in the cache is damaged or not ours; the message says what is done about it."""


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
