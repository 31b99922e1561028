"""Files that are written whole or not at all, locks, and disks that do not answer."""

from __future__ import annotations

import os
import stat
import tempfile
import threading
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TypeVar

Result = TypeVar("Result")


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
def file_lock(path: Path, *, wait: bool = False) -> Iterator[bool]:
    """Hold a lock within the block; the system releases it when the process ends, however it ends.

    Args:
        path: A folder, or a file, which is made unless it is there.
        wait: Until another process releases it.

    Yields:
        False if another process holds it. True also where it cannot be opened or the file system has no locks: then
        it cannot be known.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY if path.is_dir() else os.O_WRONLY | os.O_CREAT, 0o666)
    except OSError:
        yield True
        return
    mine = True
    try:
        if fcntl is not None:
            with suppress(OSError):  # no locks on this file system
                try:
                    fcntl.flock(descriptor, fcntl.LOCK_EX if wait else fcntl.LOCK_EX | fcntl.LOCK_NB)
                except BlockingIOError:
                    mine = False
        yield mine
    finally:
        os.close(descriptor)


@contextmanager
def wait_for_lock(descriptor: int) -> Iterator[None]:
    """Wait for the lock of an open file and hold it within the block; without locks, do not wait."""
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


def call_within(seconds: float, work: Callable[[], Result]) -> Result:
    """Do something that a stalled disk may hold up, in a thread that does not keep the process from ending.

    Raises:
        TimeoutError: If it takes longer; it then goes on in its thread.
    """
    done: list[Result] = []
    failed: list[BaseException] = []

    def run() -> None:
        try:
            done.append(work())
        except BaseException as error:
            failed.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(seconds)
    if failed:
        raise failed[0]
    if not done:
        raise TimeoutError
    return done[0]
