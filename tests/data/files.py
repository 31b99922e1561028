"""Image files by name, which several tests share."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from qurate.data.images import ImageFiles


def image_files(paths: Sequence[Path | str]) -> ImageFiles:
    """Image files, there or not."""
    return ImageFiles(tuple(Path(path) for path in paths))
