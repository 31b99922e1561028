"""What image files contain, as digests; those of unchanged files are remembered."""

from __future__ import annotations

import hashlib
import os
import sqlite3
import time
import warnings
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import NamedTuple

from qurate.data.images import UnreadableImageError
from qurate.runtime.machine import available_cores

_SETTLED_NS = 2_000_000_000
"""A file younger than this may change again within one tick of its clock, so its digest is not remembered."""


class Stamp(NamedTuple):
    """What of a file changes, as far as the system tells, when its content does."""

    size: int
    modified_ns: int
    changed_ns: int


class Content(NamedTuple):
    """One file and the SHA-256 of its bytes."""

    path: Path
    stamp: Stamp
    digest: bytes


def stamp_of(path: Path) -> Stamp:
    """The file's stamp now.

    Raises:
        UnreadableImageError: If there is no such file, or it may not be read.
    """
    try:
        status = path.stat()
    except OSError as error:
        raise _unreadable(path, error) from error
    return Stamp(status.st_size, status.st_mtime_ns, status.st_ctime_ns)


def read_contents(paths: Sequence[Path], memory: Path) -> dict[Path, Content]:
    """Digests of files by path; a file whose stamp is the remembered one is not read again.

    Args:
        paths: The files.
        memory: The SQLite file that remembers; made where it is absent, replaced where it is damaged.

    Raises:
        UnreadableImageError: If a file is missing or may not be read.
    """
    stamps = {path: stamp_of(path) for path in paths}
    known = _recall(memory, stamps)
    unknown = [path for path in stamps if path not in known]
    with ThreadPoolExecutor(min(available_cores(), 8)) as pool:
        fresh = dict(zip(unknown, pool.map(_digest, unknown), strict=True))
    _remember(memory, ((path, stamps[path], digest) for path, digest in fresh.items()))
    digests = known | fresh
    return {path: Content(path, stamp, digests[path]) for path, stamp in stamps.items()}


def _digest(path: Path) -> bytes:
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").digest()
    except OSError as error:
        raise _unreadable(path, error) from error


def _unreadable(path: Path, error: OSError) -> UnreadableImageError:
    return UnreadableImageError(
        f"{path}: cannot be read ({error.strerror}). Check the list or folder that names it, and its permissions."
    )


def _recall(memory: Path, stamps: dict[Path, Stamp]) -> dict[Path, bytes]:
    if not memory.exists():
        return {}
    query = "SELECT digest FROM digests WHERE path = ? AND size = ? AND modified_ns = ? AND changed_ns = ?"
    known: dict[Path, bytes] = {}
    try:
        with closing(sqlite3.connect(memory, timeout=30)) as database:
            for path, stamp in stamps.items():
                row = database.execute(query, (_name(path), *stamp)).fetchone()
                if row is not None and isinstance(row[0], bytes) and len(row[0]) == 32:
                    known[path] = row[0]
    except sqlite3.OperationalError:  # locked too long, or without its table: read the files instead
        return {}
    except sqlite3.DatabaseError:
        warnings.warn(f"{memory}: damaged; it is made anew and all files are read again.", stacklevel=2)
        memory.unlink(missing_ok=True)
        return {}
    return known


def _remember(memory: Path, digests: Iterable[tuple[Path, Stamp, bytes]]) -> None:
    now = time.time_ns()
    rows = [
        (_name(path), *stamp, digest)
        for path, stamp, digest in digests
        if now - max(stamp.modified_ns, stamp.changed_ns) > _SETTLED_NS
    ]
    if not rows:
        return
    try:
        memory.parent.mkdir(parents=True, exist_ok=True)
        with closing(sqlite3.connect(memory, timeout=30)) as database, database:
            database.execute(
                "CREATE TABLE IF NOT EXISTS digests "
                "(path TEXT PRIMARY KEY, size INTEGER, modified_ns INTEGER, changed_ns INTEGER, digest BLOB)"
            )
            database.executemany("INSERT OR REPLACE INTO digests VALUES (?, ?, ?, ?, ?)", rows)
    except (OSError, sqlite3.Error):  # a cache that cannot be written still serves; the next run reads again
        return


def _name(path: Path) -> bytes:
    return os.fsencode(path.absolute())  # a name need not be valid text
