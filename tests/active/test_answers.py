"""Answers: labels.csv that only grows, tables of answers, and the accuracy that a random sample shows."""

from __future__ import annotations

import multiprocessing
import os
import threading
from pathlib import Path
from typing import get_args

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from qurate.active.answers import (
    Answer,
    AnswerLog,
    Kind,
    count_right,
    disagreements,
    estimate_accuracy,
    paired_interval,
    parse_answers,
    read_answers,
    wilson_interval,
)
from qurate.data.class_names import NO_CLASS
from qurate.errors import DataError, RunError
from qurate.runtime.tables import TableError, read_csv

HEADER = ",".join(Answer._fields)


def test_an_image_of_no_class_has_one_name() -> None:
    assert NO_CLASS in get_args(Kind)


def said(file: str, label: str = "mug", answer: str = "label", asked: str = "density") -> dict[str, str]:
    return {"file": file, "answer": answer, "label": label, "predicted": "cup", "asked": asked}


@pytest.fixture
def log(tmp_path: Path) -> AnswerLog:
    return AnswerLog(tmp_path / "labels.csv")


def test_an_answer_is_read_back_by_another_and_is_a_plain_table(log: AnswerLog) -> None:
    names = ["a.png", 'b, "c".png', "=d.png", "'e.png", "ünï/f.png", "g\nh.png"]
    act = log.add([said(name, "=mug") for name in names])
    assert [row.file for row in AnswerLog(log.path).rows()] == names
    assert {row.id for row in log.rows()} == {act}
    assert AnswerLog(log.path).current()["=d.png"].label == "=mug"
    assert read_csv(log.path)["file"].tolist() == names
    assert log.path.read_text(encoding="utf-8").startswith(HEADER + "\n")


def test_the_last_answer_counts_and_undo_brings_back_the_one_before(log: AnswerLog) -> None:
    log.add([said("a", "mug")])
    second = log.add([said("a", "pen"), said("b", "", "none")])
    assert log.current()["a"].label == "pen"
    assert log.undo(second)
    assert log.current().keys() == {"a"}
    assert log.current()["a"].label == "mug"
    assert not log.undo(second), "what was taken back cannot be taken back again"
    assert not log.undo("nobody")
    assert [row.answer for row in log.rows()] == ["label", "label", "none", "undo", "undo"]


def test_nothing_that_was_written_ever_changes(log: AnswerLog) -> None:
    before = b""
    for step in range(4):
        act = log.add([said(f"{step}")])
        if step % 2:
            log.undo(act)
        assert log.path.read_bytes().startswith(before)
        before = log.path.read_bytes()


def test_two_writers_see_each_others_answers(log: AnswerLog) -> None:
    other = AnswerLog(log.path)
    mine = log.add([said("a", "mug")])
    other.add([said("a", "pen")])
    other.add([said("b", "pen")])
    assert log.current()["a"].label == "pen"
    log.undo(mine)
    assert {file: answer.label for file, answer in other.current().items()} == {"a": "pen", "b": "pen"}


def _write_many(path: Path, who: int) -> None:
    log = AnswerLog(path)
    for i in range(40):
        log.add([said(f"{who}-{i}-{j}", "x" * 300) for j in range(3)])


def test_processes_that_write_at_once_lose_nothing(log: AnswerLog) -> None:
    context = multiprocessing.get_context("fork")
    writers = [context.Process(target=_write_many, args=(log.path, who)) for who in range(3)]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()
    assert len(log.current()) == 3 * 40 * 3
    assert log.damaged == 0


@given(st.data())
def test_a_row_that_was_cut_off_costs_no_other_row(data: st.DataObject) -> None:
    first = ["1", "t", 'a,"b".png', "label", "mug", "cup", "random", "Anna"]
    rows = [first, ["2", "t", "c.png", "none", "", "cup", "density", ""]]
    lines = ['1,t,"a,""b"".png",label,mug,cup,random,Anna\n', "2,t,c.png,none,,cup,density,\n"]
    torn = lines[0][: data.draw(st.integers(1, len(lines[0]) - len(",Anna\n")))]
    content = f"{HEADER}\n{lines[0]}{torn}\n{lines[1]}"  # as `add` writes after a kill in the middle of a row
    found, damaged = parse_answers(content.encode())
    assert [list(row) for row in found] == rows
    assert damaged == 1


