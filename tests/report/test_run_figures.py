from __future__ import annotations

import dataclasses
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from tests.report.run_pages import written
from tests.report.run_runs import finished_run

from qurate.report.run_figures import rounds_figure


@pytest.mark.parametrize("most", [0, 1, 3, 27, 404, 9999])
def test_the_scale_of_the_rounds_is_whole_and_no_bar_is_higher(most: int) -> None:
    drawn = rounds_figure(pd.DataFrame({"round": [1, 2], "positives": [most // 2, most], "new": [most // 2, most]}))
    assert drawn is not None
    ticks = [int(text.replace(",", "")) for text in re.findall(r'class="tick"[^>]*>([^<]+)<', drawn)]
    assert ticks[0] == 0
    assert ticks[-1] >= most
    assert 2 <= len(ticks) <= 6
    assert len(set(np.diff(ticks))) == 1
    tops = [float(y) for y in re.findall(r'class="new"[^>]* y="([^"]+)"', drawn)]
    assert min(tops) >= 24


def test_the_map_names_31_classes_with_eight_colours(tmp_path: Path) -> None:
    names = tuple(f"class_{k}" for k in range(31))
    page = written(finished_run(tmp_path, classes=names), tmp_path)
    maps = page.html.split('class="map"')[1:]
    for drawn in maps:
        shown = re.findall(r'class="name"[^>]*>([^<]+)<', drawn.split("</svg>")[0])
        assert len(shown) > 25
        assert set(shown) <= set(names)
    assert set(re.findall(r"unlabeled (k\d)", page.html)) == {f"k{i}" for i in range(8)}


def test_a_map_of_one_point_or_of_infinite_ones_is_drawn_or_left_out(tmp_path: Path) -> None:
    record = finished_run(tmp_path)
    one = written(dataclasses.replace(record, embedding=record.embedding.iloc[-1:]), tmp_path)
    assert len(one.all("svg", **{"class": "map"})) == 2
    broken = dataclasses.replace(record, embedding=record.embedding.assign(x_after=np.inf))
    assert "nothing to draw" in written(broken, tmp_path).said("map")


def test_a_map_of_a_part_of_the_images_says_how_many_it_shows(tmp_path: Path) -> None:
    record = finished_run(tmp_path)
    assert "are drawn" not in written(record, tmp_path).said("map")
    total = len(record.source) + len(record.labeled) + len(record.predictions)
    some = written(dataclasses.replace(record, embedding=record.embedding.iloc[:7]), tmp_path).said("map")
    assert f"Of {total:,} images, 7 are drawn" in some


@pytest.mark.parametrize("count", [1, 5, 60])
def test_images_that_are_all_the_same_lie_in_one_place(count: int) -> None:
    """In a process of its own, for scikit-learn's t-SNE crashes."""
    code = f"""
import pandas as pd, torch
from qurate.report.run_figures import draw_picture
points = pd.DataFrame({{"file": "a", "part": "source", "label": "x"}}, index=range({count}))
found = draw_picture(points, torch.ones({count}, 64), torch.zeros({count}, 8), seed=0)
print(len(found), found[["x_before", "y_before", "x_after", "y_after"]].abs().to_numpy().max())
"""
    done = subprocess.run([sys.executable, "-W", "error", "-c", code], capture_output=True, text=True, timeout=300)
    assert (done.returncode, done.stdout) == (0, f"{count} 0.0\n"), done.stderr
