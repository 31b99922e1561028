"""Suites of a few images, as the public ones lie on disk and as your own do."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from PIL import Image

from qurate.data.suites import Suite, load_suite

LISTED = 8
"""Images of each class in a domain."""
CLASSES = ("cup", "pen")


def make_images(folder: Path, light: int, count: int = LISTED) -> None:
    rng = np.random.default_rng(light)
    for label, name in enumerate(CLASSES):
        (folder / name).mkdir(parents=True, exist_ok=True)
        for i in range(count):
            pixels = rng.integers(0, 60, (16, 16, 3)) + light
            pixels[..., label] += 120
            Image.fromarray(pixels.clip(0, 255).astype(np.uint8)).save(folder / name / f"{i}.png")


def make_listed(
    root: Path,
    *,
    real_folder: str = "Real World",
    classes: int = 2,
    whole_classes: int = 0,
    images: int = 2 * LISTED,
    lists: bool = True,
) -> Suite:
    """Two domains with the lists of the MME reference code, validation inside the unlabelled list as in those."""
    make_images(root / "Art", 0)
    make_images(root / real_folder, 50)
    (root / "splits").mkdir(exist_ok=True)

    def write(name: str, domain: str, numbers: range) -> None:
        lines = [f"{domain}/{c}/{i}.png {k}\n" for k, c in enumerate(CLASSES) for i in numbers]
        (root / "splits" / name).write_text("".join(lines))

    if lists:
        for domain in ("Art", "Real"):
            write(f"labeled_source_images_{domain}.txt", domain, range(LISTED))
            for shots in (1, 3):
                write(f"labeled_target_images_{domain}_{shots}.txt", domain, range(shots))
                write(f"unlabeled_target_images_{domain}_{shots}.txt", domain, range(shots, LISTED))
            write(f"validation_target_images_{domain}_3.txt", domain, range(5, 6))
    text = f"""
title = "Tiny"
classes = {classes}
whole_classes = {whole_classes}
backbone = "timm/test_resnet"
lists = ["splits"]
published = "here"
scenarios = ["Art:Real"]
[domains.Art]
images = {images}
[domains.Real]
folders = ["Real World", "Real"]
"""
    (root / "tiny.toml").write_text(text)
    return load_suite(str(root / "tiny.toml"))


def make_own(root: Path) -> Suite:
    """One's own suite: two folders of class folders."""
    make_images(root / "studio", 0)
    make_images(root / "photos" / "phone", 50)
    text = """
title = "Ours"
classes = 2
backbone = "timm/test_resnet"
scenarios = ["studio:phone"]
[domains.studio]
images = 16
[domains.phone]
folders = ["photos/phone"]
"""
    (root / "ours.toml").write_text(text)
    return load_suite(str(root / "ours.toml"))
