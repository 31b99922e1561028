from __future__ import annotations

import base64
import io
from pathlib import Path

import numpy as np
from PIL import Image

from qurate.report.run_page import SIDE, Thumbnails


def test_thumbnails_are_small_and_stop_at_the_budget(tmp_path: Path) -> None:
    noise = np.random.default_rng(0).integers(0, 255, (900, 1200, 3), dtype=np.uint8)
    Image.fromarray(noise).save(tmp_path / "a.png")
    one = Thumbnails().of(tmp_path / "a.png", "noise")
    assert 0 < len(one.uri) < 40_000
    shown = Image.open(io.BytesIO(base64.b64decode(one.uri.partition(",")[2])))
    assert shown.size == (SIDE, SIDE * 3 // 4)
    thumbnails = Thumbnails(budget=int(2.5 * len(one.uri)))
    made = [thumbnails.of(tmp_path / "a.png", "noise") for _ in range(4)]
    assert [bool(image.uri) for image in made] == [True, True, False, False]
    assert made[-1].alt == "noise: left out to keep the page small"
