"""Digests of image files, and the index that remembers them. Loads no torch."""

from __future__ import annotations

import hashlib
import os
import sqlite3
import stat
import tempfile
import time
import warnings
from collections.abc import Iterable, Mapping
from contextlib import closing, suppress
from pathlib import Path
from typing import NamedTuple

from qurate.data.images import UnreadableImageError, try_all, unreadable_image

_SETTLED_NS = 2_000_000_000
"""A file younger than this may change again within one tick of its clock, so its digest is not remembered."""
_LOCK_SECONDS = 2.0
"""How long to wait for another process that has locked the index of digests. Our choice."""


class EmbeddingCacheWarning(UserWarning):
    """Something in the cache is damaged or not ours; the message says what is done about it."""


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
        message = f"{index}: locked by another process, so all files are read again. It is safe to remove it."
        warnings.warn(message, EmbeddingCacheWarning, stacklevel=3)
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
