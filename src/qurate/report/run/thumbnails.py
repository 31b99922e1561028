"""Images small enough to live inside the page."""

from __future__ import annotations

import io
from dataclasses import dataclass
from pathlib import Path

from PIL import Image

from qurate.data.images import UnreadableImageError, read_image
from qurate.report.pages import data_uri

SIDE = 160
"""Longer side of a thumbnail in pixels."""
BUDGET = 2_500_000
"""Most characters that all thumbnails of a page may take."""
_TINY = 48


@dataclass(frozen=True)
class Thumbnail:
    """A picture for the page, or why there is none.

    Args:
        alt: What it shows, for those who do not see it.
        uri: The JPEG as a data URI; empty where there is none.
        problem: A few words to stand in its place.
        tiny: Whether it is so small that pixels should stay sharp when enlarged.
    """

    alt: str
    uri: str = ""
    problem: str = ""
    tiny: bool = False


class Thumbnails:
    """Makes thumbnails until the page is full.

    Args:
        budget: Characters to spend.
    """

    def __init__(self, budget: int = BUDGET) -> None:
        self._left = budget

    def of(self, path: Path | None, alt: str) -> Thumbnail:
        """The thumbnail of a file; a file that cannot be read gives words instead."""
        if path is None:
            return Thumbnail(f"{alt}: no such image", problem="no image")
        try:
            image = read_image(path)
        except UnreadableImageError:
            return Thumbnail(f"{alt}: cannot be read", problem="cannot be read")
        tiny = max(image.size) <= _TINY
        uri = data_uri(_jpeg(image), "jpeg")
        if len(uri) > self._left:
            return Thumbnail(f"{alt}: left out to keep the page small", problem="left out to keep the page small")
        self._left -= len(uri)
        return Thumbnail(alt, uri, tiny=tiny)


def _jpeg(image: Image.Image) -> bytes:
    image.thumbnail((SIDE, SIDE), Image.Resampling.LANCZOS)
    jpeg = io.BytesIO()
    image.save(jpeg, "JPEG", quality=76, optimize=True)
    return jpeg.getvalue()