def test_after_a_torn_row_the_next_answer_stands_on_a_line_of_its_own(log: AnswerLog) -> None:
    log.add([said("a")])
    with log.path.open("ab") as file:
        file.write(b'9,2026-01-01T00:00:00+00:00,"b, and')
    log.add([said("c")])
    assert list(log.current()) == ["a", "c"]
    assert log.damaged == 1


@pytest.mark.parametrize(
    "row",
    [
        "1,t,a,maybe,,cup,density,",
        "1,t,,label,mug,cup,density,",
        ",t,a,label,mug,cup,density,",
        "1,t,a,label,,cup,density,",
    ],
)
def test_a_row_that_says_nothing_is_no_answer(row: str) -> None:
    assert parse_answers(f"{HEADER}\n{row}\n".encode()) == ([], 1)


@given(st.binary(max_size=300) | st.text("a1,\"\\n\\r\\0'=é", max_size=60).map(str.encode))
def test_any_bytes_give_answers_or_are_counted_as_damage(content: bytes) -> None:
    whole = f"{HEADER}\n1,t,a,none,,cup,random,\n".encode()
    parse_answers(content)
    found, _ = parse_answers(whole + content.replace(b'"', b""))
    assert Answer("1", "t", "a", "none", "", "cup", "random") in found


def test_a_file_that_is_not_there_has_no_answers_and_one_that_goes_is_gone(log: AnswerLog) -> None:
    assert log.current() == {}
    log.add([said("a")])
    assert len(log.current()) == 1
    log.path.unlink()
    assert log.current() == {}


def test_a_disk_that_refuses_is_an_error_and_not_a_silence(tmp_path: Path) -> None:
    blocked = tmp_path / "labels.csv"
    blocked.mkdir()
    with pytest.raises(RunError, match="cannot be written"):
        AnswerLog(blocked)._append([Answer("1", "t", "a", "none", "", "cup", "random")])


