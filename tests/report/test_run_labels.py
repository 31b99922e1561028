"""Names on a map do not cover each other, and neighbours differ in colour."""

from __future__ import annotations

import itertools

import numpy as np

from qurate.report.run_figures import place_labels, spread_colors


def test_crowded_names_are_pushed_apart_within_the_square() -> None:
    anchors = np.random.default_rng(0).normal(200, 30, (31, 2))
    middles = [middle for middle in place_labels(anchors, [60.0] * 31, 12.0, 400.0) if middle is not None]
    assert len(middles) == 31
    for (x1, y1), (x2, y2) in itertools.combinations(middles, 2):
        assert abs(x1 - x2) >= 59 or abs(y1 - y2) >= 11
    assert all(30 <= x <= 370 and 6 <= y <= 394 for x, y in middles)


def test_names_that_find_no_room_are_left_out() -> None:
    middles = place_labels(np.full((40, 2), 50.0), [60.0] * 40, 12.0, 100.0)
    assert middles[0] is not None
    assert 0 < middles.count(None) < 40


def test_a_name_with_room_stays_where_it_belongs() -> None:
    anchors = np.array([[100.0, 100.0], [300.0, 300.0]])
    assert place_labels(anchors, [40.0, 20.0], 12.0, 400.0) == [(100.0, 100.0), (300.0, 300.0)]


def test_names_on_one_spot_end_apart() -> None:
    first, second = place_labels(np.full((2, 2), 50.0), [30.0, 30.0], 12.0, 400.0)
    assert first is not None
    assert second is not None
    assert abs(first[1] - second[1]) >= 12


def test_eight_classes_get_eight_colours_and_more_share_with_the_farthest() -> None:
    line = np.stack([np.arange(9.0), np.zeros(9)], axis=1)
    colors = spread_colors([line, line], 8)
    assert sorted(colors[:8]) == list(range(8))
    assert colors[8] == colors[0]
