"""Names on a map do not cover each other, and neighbours differ in colour."""

from __future__ import annotations

import itertools

import numpy as np

from qurate.report.labels import place_labels, spread_colors


def test_crowded_names_are_pushed_apart_within_the_square() -> None:
    anchors = np.random.default_rng(0).normal(200, 30, (31, 2))
    boxes = place_labels(anchors, [60.0] * 31, 12.0, 400.0)
    for (x1, y1, w1), (x2, y2, w2) in itertools.combinations(boxes, 2):
        assert abs((x1 + w1 / 2) - (x2 + w2 / 2)) >= 60 - 1e-6 or abs(y1 - y2) >= 12 - 1e-6
    assert all(x >= 0 and x + w <= 400 and 0 <= y <= 388 for x, y, w in boxes)


def test_a_name_with_room_stays_where_it_belongs() -> None:
    boxes = place_labels(np.array([[100.0, 100.0], [300.0, 300.0]]), [40.0, 20.0], 12.0, 400.0)
    assert boxes == [(80.0, 94.0, 40.0), (290.0, 294.0, 20.0)]


def test_names_on_one_spot_end_apart() -> None:
    (_, first, _), (_, second, _) = place_labels(np.full((2, 2), 50.0), [30.0, 30.0], 12.0, 400.0)
    assert abs(first - second) >= 12


def test_eight_classes_get_eight_colours_and_more_share_with_the_farthest() -> None:
    line = np.stack([np.arange(9.0), np.zeros(9)], axis=1)
    colors = spread_colors([line, line], 8)
    assert sorted(colors[:8]) == list(range(8))
    assert colors[8] == colors[0]
