"""Answers about images of a run: labels.csv, which only grows, tables of answers, and the accuracy they show."""

from __future__ import annotations

import errno
import hashlib
import math
import os
import re
import secrets
import stat
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import takewhile
from pathlib import Path
from typing import Any, Literal, NamedTuple, TypeVar, get_args

import pandas as pd

from qurate.active.label_studio import is_export, read_export
from qurate.data.class_names import NO_CLASS, compose_name
from qurate.errors import DataError, RunError
from qurate.runtime.files import call_within, wait_for_lock
from qurate.runtime.paths import StrPath, as_path, list_some, shorten
from qurate.runtime.tables import decode_text, read_csv, split_header, to_csv, unguard

LABELS_FILE = "labels.csv"
Result = TypeVar("Result")

Kind = Literal["label", "none", "wrong", "undo"]
"""Kind of an answer.

- 'label': the image is of the class in the column of that name.
- 'none': it is of no class, or not fit to learn from.
- 'wrong': it is not of the class in the column `predicted`; its class is not known.
- 'undo': the answer of this id does not count.
"""


class Answer(NamedTuple):
    """A row of labels.csv.

    Args:
        id: Of the act that gave it; answers that were given at once share it, and so does the row that undoes them.
        time: In UTC, ISO 8601.
        file: The image, as predictions.csv names it.
        answer: A `Kind`.
        label: The class; empty unless the answer is 'label'.
        predicted: The prediction of the model; of a pseudo-label that was called wrong, that label.
        asked: Why it was asked about: the name of a query strategy.
        by: Who gave it; empty where nobody said, as in files of version 0.2, which lack the column.
    """

    id: str
    time: str
    file: str
    answer: str
    label: str
    predicted: str
    asked: str
    by: str = ""


class AnswerLog:
    """The answers of a run.

    Args:
        path: The file; made with the first answer.
        patience: Seconds that the disk has to read or write it; None waits for ever.
    """

    def __init__(self, path: Path, patience: float | None = None) -> None:
        self.path, self._patience = path, patience
        self._known = _Known(None, [], 0)

    @property
    def damaged(self) -> int:
        """Rows that could not be understood, as a kill in the middle of writing leaves one."""
        return self._known.damaged

    def rows(self) -> list[Answer]:
        """All rows, in the order in which they were written, whoever wrote them.

        Raises:
            RunError: If the file cannot be read, or not in time.
        """
        self._known = self._ask_disk(self._read, "read")  # in one step, for threads share it
        return self._known.rows

    def current(self) -> dict[str, Answer]:
        """The answer that counts for each file: the last one that was not taken back."""
        return current_answers(self.rows())

    def add(self, answers: Sequence[Mapping[str, str]]) -> str:
        """Write answers that were given at once; they are on the disk when this returns.

        Args:
            answers: The fields file, answer, label, predicted and asked of each, and perhaps by.

        Returns:
            Their id.
        """
        act, now = secrets.token_hex(6), datetime.now(UTC).isoformat(timespec="seconds")
        self._append([Answer(id=act, time=now, **answer) for answer in answers])
        return act

    def keep(self, answers: Iterable[Answer]) -> None:
        """Write answers that were given elsewhere, as they were; those are left out that are known or outdated here."""
        rows, there = self.rows(), self.current()
        known = {(row.id, row.file) for row in rows}
        new = (row for row in answers if (row.id, row.file) not in known)
        self._append([row for row in new if row.file not in there or there[row.file].time <= row.time])

    def undo(self, act: str) -> bool:
        """Take the answers of an id back by adding a row for each; whether there were any that counted."""
        given = [row for row in active_answers(self.rows()) if row.id == act]
        now = datetime.now(UTC).isoformat(timespec="seconds")
        self._append([row._replace(time=now, answer="undo", label="") for row in given])
        return bool(given)

    def _append(self, rows: Sequence[Answer]) -> None:
        if not rows:
            return
        self._ask_disk(lambda: self._write(rows), "written")

    def _ask_disk(self, work: Callable[[], Result], done: str) -> Result:
        try:
            return work() if self._patience is None else call_within(self._patience, work)
        except OSError as error:
            reason = error.strerror or f"the disk does not answer within {self._patience:g} seconds"
            raise RunError(
                f"{self.path}: cannot be {done} ({reason}). Check the disk and the permissions; earlier answers are "
                "kept."
            ) from error

    def _read(self) -> _Known:
        try:  # without waiting for who writes into a pipe
            descriptor = os.open(self.path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0))
        except FileNotFoundError:
            return _Known(None, [], 0)
        try:
            about = _check_regular(descriptor)
            seen = about.st_ino, about.st_size, about.st_mtime_ns
            if seen == self._known.seen:
                return self._known
            with os.fdopen(descriptor, "rb", closefd=False) as file:
                return _Known(seen, *parse_answers(file.read()))
        finally:
            os.close(descriptor)

    def _write(self, rows: Sequence[Answer]) -> None:
        is_new = not self.path.exists()
        with self.path.open("ab+", buffering=0) as file:
            _check_regular(file.fileno())
            with wait_for_lock(file.fileno()):
                header = os.pread(file.fileno(), 200, 0).partition(b"\n")[0].rstrip(b"\r")
                table = pd.DataFrame(rows, columns=list(Answer._fields))
                if header.endswith(b",asked"):  # of version 0.2; all rows of a table have the same columns
                    table = table.drop(columns="by")
                _write_at_end(file.fileno(), to_csv(table))
        if is_new:  # its name must be on the disk too
            folder = os.open(self.path.parent, os.O_RDONLY)
            try:
                os.fsync(folder)
            finally:
                os.close(folder)


