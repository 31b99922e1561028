"""Write two small domains as image files to try the commands on: typeset and handwritten digits. No download.

`python examples/digit_images.py digits` writes typeset/ (the labelled source), handwritten-labelled/ (a few labelled
handwritten digits), handwritten/ (the rest, in one folder) and answers/ (the rest again, by class: for
`qurate evaluate` only).
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
from PIL import Image
from sklearn.datasets import load_digits

import qurate

SIZE = 64
"""Side of an image in pixels; the digits themselves are 8 x 8."""


def save(pixels: np.ndarray, path: Path) -> None:
    """Write an 8 x 8 image with values in [0, 1] as a larger PNG."""
    path.parent.mkdir(parents=True, exist_ok=True)
    small = Image.fromarray((255 * pixels).astype(np.uint8))
    small.resize((SIZE, SIZE), Image.Resampling.BICUBIC).convert("RGB").save(path)


def write_source(root: Path, per_class: int) -> None:
    """Typeset digits in class folders."""
    source = qurate.digits_split(shots=1, seed=0, source_per_class=per_class).source
    for i, (image, label) in enumerate(zip(source.inputs.numpy(), source.labels.tolist(), strict=True)):
        save(image[0], root / "typeset" / str(label) / f"{i:04}.png")


def write_target(root: Path, shots: int, unlabeled: int) -> None:
    """Handwritten digits: a few labelled per class, the others without their labels."""
    digits = load_digits()
    order = np.random.default_rng(0).permutation(len(digits.target))
    seen = [0] * 10
    for i in order:
        image, label = digits.images[i] / 16, int(digits.target[i])
        seen[label] += 1
        if seen[label] <= shots:
            save(image, root / "handwritten-labelled" / str(label) / f"{i:04}.png")
        elif seen[label] <= shots + unlabeled:
            save(image, root / "handwritten" / f"{i:04}.png")
            save(image, root / "answers" / str(label) / f"{i:04}.png")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path, help="folder to write")
    parser.add_argument("--source", type=int, default=40, help="typeset images per class")
    parser.add_argument("--shots", type=int, default=5, help="labelled handwritten images per class")
    parser.add_argument("--unlabeled", type=int, default=50, help="unlabelled handwritten images per class")
    options = parser.parse_args()
    write_source(options.folder, options.source)
    write_target(options.folder, options.shots, options.unlabeled)
    print(f"{sum(1 for _ in options.folder.rglob('*.png'))} images written to {options.folder}")


if __name__ == "__main__":
    main()
