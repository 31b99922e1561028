"""Files of answers, as people give them."""

from __future__ import annotations

from pathlib import Path

import pytest

from qurate.active.answers import AnswerLog, read_answers
from qurate.errors import DataError
from qurate.runtime.tables import TableError


def log_of(path: Path, **labels: str) -> AnswerLog:
    log = AnswerLog(path)
    for file, label in labels.items():
        log.add([{"file": file, "answer": "label", "label": label, "predicted": "x", "asked": "margin"}])
    return log


def test_only_answers_that_count_are_given(tmp_path: Path) -> None:
    log = log_of(tmp_path / "labels.csv", a="cat", b="dog")
    log.undo(log.rows()[0].id)
    found = read_answers(tmp_path / "labels.csv")
    assert found.current == {"b": log.rows()[1]}
    assert found.damaged == 0


def test_rows_of_a_table_that_have_a_label_are_answers(tmp_path: Path) -> None:
    path = tmp_path / "table.csv"
    path.write_text("asker,file,label,predicted\nrandom,a.png,cat,dog\nmargin,b.png,,dog\nmargin,'=c,'-d,dog\n")
    rows = read_answers(path).current
    said = {file: (row.answer, row.label, row.predicted, row.asked) for file, row in rows.items()}
    assert said == {"a.png": ("label", "cat", "dog", "random"), "=c": ("label", "-d", "dog", "margin")}
    path.write_text("file,label\na.png,cat \nb.png, \n")  # blanks are no class, and no part of one
    assert list(read_answers(path).current) == ["a.png"]
    assert read_answers(path).current["a.png"][3:] == ("label", "cat", "", "")
    AnswerLog(tmp_path / "labels.csv").keep(read_answers(path).current.values())
    assert read_answers(tmp_path / "labels.csv").current == read_answers(path).current


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ("", "holds none that counts"),
        ("file,label\na.png,\n", "holds none that counts"),
        ("no,table\nof,ours\n", "holds none that counts. 2 rows cannot be understood"),
    ],
)
def test_a_file_without_answers_says_so(content: str, says: str, tmp_path: Path) -> None:
    (tmp_path / "l.csv").write_text(content)
    with pytest.raises(DataError, match=says):
        read_answers(tmp_path / "l.csv")


def test_a_broken_table_is_told_and_a_file_that_is_not_there(tmp_path: Path) -> None:
    (tmp_path / "l.csv").write_text("file,label\na.png\n")
    with pytest.raises(TableError, match="row 1 has 1 field"):
        read_answers(tmp_path / "l.csv")
    with pytest.raises(DataError, match="cannot be read"):
        read_answers(tmp_path / "absent.csv")
    with pytest.raises(DataError, match="cannot be read"):
        read_answers(tmp_path)


def test_the_fingerprint_is_of_what_is_said_and_not_of_when(tmp_path: Path) -> None:
    first = read_answers(log_of(tmp_path / "1.csv", a="cat", b="dog").path)
    second = read_answers(log_of(tmp_path / "2.csv", b="dog", a="cat").path)
    third = read_answers(log_of(tmp_path / "3.csv", a="cat", b="cat").path)
    assert first.fingerprint == second.fingerprint
    assert first.fingerprint["answers"] == 2
    assert first.fingerprint != third.fingerprint


def test_of_two_answers_about_an_image_the_later_file_counts(tmp_path: Path) -> None:
    earlier = read_answers(log_of(tmp_path / "1.csv", a="cat", b="dog").path)
    later = read_answers(log_of(tmp_path / "2.csv", a="pig").path)
    both = later.after(earlier).current
    assert {file: row.label for file, row in both.items()} == {"b": "dog", "a": "pig"}
