"""predictions.csv: a row for every image, made in a time that grows with their number alone."""

from __future__ import annotations

import math
import time

from qurate.active.answers import Answer
from qurate.runs.predictions import Row, prediction_table


def test_readable_images_come_first_and_answers_stand_beside_them() -> None:
    rows: dict[str, Row] = {
        "broken.png": ("", math.nan, math.nan, "cut off"),
        "b.png": ("pen", 0.5, 0.7, ""),
        "a.png": ("cup", 0.9, 0.8, ""),
    }
    table = prediction_table(rows, ["a.png", "b.png"], ())
    assert table["file"].tolist() == ["a.png", "b.png", "broken.png"]
    assert list(table) == ["file", "label", "probability", "known", "problem"]
    answered = prediction_table(
        rows, ["a.png", "b.png"], [Answer("1", "now", "b.png", "label", "cup", "pen", "random")]
    )
    assert answered["answer"].tolist() == ["", "label", ""]
    assert answered["answer_label"].tolist() == ["", "cup", ""]


def test_many_images_take_no_longer_each_than_few() -> None:
    def seconds(count: int) -> float:
        rows: dict[str, Row] = {f"{number}.png": ("cup", 0.5, 0.5, "") for number in range(count)}
        readable = list(rows)[: count // 2]
        began = time.process_time()
        prediction_table(rows, readable, ())
        return time.process_time() - began

    seconds(100)  # pandas is loaded
    assert seconds(16_000) < 1.0, "a set for every row took 12 seconds"
