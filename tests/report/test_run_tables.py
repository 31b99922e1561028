"""Tables of a run against plain loops: classes that moved, predictions to accept; and what the page says of them."""

from __future__ import annotations

import dataclasses
import math
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.report.run_pages import PARTS, written
from tests.report.run_runs import cluttered_run, finished_run
from tests.report.test_run_page import page_rows

from qurate.calibration import Calibration
from qurate.report.run_page import GALLERY, metrics_table
from qurate.report.run_tables import ACCEPT_FROM, MovedClass, acceptance_table, moved_classes, predicted
from qurate.report.run_text import WARNINGS, class_warnings, flagged_in_words
from qurate.run_results import FlaggedImages, RunRecord

CLASSES = ("a", "b", "c")


def moved_by_hand(adapted: list[str], baseline: list[str]) -> dict[str, tuple[int, int]]:
    """McNemar's test of each class, image by image."""
    found = {}
    for label in CLASSES:
        gained = lost = before = now = 0
        for mine, other in zip(adapted, baseline, strict=True):
            before += other == label
            now += mine == label
            gained += mine == label != other
            lost += other == label != mine
        if abs(gained - lost) > 2.576 * math.sqrt(gained + lost) and (now < before / 2 or now > 2 * before):
            found[label] = (before, now)
    return found


@given(st.integers(0, 200), st.floats(0, 1), st.floats(0, 1), st.integers(0, 1000))
def test_the_classes_that_moved_are_those_of_a_plain_loop(images: int, left: float, joined: float, seed: int) -> None:
    rng = np.random.default_rng(seed)
    baseline = rng.choice(CLASSES, images).tolist()
    adapted = [
        "b" if label == "a" and rng.uniform() < left else "a" if rng.uniform() < joined else label for label in baseline
    ]
    found = moved_classes(adapted, baseline, CLASSES)
    assert {each.label: (each.before, each.now) for each in found} == moved_by_hand(adapted, baseline)
    sizes = [abs(each.now - each.before) for each in found]
    assert sizes == sorted(sizes, reverse=True)


@pytest.mark.parametrize(
    ("before", "now", "moved"),
    [
        (120, 4, True),
        (120, 61, False),  # not more than half
        (120, 59, True),
        (7, 0, True),
        (6, 0, False),  # chance: 6 is below 2.576 times the square root of 6
        (0, 7, True),
        (0, 6, False),
        (10, 20, False),
        (10, 148, True),
    ],
)
def test_a_class_that_only_loses_or_gains_moves_by_these_numbers(before: int, now: int, moved: bool) -> None:
    baseline = ["a"] * before + ["b"] * 1000
    adapted = ["a"] * now + ["b"] * (1000 + before - now)
    assert moved_classes(adapted, baseline, CLASSES) == ([MovedClass("a", before, now)] if moved else [])


def test_images_that_are_exchanged_count_as_noise() -> None:
    """20 fewer of 30, but 200 gained or lost on the way: that can be chance."""
    baseline = ["a"] * 110 + ["b"] * 490
    adapted = ["b"] * 110 + ["a"] * 90 + ["b"] * 400
    assert moved_classes(adapted, baseline, CLASSES) == []
    assert moved_classes(["a"] * 10 + ["b"] * 590, ["a"] * 30 + ["b"] * 570, CLASSES) == [MovedClass("a", 30, 10)]


def with_classes(record: RunRecord, adapted: list[str], baseline: list[str]) -> RunRecord:
    files = [f"{i}.png" for i in range(len(adapted))]
    table = pd.DataFrame({"file": files, "label": adapted, "probability": 0.8, "baseline": baseline})
    return dataclasses.replace(record, predictions=table, classes=tuple(dict.fromkeys(baseline)))


def test_warnings_say_what_moved_and_what_to_do(tmp_path: Path) -> None:
    record = finished_run(tmp_path)
    assert class_warnings(record) == []  # nothing to compare with
    said = class_warnings(with_classes(record, ["mug"] * 4 + ["pen"] * 416, ["mug"] * 120 + ["pen"] * 300))
    assert said[0] == "'mug' fell from 120 to 4 predictions by adaptation, compared with plain training (S+T)."
    assert said[-1].startswith("That is more than chance explains. Look at the images, label a few more of it")
    assert "qurate suggest" in said[-1]
    assert "folder baseline" in said[-1]
    assert len(said) == 2
    page = written(with_classes(record, ["mug"] * 4 + ["pen"] * 416, ["mug"] * 120 + ["pen"] * 300), tmp_path)
    assert "<code>qurate suggest</code>" in page.html
    grown = class_warnings(with_classes(record, ["mug"] * 90 + ["pen"] * 330, ["mug"] * 10 + ["pen"] * 410))
    assert grown[0].startswith("'mug' grew from 10 to 90 predictions")


