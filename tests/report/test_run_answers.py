"""What answers changed, on the page and in its table."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from tests.report.run_pages import written
from tests.report.run_runs import TOLD, corrected, finished_run

from qurate.calibration import Calibration
from qurate.report.run_page import metrics_table
from qurate.report.run_text import answers_in_words

WENT_ON = "This run goes on from run <1> and repeats neither."


def test_a_run_without_answers_says_nothing_of_them(tmp_path: Path) -> None:
    page = written(finished_run(tmp_path), tmp_path)
    assert "answers" not in page.text
    assert not page.all("a", href="#answers")
    assert not metrics_table(finished_run(tmp_path / "again"))["what"].str.startswith("answers").any()


def test_the_page_says_what_was_answered_and_what_it_is_worth(tmp_path: Path) -> None:
    record = finished_run(tmp_path, comparison=None, no_comparison=WENT_ON, answers=corrected(tmp_path))
    page = written(record, tmp_path)
    said = page.said("answers")
    for words in (
        "People answered about 8 images: 5 got a class and joined the labelled images, 2 are of no class, 1 is not",
        "The 3 without a class left the unlabelled images",
        "4 answers besides, from which the previous run had learned",
        "had been right on 3 of 6 images of which that is known (50 %). 3 of them were not drawn at random, so",
        "drawn at random it had been right on 2 of 3 (67 %), 95 % interval 21 % to 94 %",
        "If they are of one batch of questions, and all of it was answered, that is an honest estimate",
        "gives the class that it was told to 4 of 5. It has learned from these images, so that is no accuracy.",
        "Of the 27 pseudo-labels that the previous run trusted, people confirmed 3 and rejected 2.",
        "The prediction changed for 7 of 28 images without an answer (25 %).",
        "pen was trusted as mug 0_0.png cannot be read none of the classes was trusted as pen b.png",
    ):
        assert words in said
    assert '<tr><th scope="row">pen</th><td>mug</td><td>2</td></tr>' in page.html
    said = page.said("outcome")
    assert said.startswith("The model has learned from 8 answers; whether it is better is not clear")
    assert WENT_ON in said
    assert page.all("a", href="#answers")


def test_answers_of_one_kind_and_none_at_random() -> None:
    told = replace(TOLD, labeled=1, none=0, wrong=0, earlier=0, judged=1, right=0, right_now=1, random=0)
    said = " ".join(answers_in_words(told))
    assert said.startswith("People answered about 1 image: 1 got a class and joined the labelled images. The model")
    assert "None of them was drawn at random, so they do not tell how often that model is right" in said
    assert "interval" not in said
    all_random = replace(TOLD, random=6, random_right=3)
    assert "not drawn" not in " ".join(answers_in_words(all_random)), "then it is an honest sample"


@pytest.mark.parametrize(
    ("calibration", "words"),
    [
        (
            Calibration(2.5, "the run before"),
            "divided by 2.50, such that it is as sure, on average, as the run before",
        ),
        (Calibration(), "not calibrated"),
    ],
)
def test_it_is_said_to_be_as_sure_as_the_run_before(calibration: Calibration, words: str, tmp_path: Path) -> None:
    record = finished_run(tmp_path, comparison=None, no_comparison=WENT_ON, answers=corrected(tmp_path))
    page = written(replace(record, calibration=calibration), tmp_path)
    assert words in page.said("sure")


def test_the_numbers_are_in_the_table(tmp_path: Path) -> None:
    table = metrics_table(finished_run(tmp_path, answers=corrected(tmp_path))).set_index("what")["value"]
    assert table["answers_labeled"] == 5
    assert (table["answers_judged"], table["answers_right"], table["answers_right_now"]) == (6, 3, 4)
    assert (table["answers_random_low"], table["answers_random_high"]) == (0.208, 0.939)
    assert (table["answers_rejected"], table["answers_changed"]) == (2, 7)
