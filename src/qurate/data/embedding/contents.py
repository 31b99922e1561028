"""What image files contain, as digests; those of unchanged files are remembered."""

from __future__ import annotations

import hashlib
import os
import sqlite3
import stat
import time
import warnings
from collections.abc import Iterable, Mapping
from contextlib import closing, suppress
from pathlib import Path
from typing import NamedTuple

from qurate.data.images import UnreadableImageError, try_all, unreadable_image

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
        raise unreadable_image(path, error) from error
    if not stat.S_ISREG(status.st_mode):  # reading a pipe would wait for ever
        raise UnreadableImageError(f"{path}: not a regular file. Remove it, or give the image itself.")
    return Stamp(status.st_size, status.st_mtime_ns, status.st_ctime_ns)


def read_contents(paths: Iterable[Path], memory: Path | None = None) -> tuple[dict[Path, Content], dict[Path, str]]:
    """Digests of files by path; a file whose stamp is the remembered one is not read again.

    Args:
        paths: The files.
        memory: The SQLite file that remembers; made where it is absent, replaced where it is damaged. None remembers
            nothing.

    Returns:
        The contents, and for files that cannot be read the reason.
    """
    stamps, unreadable = try_all(stamp_of, dict.fromkeys(paths))
    known = {} if memory is None else _recall(memory, stamps)
    fresh, more = try_all(_digest, [path for path in stamps if path not in known])
    if memory is not None:
        _remember(memory, ((path, stamps[path], digest) for path, digest in fresh.items()))
    contents = {path: Content(path, stamps[path], digest) for path, digest in (known | fresh).items()}
    return contents, unreadable | more


def spread(reasons: Mapping[Path, str], contents: Mapping[Path, Content]) -> dict[Path, str]:
    """Why files cannot be read, said of every file with the same content."""
    by_digest = {contents[path].digest: (str(path), reason) for path, reason in reasons.items() if path in contents}
    same = {path: by_digest[content.digest] for path, content in contents.items() if content.digest in by_digest}
    return {**reasons, **{path: reason.replace(first, str(path)) for path, (first, reason) in same.items()}}


def _digest(path: Path) -> bytes:
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").digest()
    except OSError as error:
        raise unreadable_image(path, error) from error


def _recall(memory: Path, stamps: dict[Path, Stamp]) -> dict[Path, bytes]:
    if not os.path.exists(memory):  # noqa: PTH110  # no error where it may not be looked at
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
        warnings.warn(f"{memory}: damaged; it is replaced and all files are read again.", stacklevel=2)
        with suppress(OSError):
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