def test_an_answer_is_synced_before_it_counts_as_given(log: AnswerLog, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: list[int] = []
    real = os.fsync

    def watch(descriptor: int) -> None:
        real(descriptor)
        synced.append(os.fstat(descriptor).st_size)

    monkeypatch.setattr(os, "fsync", watch)
    log.add([said("a")])
    assert log.path.stat().st_size in synced


def test_answers_that_are_brought_along_overrule_neither_later_ones_nor_what_was_taken_back(tmp_path: Path) -> None:
    old, new = AnswerLog(tmp_path / "old.csv"), AnswerLog(tmp_path / "new.csv")
    for file in "abc":
        old.add([said(file, "mug")])
    new.keep(old.rows())
    new.add([said("a", "pen")])
    new.undo(new.current()["b"].id)
    before = len(new.rows())
    new.keep(old.rows())
    assert len(new.rows()) == before, "all of them were known"
    assert {file: row.label for file, row in new.current().items()} == {"c": "mug", "a": "pen"}
    outdated = said("a", "cup")
    new.keep([Answer(id="elsewhere", time="2020-01-01T00:00:00+00:00", **outdated)])
    assert new.current()["a"].label == "pen"
    new.keep([Answer(id="elsewhere", time="2120-01-01T00:00:00+00:00", **outdated)])
    assert new.current()["a"].label == "cup"


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
    path.write_text(
        "query_strategy,file,label,predicted\nrandom,a.png,cat,dog\nmargin,b.png,,dog\nmargin,'=c,'-d,dog\n"
    )
    rows = read_answers(path).current
    said = {file: (row.answer, row.label, row.predicted, row.asked) for file, row in rows.items()}
    assert said == {"a.png": ("label", "cat", "dog", "random"), "=c": ("label", "-d", "dog", "margin")}
    path.write_text("file,label\na.png,cat \nb.png, \n")  # blanks are no class, and no part of one
    assert list(read_answers(path).current) == ["a.png"]
    assert read_answers(path).current["a.png"][3:] == ("label", "cat", "", "", "")
    AnswerLog(tmp_path / "labels.csv").keep(read_answers(path).current.values())
    assert read_answers(tmp_path / "labels.csv").current == read_answers(path).current


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ("", "has none. Fill in the column label"),
        ("file,label\na.png,\n", "has none. Fill in the column label"),
        ("no,table\nof,ours\n", "the columns of .* are 'no', 'table'. Name them file and label"),
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


def answers(**kinds: str) -> dict[str, Answer]:
    return {
        file: Answer("1", "t", file, kind if kind in ("none", "wrong") else "label", kind, "a", "random")
        for file, kind in kinds.items()
    }


def test_the_estimate_stops_at_the_first_gap_and_leaves_out_what_is_no_class() -> None:
    predicted = dict.fromkeys("vwxyz", "a")
    found = estimate_accuracy("vwxyz", answers(v="a", w="none", x="b", z="a"), predicted)
    assert (found.images, found.right, found.none) == (2, 1, 1)
    assert estimate_accuracy("vw", answers(v="wrong", w="a"), predicted)[:2] == (2, 1)
    assert estimate_accuracy("vw", {}, predicted) == (0, 0, 0, 0.0, 1.0)


@given(st.integers(1, 400), st.floats(0, 1))
def test_the_interval_holds_the_share_and_is_the_root_of_its_equation(total: int, share: float) -> None:
    right = round(share * total)
    low, high = wilson_interval(right, total)
    assert 0 <= low <= right / total <= high <= 1
    for end in (low, high):  # |p - x| = z sqrt(x (1 - x) / n), or the end of the scale
        is_root = abs(abs(right / total - end) - 1.959964 * (end * (1 - end) / total) ** 0.5) < 1e-6
        assert is_root or end in (0.0, 1.0)


def test_what_was_predicted_when_it_was_asked_is_what_counts() -> None:
    given = answers(v="a", w="none", x="b", y="wrong", z="a")
    found = count_right(given.values())
    assert (found.images, found.right, found.none) == (4, 2, 1)
    assert (found.low, found.high) == wilson_interval(2, 4)


NAMES = ["a.png", 'b, "c".png', "d\ne.png", '\n"f"\n,g.png', ",h.png", "i\r\nj.png", "'=k.png", "ü\u202e😀.png"]


@pytest.mark.parametrize("label", ["mug", ",mug", 'm\n"u"g'])
def test_acknowledged_rows_count_wherever_another_one_was_cut_off(label: str, tmp_path: Path) -> None:
    whole = AnswerLog(tmp_path / "whole.csv")
    for name in NAMES:
        whole.add([said(name, label)])
    row = AnswerLog(tmp_path / "row.csv")
    row.add([said('x\n"y", z.png', label)])
    last = row.path.read_bytes().partition(b"\n")[2]
    for cut in range(1, len(last) - len(",density\n")):
        log = AnswerLog(tmp_path / "labels.csv")
        log.path.write_bytes(whole.path.read_bytes() + last[:cut])
        log.add([said(f"again/{name}", label) for name in NAMES])
        wanted = [*NAMES, *(f"again/{name}" for name in NAMES)]
        assert [(found.file, found.label) for found in log.rows()] == [(name, label) for name in wanted], last[:cut]
        assert log.damaged


def test_a_label_that_is_not_one_is_refused_with_the_rows(tmp_path: Path) -> None:
    path = tmp_path / "table.csv"
    path.write_text("file,label\na.png,cat\nb.png,cat\n./a.png,dog\na.png,cow\nb.png,cat\n")
    with pytest.raises(
        DataError, match=r"'a.png' must have one label, got 3 .*'cat' \(row 1\), 'dog' \(row 3\), 'cow'"
    ):
        read_answers(path)


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ("file,label\na.png,cat\n".encode("utf-16"), "must be a UTF-8 text file, got UTF-16"),
        (b"file;label\na.png;cat\n", "separated by commas, got semicolons"),
    ],
)
def test_another_encoding_or_separator_is_named(content: bytes, says: str, tmp_path: Path) -> None:
    (tmp_path / "l.csv").write_bytes(content)
    with pytest.raises(TableError, match=says):
        read_answers(tmp_path / "l.csv")


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="there are no pipes here")
def test_a_pipe_or_a_folder_is_neither_waited_for_nor_written_to(tmp_path: Path) -> None:
    for name, make, why in (("pipe", os.mkfifo, "not a regular file"), ("folder", os.mkdir, "Is a directory")):
        make(tmp_path / name)
        with pytest.raises(RunError, match=rf"cannot be read \({why}\)"):
            AnswerLog(tmp_path / name).rows()
        with pytest.raises(RunError, match=rf"cannot be written \({why}\)"):
            AnswerLog(tmp_path / name).add([said("a")])


