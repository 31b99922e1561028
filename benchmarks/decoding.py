"""What decoding large JPEGs at a part of their size saves, and what it changes, beside what other choices change.

Photographs of 12 megapixels are put together from those of Office-31's DSLR (1000 x 1000 each) and saved at quality 92.

    python benchmarks/decoding.py
"""

from __future__ import annotations

import io
import os
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from qurate.data.images import Transform, read_image
from qurate.networks.backbones import build_backbone

SHARED = Path(__file__).resolve().parents[2] / "shared"
DATA = Path(os.environ.get("QURATE_DATA") or SHARED / "data")
WEIGHTS = DATA.parent / "weights" / "tf_efficientnet_lite0.safetensors"
Change = Callable[[Image.Image], Image.Image]


def make_photographs(folder: Path, count: int) -> list[Path]:
    """JPEGs of 4000 x 3000 pixels, twelve photographs in each."""
    paths = sorted((DATA / "office31" / "dslr" / "images").glob("*/*.jpg"))
    if not paths or not WEIGHTS.is_file():
        sys.exit(f"This benchmark needs {DATA / 'office31'} (or QURATE_DATA) and {WEIGHTS}.")
    random.Random(0).shuffle(paths)
    made = [folder / f"{number}.jpg" for number in range(count)]
    for number, path in enumerate(made):
        sheet = Image.new("RGB", (4000, 3000))
        for place in range(12):
            photograph = read_image(paths[(12 * number + place) % len(paths)])
            sheet.paste(photograph, (place % 4 * 1000, place // 4 * 1000))
        sheet.save(path, quality=92)
    return made


class Comparison:
    """Embeddings by Lite0 of images decoded whole, and of what else is made of them."""

    def __init__(self, images: Sequence[Image.Image]) -> None:
        backbone = build_backbone("timm/tf_efficientnet_lite0", str(WEIGHTS))
        assert backbone.transform is not None
        self.module, self.transform, self.images = backbone.module.eval(), backbone.transform, images
        self.side = backbone.transform.resize
        self.rows = self.embed(images)

    def embed(self, images: Sequence[Image.Image]) -> Tensor:
        """(N, width)."""
        with torch.inference_mode():
            return torch.cat([self.module(self.transform.for_testing(image)[None]) for image in images])

    def print(self, name: str, images: Sequence[Image.Image], milliseconds: float | None = None) -> None:
        """How much pixels and embeddings move."""
        square = (self.side, self.side)
        pairs = [
            [np.asarray(image.resize(square, Image.Resampling.BILINEAR), dtype=float) for image in pair]
            for pair in zip(images, self.images, strict=True)
        ]
        pixels = statistics.mean(float(np.abs(one - two).mean()) for one, two in pairs)
        moved = (self.embed(images) - self.rows).norm(dim=1) / self.rows.norm(dim=1)
        cost = "" if milliseconds is None else f"; {milliseconds:.0f} ms of processor time per image"
        most = f"at most {moved.max():.1%}"
        print(f"{name}: pixels by {pixels:.2f} of 255, embeddings by {moved.mean():.1%} ({most}){cost}", flush=True)


def read_all(paths: Sequence[Path], transform: Transform, least: int | None) -> tuple[list[Image.Image], float]:
    """Decoded images, and milliseconds of decoding and preparing one."""
    began = time.process_time()
    images = [read_image(path, least) for path in paths]
    for image in images:
        transform.for_testing(image)
    return images, 1e3 * (time.process_time() - began) / len(paths)


def saved_again(image: Image.Image) -> Image.Image:
    file = io.BytesIO()
    image.save(file, "JPEG", quality=90)
    return Image.open(file).convert("RGB")


def main() -> None:
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        paths = make_photographs(Path(folder), 12)
        comparison = Comparison([read_image(path) for path in paths])
        side, transform = comparison.side, comparison.transform
        for times in (None, 4, 3, 2, 1):
            images, cost = read_all(paths, transform, None if times is None else times * side)
            comparison.print("whole" if times is None else f"{times} times the resized side or more", images, cost)
    others: dict[str, Change] = {
        "bicubic in place of bilinear": lambda image: image.resize((side, side), Image.Resampling.BICUBIC),
        "saved as JPEG of quality 90 once more": saved_again,
    }
    for name, change in others.items():
        comparison.print(name, [change(image) for image in comparison.images])


if __name__ == "__main__":
    main()
