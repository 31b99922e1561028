"""Answers that a run is given to learn from: labels.csv of a review, or a table that somebody filled in."""

from __future__ import annotations

import csv
import hashlib
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from qurate.data.places import Place, as_path
from qurate.errors import DataError
from qurate.runs.answers import Answer, current_answers, parse_answers
from qurate.runtime.tables import read_csv, unguard

_ALLOWED = "labels.csv of a run, or a CSV table with the columns file and label, as 'qurate suggest' writes one"


@dataclass(frozen=True, eq=False)
class GivenAnswers:
    """What people said, as a file has it.

    Args:
        path: The file.
        current: The answer that counts for each image, by the name that the file gives it.
        damaged: Rows that could not be understood.
    """

    path: Path
    current: dict[str, Answer]
    damaged: int = 0

    def after(self, earlier: GivenAnswers) -> GivenAnswers:
        """These answers beside earlier ones; of two about one image, this file's counts."""
        before = {file: row for file, row in earlier.current.items() if file not in self.current}
        return GivenAnswers(self.path, {**before, **self.current}, earlier.damaged + self.damaged)

    @property
    def fingerprint(self) -> dict[str, Any]:
        """How many answers count, and a digest of what they say."""
        said = sorted("\0".join((row.file, row.answer, row.label)) for row in self.current.values())
        digest = hashlib.sha256("\n".join(said).encode("utf-8", errors="surrogateescape"))
        return {"answers": len(said), "sha256": digest.hexdigest()}


def read_answers(where: Place) -> GivenAnswers:
    """The answers of a file.

    Args:
        where: labels.csv of a run, or a table with the columns `file` and `label` and perhaps `predicted` and `asker`;
            rows without a label are no answers.

    Raises:
        DataError: If there is none, it is no such file, or holds no answer.
        TableError: If it is a table that cannot be read.
    """
    found = read_given(where)
    if not found.current:
        lost = f" {found.damaged} rows cannot be understood." if found.damaged else ""
        raise DataError(f"labels must be {_ALLOWED}, with answers in it; {found.path} holds none that counts.{lost}")
    return found


def read_given(where: Place) -> GivenAnswers:
    """The answers of a file, which may hold none; see `read_answers`."""
    path = as_path(where, "labels", _ALLOWED)
    try:
        content = path.read_bytes()
    except OSError as error:
        reason = error.strerror or error
        raise DataError(f"labels must be {_ALLOWED}, got {path}: cannot be read ({reason}).") from error
    if _is_table(content):
        return GivenAnswers(path, _of_table(path))
    rows, damaged = parse_answers(content)
    return GivenAnswers(path, current_answers(rows), damaged)


def _is_table(content: bytes) -> bool:
    """Whether the columns are those of a table of suggestions rather than of labels.csv."""
    first = content.decode("utf-8-sig", errors="surrogateescape").partition("\n")[0].rstrip("\r")
    try:
        names = {unguard(name) for name in next(csv.reader([first], strict=True), [])}
    except csv.Error:
        return False
    return {"file", "label"} <= names and "answer" not in names


def _of_table(path: Path) -> dict[str, Answer]:
    """The rows that have a label, as answers."""
    table = read_csv(path)
    when = datetime.fromtimestamp(path.stat().st_mtime, UTC).isoformat(timespec="seconds")
    columns = [table[name] if name in table else [""] * len(table) for name in ("file", "label", "predicted", "asker")]
    found: dict[str, Answer] = {}
    for file, written, predicted, asker in zip(*columns, strict=True):
        label = written.strip()
        if file and label:
            act = hashlib.sha256(f"{file}\0{label}".encode("utf-8", errors="surrogateescape")).hexdigest()[:12]
            found[file] = Answer(act, when, file, "label", label, predicted, asker)
    return found