def test_a_disk_that_does_not_answer_is_an_error_in_time(log: AnswerLog, monkeypatch: pytest.MonkeyPatch) -> None:
    log.add([said("a")])
    never = threading.Event()
    monkeypatch.setattr("qurate.active.answers.parse_answers", lambda _: never.wait())
    with pytest.raises(RunError, match=r"labels.csv: cannot be read \(the disk does not answer within 0.1 seconds\)"):
        AnswerLog(log.path, patience=0.1).rows()
    never.set()


@pytest.mark.parametrize("name", ["<script>alert(1)</script>", 'a "quoted", name', "=1+1", "été", "🐈\u200d⬛"])
def test_the_name_of_a_new_class_is_read_as_it_was_written(tmp_path: Path, name: str) -> None:
    log = AnswerLog(tmp_path / "labels.csv")
    log.add([{"file": "a.png", "answer": "label", "label": name, "predicted": "b", "asked": "border"}])
    assert read_answers(tmp_path / "labels.csv").current["a.png"].label == name


@pytest.mark.parametrize(
    ("n", "both", "first", "second"), [(10, 0.6, 0.2, 0.1), (40, 0.7, 0.15, 0.05), (200, 0.8, 0.1, 0.1)]
)
def test_the_paired_interval_holds_the_difference_in_about_95_of_100(
    n: int, both: float, first: float, second: float
) -> None:
    drawn = np.random.default_rng(0).multinomial(
        n, [both, first, second, max(0.0, 1 - both - first - second)], size=2000
    )
    ends = [paired_interval(int(gained), int(lost), n) for _, gained, lost, _ in drawn]
    held = np.mean([low <= first - second <= high for low, high in ends])
    assert 0.93 <= held <= 0.99
    assert paired_interval(0, 0, 5)[0] == -paired_interval(0, 0, 5)[1] < 0


def test_a_file_of_version_0_2_is_read_and_goes_on_without_names(tmp_path: Path) -> None:
    path = tmp_path / "labels.csv"
    old = "id,time,file,answer,label,predicted,asked\n1,t,a.png,label,mug,cup,random\n2,t,b.png,label,cu"
    path.write_text(old)
    log = AnswerLog(path)
    assert [(row.file, row.label, row.by) for row in log.rows()] == [("a.png", "mug", "")]
    assert log.damaged == 1
    log.add([{**said("c.png"), "by": "Anna"}])
    assert [row.file for row in log.rows()] == ["a.png", "c.png"]
    assert {len(line.split(",")) for line in path.read_text().splitlines()} == {7, 5}, (
        "five of the row that was cut off"
    )


def test_a_row_with_a_name_that_was_cut_off_is_not_taken_for_one_without(tmp_path: Path) -> None:
    path = tmp_path / "labels.csv"
    AnswerLog(path).add([{**said("a.png"), "by": "Anna"}])
    path.write_bytes(path.read_bytes() + b"2,t,b.png,label,mug,cup,dens")
    log = AnswerLog(path)
    assert [(row.file, row.by) for row in log.rows()] == [("a.png", "Anna")]
    assert log.damaged == 1


def test_people_disagree_by_what_each_said_last(tmp_path: Path) -> None:
    log = AnswerLog(tmp_path / "labels.csv")
    for file, label, by in (("a", "mug", "Anna"), ("a", "cup", "Ben"), ("b", "mug", "Anna"), ("b", "mug", "Ben")):
        log.add([{**said(file, label), "by": by}])
    log.add([{**said("c", "mug"), "by": "Anna"}])
    act = log.add([{**said("c", "", "none"), "by": "=Ben"}])
    assert disagreements(log.rows()) == {"a": {"Anna": "mug", "Ben": "cup"}, "c": {"Anna": "mug", "=Ben": "none"}}
    log.undo(act)
    log.add([{**said("a", "mug"), "by": "Ben"}])
    assert disagreements(log.rows()) == {}
