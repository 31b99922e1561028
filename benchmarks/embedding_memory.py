"""Peak memory of embedding by the number of images, each number in a process of its own, on generated images.

Anonymous memory is what the process holds; the cache's shards are mapped files, whose pages the system may take back.

    python benchmarks/embedding_memory.py --images 1000,10000,100000
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import numpy as np
import safetensors.torch
import timm
import torch
from PIL import Image

from qurate.embedding.backbone import freeze_backbone
from qurate.embedding.embed import embed_files
from qurate.runtime.machine import keep_freed_memory

BACKBONE = "timm/test_efficientnet"
"""Small enough for 100,000 images in minutes; what is held per image does not depend on it but for the width."""


def draw_images(folder: Path, count: int) -> list[Path]:
    """JPEGs of 32 x 32 pixels, no two alike."""
    rng = np.random.default_rng(0)
    paths = [folder / f"{number:06d}.jpg" for number in range(count)]
    for path in paths:
        if not path.exists():
            Image.fromarray(rng.integers(0, 256, (32, 32, 3), dtype=np.uint8)).save(path)
    return paths


def anonymous_memory() -> int:
    """Bytes that this process holds and that are no pages of files."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return 1024 * next(int(line.split()[1]) for line in lines if line.startswith("RssAnon"))


class Peak(threading.Thread):
    """The largest of what `anonymous_memory` says while it runs."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.bytes = 0

    def run(self) -> None:
        """Look twenty times a second."""
        while True:
            self.bytes = max(self.bytes, anonymous_memory())
            time.sleep(0.05)


def embed(folder: Path, count: int) -> None:
    """Embed in this process; print the megabytes before, at the peak, and the images per second."""
    keep_freed_memory()  # as the command line does
    paths = sorted(folder.glob("*.jpg"))[:count]
    frozen = freeze_backbone(BACKBONE, str(folder / "w.safetensors"))
    with tempfile.TemporaryDirectory() as cache:
        embed_files(paths[:64], frozen, cache=Path(cache) / "warm", device="cpu")
        before, peak = anonymous_memory(), Peak()
        peak.start()
        found = embed_files(paths, frozen, cache=Path(cache) / "cache", required=True, device="cpu")
        print(before / 1e6, peak.bytes / 1e6, found.made / found.seconds)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--images", default="1000,10000")
    parser.add_argument("--folder", type=Path, help="keep the images here; a temporary folder unless given")
    parser.add_argument("--side", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.side:
        embed(options.folder, options.side)
        return
    counts = [int(word) for word in options.images.split(",")]
    with tempfile.TemporaryDirectory() as temporary:
        folder = options.folder or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        draw_images(folder, max(counts))
        module = timm.create_model(BACKBONE.removeprefix("timm/"), num_classes=0)
        safetensors.torch.save_file(module.state_dict(), folder / "w.safetensors")
        peaks = {}
        for count in counts:
            command = [sys.executable, __file__, "--folder", str(folder), "--side", str(count)]
            output = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout
            before, peaks[count], rate = (float(number) for number in output.split())
            print(f"{count:7} images: {before:.0f} MB before, {peaks[count]:.0f} MB at the peak ({rate:.0f} images/s)")
    if len(counts) > 1:
        per_image = 1e3 * (peaks[counts[-1]] - peaks[counts[0]]) / (counts[-1] - counts[0])
        print(f"per image: {per_image:.2f} kB (an image as the network sees it has {4e-3 * 3 * 224 * 224:.0f} kB)")


if __name__ == "__main__":
    torch.manual_seed(0)
    main()
