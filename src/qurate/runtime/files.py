"""Files are written whole or not at all."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path


def write_atomically(path: Path, content: str | bytes) -> None:
    """Write a temporary file beside `path`, then rename it into place."""
    path.parent.mkdir(parents=True, exist_ok=True)
    data = content.encode() if isinstance(content, str) else content
    descriptor, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())  # else a power cut can leave the new name with nothing in it
        Path(temporary).chmod(0o644)
        Path(temporary).replace(path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise


def why_not_writable(folder: Path) -> str:
    """Why nothing can be written in a folder, which is there or is still to be made; empty where it can."""
    try:
        there = next(place for place in (folder.absolute(), *folder.absolute().parents) if place.exists())
        with tempfile.TemporaryFile(dir=there):  # permissions alone do not say it, least of all to root
            return ""
    except OSError as error:
        return str(error.strerror)