class _Known(NamedTuple):
    """What a labels.csv held when its inode, size and time were those that were seen."""

    seen: tuple[int, int, int] | None
    rows: list[Answer]
    damaged: int


def _check_regular(descriptor: int) -> os.stat_result:
    about = os.fstat(descriptor)
    if stat.S_ISDIR(about.st_mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
    if not stat.S_ISREG(about.st_mode):  # a pipe or a device keeps nothing
        raise OSError(errno.EINVAL, "not a regular file")
    return about


def _write_at_end(descriptor: int, content: bytes) -> None:
    """Add a table to the file, without its header unless the file is empty; it is on the disk afterwards."""
    size = os.fstat(descriptor).st_size
    if size:
        content = content.partition(b"\n")[2]
        if os.pread(descriptor, 1, size - 1) != b"\n":  # somebody was killed in the middle of a row
            content = b"\n" + content
    while content:
        content = content[os.write(descriptor, content) :]
    os.fsync(descriptor)


_FIELD = r'"[^"]*+(?:""[^"]*+)*+"|[^",\r\n]*+'
_RECORD = re.compile(rf"(?:{_FIELD})(?:,(?:{_FIELD}))*+(?:\r?\n|\Z)")
_FIELDS = re.compile(rf"(?:^|,)({_FIELD})")


def parse_answers(content: bytes) -> tuple[list[Answer], int]:
    """The rows of a labels.csv, and how many could not be understood.

    A row that was cut off must not cost the rows after it, so each line is tried as the beginning of a row, which goes
    on in the next lines where a name in quotes does.
    """
    text = content.decode("utf-8-sig", errors="surrogateescape")
    place, damaged = 0, 0
    widths = [len(Answer._fields), len(Answer._fields) - 1]  # without `by` in files of version 0.2
    answers = []
    while place < len(text):
        record = _RECORD.match(text, place)
        row = [] if record is None else _split(record[0].rstrip("\r\n"))
        if record is None or len(row) not in widths:  # cut off: the next line begins a row again
            line_end = text.find("\n", place) + 1 or len(text)
            damaged += bool(text[place:line_end].strip())
            place = line_end
            continue
        place = record.end()
        answer = Answer(*map(unguard, row))
        if _is_sound(answer):
            answers.append(answer)
        elif row == list(Answer._fields[: len(row)]):
            widths = [len(row)]
        else:
            damaged += 1
    return answers, damaged


def _split(record: str) -> list[str]:
    """The fields of a sound record."""
    fields = _FIELDS.findall(record)
    return [field[1:-1].replace('""', '"') if field.startswith('"') else field for field in fields]


def _is_sound(row: Answer) -> bool:
    has_label = bool(row.label) == (row.answer == "label")
    return bool(row.id and row.file) and row.answer in get_args(Kind) and has_label


def active_answers(rows: Iterable[Answer]) -> list[Answer]:
    """The answers that were not taken back, in their order."""
    given = list(rows)
    undone = {(row.id, row.file) for row in given if row.answer == "undo"}
    return [row for row in given if row.answer != "undo" and (row.id, row.file) not in undone]


def current_answers(rows: Iterable[Answer]) -> dict[str, Answer]:
    """The last answer of each file that was not taken back, in the order of their giving."""
    found: dict[str, Answer] = {}
    for row in active_answers(rows):
        found.pop(row.file, None)
        found[row.file] = row
    return found


def disagreements(rows: Iterable[Answer]) -> dict[str, dict[str, str]]:
    """Images about which people said different things: the class, or 'none', that each of them named last."""
    said: dict[str, dict[str, str]] = {}
    for row in active_answers(rows):
        if row.answer in ("label", "none"):
            said.setdefault(row.file, {})[row.by] = row.label or NO_CLASS
    return {file: by_name for file, by_name in said.items() if len(set(by_name.values())) > 1}


_ALLOWED = (
    "labels.csv of a run, a CSV table with the columns file and label, as 'qurate suggest' writes one, or an export of "
    "Label Studio as JSON"
)


@dataclass(frozen=True, eq=False)
class AnswersFile:
    """Answers about images, as a file holds them.

    Args:
        path: The file.
        current: The answer that counts for each image, by the name that the file gives it.
        damaged: Rows that could not be understood.
    """

    path: Path
    current: dict[str, Answer]
    damaged: int = 0

    def after(self, earlier: AnswersFile) -> AnswersFile:
        """These answers beside earlier ones; of two about one image, this file's counts."""
        before = {file: row for file, row in earlier.current.items() if file not in self.current}
        return AnswersFile(self.path, {**before, **self.current}, earlier.damaged + self.damaged)

    def start_from(self, base: Path) -> AnswersFile:
        """The same with paths that are relative to a folder; unchanged where that is the current one."""
        if base == Path():
            return self
        rows = [row._replace(file=str(base / row.file)) for row in self.current.values()]
        return AnswersFile(self.path, {row.file: row for row in rows}, self.damaged)

    @property
    def fingerprint(self) -> dict[str, Any]:
        """How many answers count, and a digest of what they say."""
        rows = sorted("\0".join((row.file, row.answer, row.label)) for row in self.current.values())
        digest = hashlib.sha256("\n".join(rows).encode("utf-8", errors="surrogateescape"))
        return {"answers": len(rows), "sha256": digest.hexdigest()}


def read_answers(where: StrPath, *, allow_empty: bool = False) -> AnswersFile:
    """The answers of a file.

    Args:
        where: labels.csv of a run; a table with the columns `file`, `label` and perhaps `predicted`, `query_strategy`,
            in which rows without a label are no answers; or an export of Label Studio as JSON or JSON_MIN.
        allow_empty: Accept a file without an answer.

    Raises:
        DataError: If the file is missing, of another kind, or holds no answer.
        TableError: If it is a table that cannot be read.
    """
    path = as_path(where, "labels", _ALLOWED)
    try:
        content = path.read_bytes()
    except OSError as error:
        reason = error.strerror or error
        raise DataError(f"labels must be {_ALLOWED}, got {path}: cannot be read ({reason}).") from error
    text = decode_text(path, content)
    if is_export(text):
        found = AnswersFile(path, _of_export(path, text))
    elif _is_table(path, text):
        found = AnswersFile(path, _of_table(path))
    else:
        rows, damaged = parse_answers(content)
        if not allow_empty and text.strip() and not rows and "answer" not in (names := split_header(path, text)):
            raise DataError(
                f"labels must be {_ALLOWED}; the columns of {path} are {list_some(names)}. Name them file and label."
            )
        found = AnswersFile(path, current_answers(rows), damaged)
    if not found.current and not allow_empty:
        lost = f" {found.damaged} rows cannot be understood." if found.damaged else ""
        raise DataError(
            f"labels must be {_ALLOWED}, with answers in it; {path} has none.{lost} Fill in the column label, or "
            "answer on the page of 'qurate open'."
        )
    return found


def _is_table(path: Path, text: str) -> bool:
    """Whether the columns are those of a table of suggestions, not those of labels.csv."""
    names = set(map(unguard, split_header(path, text)))
    return {"file", "label"} <= names and "answer" not in names


class _Said(NamedTuple):
    """That an image is of a class, and where that is said, such as 'row 3'."""

    answer: Answer
    position: str


def _of_table(path: Path) -> dict[str, Answer]:
    """The rows that have a label, as answers."""
    table = read_csv(path)
    when = _changed(path)
    names = ("file", "label", "predicted", "query_strategy")
    columns = [table[name] if name in table else [""] * len(table) for name in names]
    said = []
    for number, (file, written, predicted, asked) in enumerate(zip(*columns, strict=True), 1):
        label = compose_name(written.strip())
        if file and label:
            answer = Answer(_act(file, label), when, file, "label", label, predicted, asked)
            said.append(_Said(answer, f"row {number}"))
    return _one_each(path, said)


def _of_export(path: Path, text: str) -> dict[str, Answer]:
    """The choices of an export of Label Studio, as answers."""
    said = []
    for file, label, time, task in read_export(path, text):
        answer = Answer(_act(file, label), _in_utc(time) or _changed(path), file, "label", label, "", "")
        said.append(_Said(answer, f"task {task}"))
    return _one_each(path, said)


def _one_each(path: Path, said: Sequence[_Said]) -> dict[str, Answer]:
    """The answer of each image, of which there must be one."""
    labels: dict[str, dict[str, str]] = {}  # of each image, and where each is said
    for answer, position in said:
        labels.setdefault(os.path.normpath(answer.file), {}).setdefault(answer.label, position)
    for file, places in labels.items():
        if len(places) > 1:
            named = [f"'{shorten(label)}' ({position})" for label, position in places.items()]
            raise DataError(
                f"{path}: '{shorten(file)}' must have one label, got {len(named)} different ones: "
                f"{', '.join(named[:5])}. Keep the right one."
            )
    return {answer.file: answer for answer, _ in said}


def _act(file: str, label: str) -> str:
    return hashlib.sha256(f"{file}\0{label}".encode("utf-8", errors="surrogateescape")).hexdigest()[:12]


def _changed(path: Path) -> str:
    return datetime.fromtimestamp(path.stat().st_mtime, UTC).isoformat(timespec="seconds")


def _in_utc(time: str) -> str:
    """A time as labels.csv has it; empty where it is none."""
    try:
        return datetime.fromisoformat(time).astimezone(UTC).isoformat(timespec="seconds")
    except (ValueError, OverflowError):
        return ""


_Z = 1.959964  # of a normal distribution, for 95 %


class AccuracyEstimate(NamedTuple):
    """Accuracy on a random sample.

    Args:
        images: Images that were given a class or called wrong.
        right: On how many of them the model is right.
        none: Images of the sample that belong to no class; they are not counted.
        low: Lower end of the 95 % interval of the accuracy on all images; 0 where there are none.
        high: Upper end; 1 where there are none.
    """

    images: int
    right: int
    none: int
    low: float
    high: float


def estimate_accuracy(
    order: Iterable[str], answers: Mapping[str, Answer], predicted: Mapping[str, str]
) -> AccuracyEstimate:
    """Count the answers to a random sample, up to the first image that still lacks one.

    Hard images are put off more often than easy ones. So answers behind a gap do not count before it is closed, and
    neither do answers that the sample only happens to share with other questions. An answer that only denies the class
    of another model, or of a pseudo-label, does not tell whether this model is right.

    Args:
        order: All files in a random order; the sample is its beginning.
        answers: The answer that counts for each file.
        predicted: The class that the model predicts for each.
    """
    sample = takewhile(lambda file: is_conclusive(answers.get(file), predicted[file]), order)
    return count_right(answers[file]._replace(predicted=predicted[file]) for file in sample)


def is_conclusive(answer: Answer | None, predicted: str) -> bool:
    """Whether an answer tells if the model is right; one that only denies another class does not."""
    return answer is not None and (answer.answer != "wrong" or answer.predicted == predicted)


def count_right(sample: Iterable[Answer]) -> AccuracyEstimate:
    """Accuracy of the model that was asked, from the answers to images that were drawn at random."""
    kinds = [(answer.answer, answer.label == answer.predicted) for answer in sample]
    judged = [is_right for kind, is_right in kinds if kind != "none"]
    right, total = sum(judged), len(judged)
    return AccuracyEstimate(total, right, len(kinds) - total, *wilson_interval(right, total))


def wilson_interval(right: int, total: int) -> tuple[float, float]:
    """Wilson's 95 % interval of a proportion; it holds for few images too, and where none or all are right.

    Example:
        >>> [round(end, 3) for end in wilson_interval(9, 10)]
        [0.596, 0.982]
    """
    if not total:
        return 0.0, 1.0
    share, square = right / total, _Z**2 / total
    middle = (share + square / 2) / (1 + square)
    half = _Z / (1 + square) * math.sqrt(share * (1 - share) / total + square / (4 * total))
    return min(share, max(0.0, middle - half)), max(share, min(1.0, middle + half))  # but for rounding


def paired_interval(gained: int, lost: int, total: int) -> tuple[float, float]:
    """95 % interval of the difference of two accuracies on the same images, after Bonett and Price (2012).

    Args:
        gained: Images on which only the first model is right.
        lost: Images on which only the second is.
        total: All of them.

    Example:
        >>> [round(end, 3) for end in paired_interval(8, 1, 40)]
        [0.02, 0.313]
    """
    first, second = (gained + 1) / (total + 2), (lost + 1) / (total + 2)
    middle = first - second
    half = _Z * math.sqrt((first + second - middle**2) / (total + 2))
    return max(-1.0, middle - half), min(1.0, middle + half)
