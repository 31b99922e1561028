"""How long a run will take."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from tests.own_images import BACKBONE, make_folders, save_weights, small_config

from qurate.data.own_images import read_parts
from qurate.embedding.backbone import freeze_backbone
from qurate.expectation import expect, say_time


def test_time_is_expected_whatever_is_unreadable(tmp_path: Path) -> None:
    place = make_folders(tmp_path)
    for file in place["source"].rglob("*.png"):
        file.write_bytes(file.read_bytes()[:-60])
    frozen = freeze_backbone(BACKBONE, save_weights(tmp_path / "w.safetensors"))
    split = read_parts(place["source"], place["labeled"], place["unlabeled"], cache=tmp_path / "cache").split
    state = torch.get_rng_state()
    short, long = (expect(split, small_config(), frozen, folds, tmp_path / "cache") for folds in (0, 50))
    assert 0 < short < long
    assert torch.equal(torch.get_rng_state(), state)


@pytest.mark.parametrize(
    ("seconds", "said"), [(3, "about 10 seconds"), (42, "about 40 seconds"), (400, "about 7 minutes"), (9e3, "2 hours")]
)
def test_times_are_said_roughly(seconds: float, said: str) -> None:
    assert said in say_time(seconds)