def test_a_run_in_which_all_moved_says_so_in_few_lines(tmp_path: Path) -> None:
    baseline = [f"class {k}" for k in range(10) for _ in range(50 + k)] + ["rest"] * 5000
    said = class_warnings(with_classes(finished_run(tmp_path), ["rest"] * len(baseline), baseline))
    assert len(said) == WARNINGS + 2
    assert said[0].startswith("'class 9' fell from 59 to no predictions")
    assert said[WARNINGS] == "5 more classes moved as well; all are marked in the table of classes."


def test_flagged_images_do_not_move_a_class(tmp_path: Path) -> None:
    record = with_classes(finished_run(tmp_path), ["mug"] * 4 + ["pen"] * 416, ["mug"] * 120 + ["pen"] * 300)
    flagged = np.arange(420) < 119
    assert class_warnings(dataclasses.replace(record, predictions=record.predictions.assign(flagged=flagged))) == []


def accepted_by_hand(record: RunRecord) -> list[tuple[float, int, float, int, float, float]]:
    found = []
    for least in ACCEPT_FROM:
        sure, n, right = [], 0, 0
        for row in predicted(record).to_dict("records"):
            if row["probability"] >= least and not row["flagged"]:
                sure.append(row["probability"])
        for row in record.held_out.to_dict("records"):
            if row["probability"] >= least:
                n += 1
                right += bool(row["right"])
        low = high = math.nan
        if n >= 5:  # the roots of (p - share)^2 = z^2 p (1 - p) / n
            z, share = 1.959964, right / n
            a, b, c = 1 + z * z / n, -2 * share - z * z / n, share * share
            root = math.sqrt(max(0.0, b * b - 4 * a * c))
            low, high = (-b - root) / (2 * a), (-b + root) / (2 * a)
        found.append((least, len(sure), sum(sure) / len(sure) if sure else math.nan, n, low, high))
    return found


def test_what_can_be_accepted_is_what_a_plain_loop_counts(tmp_path: Path) -> None:
    record = cluttered_run(tmp_path, classes=tuple(f"class {k}" for k in range(9)))
    rows = acceptance_table(record)
    found = [(*dataclasses.astuple(row)[:4], *(row.interval or (math.nan, math.nan))) for row in rows]
    for row, by_hand in zip(found, accepted_by_hand(record), strict=True):
        assert row == pytest.approx(by_hand, abs=1e-5, nan_ok=True)
    assert [row.interval is None for row in rows] == [row.held_out < 5 for row in rows]
    assert rows[-1].interval is None
    images = [row.images for row in rows]
    assert images == sorted(images, reverse=True)
    assert images[0] < len(record.predictions)


@pytest.mark.parametrize("calibration", [Calibration(), Calibration(3.0, "agreement with S+T")])
def test_without_held_out_images_nothing_is_said_of_accepting(tmp_path: Path, calibration: Calibration) -> None:
    record = cluttered_run(tmp_path, calibration=calibration)
    assert acceptance_table(record) == []
    assert "can be accepted" not in written(record, tmp_path).said("sure")


def test_the_page_says_how_many_can_be_accepted(tmp_path: Path) -> None:
    record = cluttered_run(tmp_path)
    page = written(record, tmp_path)
    said, row = page.said("sure"), acceptance_table(record)[2]
    assert row.interval is not None
    low, high = row.interval
    cells = f"80 % {row.images} {row.right * 100:.0f} % {low * 100:.0f} to {high * 100:.0f} % {row.held_out} "
    assert cells in said
    assert "--precision 0.95" in said


def test_the_page_shows_what_fits_no_class_worst_first(tmp_path: Path) -> None:
    record = cluttered_run(tmp_path, classes=tuple(f"class {k}" for k in range(15)))
    page = written(record, tmp_path)
    parts = tuple(section["id"] for section in page.all("section"))
    assert parts == ("outcome", "unknown", *PARTS[1:])
    assert {"href": "#unknown"} in page.all("a")
    said = page.said("unknown")
    assert all(sentence.replace("\u00a0", " ").replace("`", "") in said for sentence in flagged_in_words(record))
    assert f"{GALLERY} of 30 images are shown" in said
    shown = [image["alt"].split(",")[0] for image in page.all("img") if "none of the classes" in image["alt"]]
    worst = record.predictions[record.predictions["flagged"]].sort_values("known")["file"]
    assert shown == [Path(file).name for file in worst[:GALLERY]]


