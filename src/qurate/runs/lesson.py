"""What people said of the unlabelled images of a run, and what that makes of its split."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import torch
from torch import Tensor

from qurate.data.domains import list_some
from qurate.data.parts import Parts, paths_of
from qurate.data.samples import DataError, Inputs, Split, take
from qurate.runs.answers import Answer
from qurate.runs.given import GivenAnswers
from qurate.runs.previous import PreviousRun, whole_path
from qurate.selection.continuation import Answered, answer

_LEAST_LEFT = 2
"""Unlabelled images that must be left to adapt to."""


@dataclass(frozen=True, eq=False)
class Lesson:
    """Answers about unlabelled images of a run.

    Args:
        indices: Positions in D_u; first the images of which the previous run had learned the same answer.
        answers: The answer to each, with the file as predictions.csv of this run names it.
        labels: The class of each, -1 where it has none, (N_a,) int64.
        earlier: How many of them the previous run had learned from.
        others: Answers about other images, as they were given.
        notes: Sentences on what could not be used.
    """

    indices: Tensor
    answers: tuple[Answer, ...]
    labels: Tensor
    earlier: int = 0
    others: tuple[Answer, ...] = ()
    notes: tuple[str, ...] = ()

    @classmethod
    def none(cls) -> Lesson:
        """That of a run without answers."""
        return cls(torch.empty(0, dtype=torch.int64), (), torch.empty(0, dtype=torch.int64))

    def __len__(self) -> int:
        return len(self.answers)

    @property
    def joined(self) -> int:
        """How many images the new answers add to D_t."""
        return int((self.labels[self.earlier :] >= 0).sum())

    def lines(self, previous: PreviousRun | None) -> list[str]:
        """What was understood, one sentence each."""
        if not len(self):
            return []
        start = "" if previous is None else f" They are about {previous.folder}."
        earlier = f", and {self.earlier} that the run before had learned from" if self.earlier else ""
        new = _rows(len(self) - self.earlier, "answer")
        return [f"{new} to learn from, {self.joined} with a class{earlier}.{start}", *self.notes]

    def tell(self, split: Split) -> Answered:
        """The split with what was said: labelled images have joined D_t, all that were answered have left D_u."""
        if not len(self):
            return Answered(split, torch.arange(len(split.target_unlabeled)), 0)
        return answer(split, self.indices, self.labels)


@dataclass(frozen=True, eq=False)
class Material:
    """What a run works on.

    Args:
        parts: The images that were given, without the unreadable ones.
        whole: The same as the network is given them, before any answer.
        lesson: What people said of them.
    """

    parts: Parts
    whole: Split
    lesson: Lesson

    @cached_property
    def files(self) -> Split:
        """Image files, with what was said."""
        return self.lesson.tell(self.parts.split).split

    @property
    def split(self) -> Split:
        """What training is given."""
        return self.told.split

    @cached_property
    def told(self) -> Answered:
        """What the answers make of the whole."""
        return self.lesson.tell(self.whole)

    @property
    def answered(self) -> Inputs:
        """The images that people answered about, in the order of the lesson."""
        return take(self.whole.target_unlabeled.inputs, self.lesson.indices)


def make_lesson(given: GivenAnswers, parts: Parts, previous: PreviousRun | None) -> Lesson:
    """Find the images that answers are about.

    Args:
        given: The answers.
        parts: The images of the run.
        previous: The run that they are about, if any.

    Raises:
        DataError: If none of the answers is new and of use, or too few unlabelled images would be left.
    """
    files, classes = paths_of(parts.split.target_unlabeled), parts.split.classes
    place = {whole_path(file): i for i, file in enumerate(files)}
    found: dict[int, Answer] = {}
    for row in given.current.values():
        if (i := place.get(whole_path(row.file), -1)) >= 0:
            found[i] = _named(row, files[i], previous)
    order = sorted(found, key=lambda i: not _was_learned(found[i], previous))  # stable: otherwise as they were given
    earlier = sum(_was_learned(row, previous) for row in found.values())
    answers = tuple(found[i] for i in order)
    number = {name: k for k, name in enumerate(classes)}
    lesson = Lesson(
        torch.tensor(order, dtype=torch.int64),
        answers,
        torch.tensor([number.get(row.label, -1) for row in answers], dtype=torch.int64),
        earlier,
        tuple(row for row in given.current.values() if whole_path(row.file) not in place),
        tuple(_notes(given, answers, classes, len(given.current) - len(found))),
    )
    _check(lesson, given, len(files), previous)
    return lesson


def _named(row: Answer, file: Path, previous: PreviousRun | None) -> Answer:
    """An answer under the name that its image has in this run, with what the previous model said of it."""
    said = row.predicted
    if not said and previous is not None:
        said = previous.predicted.get(whole_path(file), "")
    return row._replace(file=str(file), predicted=said)


def _was_learned(row: Answer, previous: PreviousRun | None) -> bool:
    return previous is not None and previous.learned.get(whole_path(row.file)) == (row.answer, row.label)


def _notes(given: GivenAnswers, answers: Sequence[Answer], classes: Sequence[str], lost: int) -> list[str]:
    strange = [row.label for row in answers if row.label and row.label not in classes]
    notes = []
    if given.damaged:
        notes.append(
            f"labels: {_rows(given.damaged, 'row')} of {given.path} cannot be understood, as a kill in the middle of "
            "writing leaves one; such rows do not count."
        )
    if lost:
        notes.append(
            f"labels: {_rows(lost, 'answer')} of {given.path} concern images that are not among the unlabelled ones of "
            "this run, by their file names; they change nothing."
        )
    if strange:
        notes.append(
            f"labels: {_rows(len(strange), 'answer')} of {given.path} name a class that this run does not have "
            f"({list_some(sorted(set(strange)), 3)}); these images leave the unlabelled ones and join no class."
        )
    return notes


def _rows(number: int, noun: str) -> str:
    return f"1 {noun}" if number == 1 else f"{number} {noun}s"


def _check(lesson: Lesson, given: GivenAnswers, n_files: int, previous: PreviousRun | None) -> None:
    count = _rows(len(given.current), "answer")
    if not len(lesson):
        raise DataError(
            f"labels: none of the {count} of {given.path} is about an unlabelled image of this run, by its file name. "
            "Is it the file of another run? Where its paths are relative, run from the folder that it was started in."
        )
    if previous is not None and lesson.earlier == len(lesson) == len(previous.learned):  # nothing was taken back either
        raise DataError(
            f"labels: {previous.folder} has learned from all of the {count} of {given.path} already. Answer more, for "
            f"example on the page of 'qurate review {previous.folder}'."
        )
    if n_files - len(lesson) < _LEAST_LEFT:
        raise DataError(
            f"labels: {len(lesson)} of the {n_files} unlabelled images are answered, and at least {_LEAST_LEFT} "
            "without an answer must be left to adapt to. Add unlabelled images, or use the model that there is."
        )
