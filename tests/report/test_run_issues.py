"""What the page says of labels that may be wrong, and of held-out images that were taken for another class."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
from tests.report.run_pages import written
from tests.report.run_runs import HELPS, UNCLEAR, cluttered_run, finished_run, held_out_images

from qurate.report.next_steps import steps_after
from qurate.report.run_tables import MOST_CONFUSED, confusion_matrix, surest_mistakes
from qurate.run_results import LABEL_ISSUES


def issues_of(files: list[str], parts: list[str]) -> pd.DataFrame:
    rows = [(file, "", part, "mug", "pen", 0.93, 0.01) for file, part in zip(files, parts, strict=True)]
    return pd.DataFrame(rows, columns=LABEL_ISSUES)


def test_labels_to_check_are_shown_with_what_to_do(tmp_path: Path) -> None:
    record = finished_run(tmp_path / "images")
    files = [*record.source["file"], *record.labeled["file"]]
    table = issues_of(files, ["source"] * len(record.source) + ["labeled"] * len(record.labeled))
    page = written(finished_run(tmp_path / "again", label_issues=table), tmp_path)
    said = page.said("labels")
    assert "18 labels of 18 labelled images may be wrong: 12 in the source and 6 in the labelled target." in said
    assert "Not all of them are wrong" in said
    assert "12 of 18 labels are shown" in said
    assert "pen? labelled mug 93 % sure source" in said
    assert f"qurate open {tmp_path / 'run'}" in said
    assert len([image for image in page.all("img") if image["alt"].endswith(", labelled mug, perhaps pen")]) == 12


def test_the_next_steps_name_the_page_where_labels_are_corrected(tmp_path: Path) -> None:
    run, table = tmp_path / "run", issues_of([str(tmp_path / "gone.png")], ["labeled"])
    for comparison in (HELPS, UNCLEAR):
        steps = steps_after(finished_run(tmp_path / comparison.verdict, label_issues=table, comparison=comparison), run)
        assert len(steps) == 2
        (correct,) = (step for step in steps if "labels that may be wrong (under Your labels)" in step.purpose)
        assert correct.words == ("open", str(run))


def test_one_label_and_none(tmp_path: Path) -> None:
    table = issues_of([str(tmp_path / "gone.png")], ["labeled"])
    page = written(finished_run(tmp_path / "a", label_issues=table), tmp_path)
    assert "1 label of 18 labelled images may be wrong: 1 in the labelled target." in page.said("labels")
    page = written(finished_run(tmp_path / "b"), tmp_path)
    assert "No label of the 18 labelled images was found" in page.said("labels")
    assert "label_issues.csv" not in page.said("labels")


def test_the_confusion_matrix_counts_labels_against_predictions(tmp_path: Path) -> None:
    record = cluttered_run(tmp_path / "images")
    found = confusion_matrix(record)
    assert found is not None
    assert found.names == record.classes
    expected = pd.crosstab(record.held_out["label"], record.held_out["predicted"])
    expected = expected.reindex(index=record.classes, columns=record.classes, fill_value=0)
    assert [row[:-1] for row in found.rows] == [tuple(row) for row in expected.to_numpy().tolist()]
    assert {row[-1] for row in found.rows} == {0}
    assert (found.images, found.wrong) == (60, int((~record.held_out["right"]).sum()))
    said = written(record, tmp_path).said("confusion")
    assert "60 labelled target images were held out in turn, and predicted by models that had not learned" in said
    assert f"{found.wrong} predictions are not the label" in said
    assert "another class" not in said


def test_of_many_classes_those_are_shown_that_are_confused_most(tmp_path: Path) -> None:
    classes = tuple(f"class {number:02}" for number in range(20))
    record = finished_run(tmp_path / "images", classes)
    right = np.ones(80, dtype=bool)
    right[[0, 40, 10, 50, 2]] = False  # two images of class 00 and of class 05 twice each, one of class 01
    held_out = held_out_images(record.labeled, np.linspace(0.5, 0.9, 80), right)
    record = finished_run(tmp_path / "again", classes, held_out=held_out)
    found = confusion_matrix(record)
    assert found is not None
    assert len(found.names) <= MOST_CONFUSED
    assert found.names == ("class 00", "class 01", "class 02", "class 05", "class 06")
    assert found.rows[0] == (2, 2, 0, 0, 0, 0)
    assert found.classes == 20
    said = written(record, tmp_path).said("confusion")
    assert "Shown are the 5 of 20 classes that are confused most often." in said


def test_the_surest_mistakes_come_first(tmp_path: Path) -> None:
    record = cluttered_run(tmp_path / "images")
    found = surest_mistakes(record)
    assert not found["right"].any()
    assert found["probability"].is_monotonic_decreasing
    first = found.iloc[0]
    said = written(record, tmp_path).said("confusion")
    assert f"{first['label']} taken for {first['predicted']} {first['probability']:.0%}".replace("%", " %") in said


def test_without_held_out_images_nothing_is_said_of_confusion(tmp_path: Path) -> None:
    page = written(finished_run(tmp_path / "images"), tmp_path)
    assert "confusion" not in page.text
    assert confusion_matrix(finished_run(tmp_path / "again")) is None


def test_without_mistakes_only_that_is_said(tmp_path: Path) -> None:
    record = finished_run(tmp_path / "images")
    held_out = held_out_images(record.labeled, np.full(6, 0.9), np.ones(6, dtype=bool))
    said = written(finished_run(tmp_path / "again", held_out=held_out), tmp_path).said("confusion")
    assert "Every prediction is the label." in said
    assert "surest" not in said