@pytest.mark.parametrize(
    ("flagged", "words"),
    [
        (
            FlaggedImages(4, 0.1, 93, 0.73, 0.81),
            [
                "4 images of 36 seem to fit none of your classes, compared with 93 labelled images that were held",
                "They were left out of training. Of those flagged, about 1 in 10 does fit one.",
                "In all about 10 of 36 may fit none of your classes; the others cannot be told from images of the",
                "qurate open RUN",
                "qurate adapt --from RUN",
                "remove them from the folder",
            ],
        ),
        (FlaggedImages(1, 0.05, 21, 0.99), ["1 image of 36 seems to fit", "It was left out", "about 1 in 20"]),
        (
            FlaggedImages(0, 0.1, 21, 1.0),
            ["No image was found that fits none", "21 labelled images", "The fewer those are, the further from all"],
        ),
        (
            FlaggedImages(0, 0.1, 30, 0.7, 0.9),
            [
                "Of the unlabelled images about 11 of 36 may fit none of your classes, and at least 4 with a",
                "Which ones cannot be told with 30 labelled images, so none was left out of training.",
                "Answer 'none' about some with `qurate open RUN`",
            ],
        ),
        (FlaggedImages(0, 0.1, 30, 0.8), ["No image was found that fits none"]),
    ],
)
def test_images_of_no_class_are_told_in_words(tmp_path: Path, flagged: FlaggedImages, words: list[str]) -> None:
    record = finished_run(tmp_path, flagged=flagged)
    said = " ".join(flagged_in_words(record)).replace("\u00a0", " ")
    assert all(word in said for word in words), said
    page = written(record, tmp_path)
    assert ("were left out of training" in page.said("unknown").replace("It was", "they were")) == (flagged.flagged > 0)


def test_where_none_can_be_told_the_page_shows_the_images_that_fit_worst(tmp_path: Path) -> None:
    record = cluttered_run(tmp_path)
    record = dataclasses.replace(
        record,
        predictions=record.predictions.assign(flagged=False),
        flagged=FlaggedImages(0, 0.1, 30, 0.7, 0.9),
    )
    page = written(record, tmp_path)
    worst = record.predictions.sort_values("known")["file"]
    shown = [image["alt"].split(",")[0] for image in page.all("img") if "perhaps none of the classes" in image["alt"]]
    assert shown == [Path(file).name for file in worst[:GALLERY]]
    assert "images of your classes are among them too" in page.said("unknown")
    assert "may fit none of the classes" in page.said("outcome")
    clean = dataclasses.replace(record, flagged=FlaggedImages(0, 0.1, 30, 0.8, 1.0))
    assert "The worst first" not in written(clean, tmp_path / "clean").said("unknown")


def test_where_it_was_not_looked_for_nothing_is_said(tmp_path: Path) -> None:
    record = finished_run(tmp_path)
    assert flagged_in_words(record) == ()
    page = written(record, tmp_path)
    assert "none of your classes" not in page.html
    assert "Plain training" not in page.said("classes")
    table = predicted(record)
    assert not table["flagged"].any()
    assert table["known"].isna().all()
    assert (table["baseline"] == "").all()


def test_the_table_of_classes_has_plain_training_and_marks_what_moved(tmp_path: Path) -> None:
    record = cluttered_run(tmp_path)
    page = written(record, tmp_path)
    rows, fits = page_rows(page), record.predictions[~record.predictions["flagged"]]
    counts = {name: fits[name].value_counts() for name in ("baseline", "label")}
    assert rows["pen"][2:4] == [str(counts["baseline"]["pen"]), str(counts["label"]["pen"])]
    assert rows["mug"][2:4] == ["10", "\u25bc 1"]
    assert rows["desk_lamp"][2:4] == ["10", "19"]
    assert "'mug' fell from 10 to 1 prediction by adaptation" in page.said("classes")
    assert "1 class fell or grew by more than chance explains" in page.said("outcome")
    assert page.all("span", role="img", **{"aria-label": "fell"})


def test_flagged_images_are_in_the_metrics(tmp_path: Path) -> None:
    values = metrics_table(cluttered_run(tmp_path)).set_index("what")["value"]
    names = ["flagged_images", "flagged_held_out", "flagged_known_share", "flagged_known_share_highest"]
    assert values[names].tolist() == [6, 60, 0.81, 0.9]
    assert not metrics_table(finished_run(tmp_path / "other"))["what"].str.startswith("flagged").any()
