"""Small folders of your own images, and a tiny backbone, that several tests share."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import safetensors.torch
import timm
from PIL import Image

from qurate.config import DQNConfig, RunConfig
from qurate.presets import make_config
from qurate.runtime.randomness import seeded

BACKBONE = "timm/test_resnet"
COLORS = {"été": (200, 60, 60), "green tea": (60, 200, 60), "blue": (60, 60, 200)}
"""Class names with a space and beyond ASCII."""


def paint(path: Path, color: tuple[int, int, int], *, seed: int, dark: bool = False) -> None:
    """A noisy image of one colour."""
    noise = np.random.default_rng(seed).normal(0, 40, (24, 24, 3))
    pixels = np.clip(np.array(color) * (0.5 if dark else 1.0) + noise, 0, 255).astype(np.uint8)
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(pixels).save(path)


def make_folders(root: Path, *, shots: int = 3, unlabeled: int = 5) -> dict[str, Path]:
    """Three folders: a bright source, a dark target with a few labels, and the rest of it nested and flat."""
    for i, (name, color) in enumerate(COLORS.items()):
        for j in range(6):
            paint(root / "source" / name / f"{j}.png", color, seed=100 * i + j)
        for j in range(shots):
            paint(root / "labeled" / name / f"photo {j}.jpg", color, seed=1000 + 100 * i + j, dark=True)
        for j in range(unlabeled):
            place = root / "unlabeled" / ("deep/er" if j % 2 else "")
            paint(place / f"{i}-{j}.png", color, seed=2000 + 100 * i + j, dark=True)
    return {name: root / name for name in ("source", "labeled", "unlabeled")}


def save_weights(path: Path) -> str:
    """Random weights of the tiny backbone, in a file."""
    with seeded(0):
        safetensors.torch.save_file(timm.create_model("test_resnet", num_classes=0).state_dict(), path)
    return str(path)


def small_config(selector: str = "dqn", **arguments: Any) -> RunConfig:
    """A run of seconds."""
    config = make_config(selector=selector, steps=15, rounds=2, device="cpu", **arguments)
    training = replace(config.training, batch_source=6, batch_target=6, batch_unlabeled=8)
    selection = replace(config.selection, round_steps=5)
    if isinstance(chosen := selection.selector, DQNConfig):
        episode = replace(chosen.episode, actions=6, candidates=6, entropy_samples=5)
        selection = replace(selection, selector=replace(chosen, episode=episode))
    return replace(config, network=replace(config.network, features=16), training=training, selection=selection)
