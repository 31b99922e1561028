"""A lock file: one process at a time, and none after it ended, however it ended."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]


@contextmanager
def hold(path: Path) -> Iterator[bool]:
    """Hold a lock for the length of the block; the system lets go of it when the process ends.

    Yields:
        False if another process holds it. True also where the file system has no locks: then nobody can know.
    """
    try:
        file = path.open("ab")
    except OSError:  # the folder can be written, so this is a lock of somebody else's, or a full disk
        yield True
        return
    with file:
        yield _lock(file.fileno())


def _lock(descriptor: int) -> bool:
    if fcntl is None:
        return True
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:  # no locks on this file system
        return True
    return True
