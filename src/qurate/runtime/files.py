"""Files that are written whole or not at all, and locks."""

from __future__ import annotations

import os
import stat
import tempfile
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path


def write_atomically(path: Path, content: str | bytes) -> None:
    """Write a temporary file beside `path`, then rename it into place.

    A new file has the mode that the umask allows; one that is replaced keeps its mode.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    data = content.encode() if isinstance(content, str) else content
    temporary = path.with_name(f".{path.name}.{uuid.uuid4().hex[:8]}")
    try:
        with temporary.open("xb") as file:
            if path.exists():
                temporary.chmod(stat.S_IMODE(path.stat().st_mode))
            file.write(data)
            file.flush()
            os.fsync(file.fileno())  # else a power cut can leave the new name with nothing in it
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def why_not_writable(folder: Path) -> str:
    """Why nothing can be written in a folder, which is there or is still to be made; empty where it can."""
    try:
        there = next(place for place in (folder.absolute(), *folder.absolute().parents) if place.exists())
        with tempfile.TemporaryFile(dir=there):  # permissions alone do not say it, least of all to root
            return ""
    except OSError as error:
        return str(error.strerror)


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
        descriptor = os.open(path, os.O_RDONLY if path.is_dir() else os.O_WRONLY | os.O_CREAT, 0o666)
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
