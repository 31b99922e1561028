"""Images for the page: decoded and encoded anew, so that no file goes out as it is."""

from __future__ import annotations

import io
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path

from PIL import Image

from qurate.data.images import UnreadableImageError, read_image

SIDES = {"small": 192, "large": 1024}
"""Longer side in pixels of each size."""


class Pictures:
    """The images that a page may show, by number.

    Args:
        files: All of them; nothing else is ever read.
    """

    def __init__(self, files: Sequence[Path]) -> None:
        self._files = tuple(files)
        self._encode = lru_cache(maxsize=256)(encode_picture)

    def get(self, number: int, size: str) -> bytes | None:
        """A JPEG; None where there is no such number or size, or the file cannot be read."""
        if size not in SIDES or not 0 <= number < len(self._files):
            return None
        try:
            return self._encode(self._files[number], SIDES[size])
        except UnreadableImageError:
            return None


def encode_picture(path: Path, side: int) -> bytes:
    """A JPEG no larger than that.

    Raises:
        UnreadableImageError: If the file cannot be decoded.
    """
    image = read_image(path)
    image.thumbnail((side, side), Image.Resampling.LANCZOS)
    jpeg = io.BytesIO()
    image.save(jpeg, "JPEG", quality=88)
    return jpeg.getvalue()
