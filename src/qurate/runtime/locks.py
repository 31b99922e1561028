"""A lock on a file or a folder: one process at a time, and none after it ended, however it ended."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]


@contextmanager
def hold(path: Path, *, wait: bool = False) -> Iterator[bool]:
    """Hold a lock for the length of the block; the system lets go of it when the process ends.

    Args:
        path: A folder, or a file, which is made unless it is there.
        wait: Until another process lets go of it.

    Yields:
        False if another process holds it. True also where it cannot be opened or the file system has no locks: then
        nobody can know.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY if path.is_dir() else os.O_WRONLY | os.O_CREAT)
    except OSError:
        yield True
        return
    try:
        yield _lock(descriptor, wait)
    finally:
        os.close(descriptor)


@contextmanager
def wait_for(descriptor: int) -> Iterator[None]:
    """Hold the lock of an open file for the length of the block, after whoever has it; without locks, at once."""
    locked = False
    if fcntl is not None:
        with suppress(OSError):  # no locks on this file system
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            locked = True
    try:
        yield
    finally:
        if locked:
            fcntl.flock(descriptor, fcntl.LOCK_UN)


def _lock(descriptor: int, wait: bool) -> bool:
    if fcntl is None:
        return True
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX if wait else fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:  # no locks on this file system
        return True
    return True
