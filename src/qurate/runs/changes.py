"""What answers changed: how often the model that was asked was right, and what the new one makes of it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import pandas as pd

from qurate.report.run.record import Corrections, RunAnswers
from qurate.runs.answers import Answer
from qurate.runs.estimate import count_right, tells
from qurate.runs.lesson import Lesson
from qurate.runs.previous import PreviousRun, whole_path


def what_changed(
    lesson: Lesson, named: Sequence[str], predictions: pd.DataFrame, previous: PreviousRun | None
) -> RunAnswers:
    """Count what came of the answers.

    Args:
        lesson: The answers.
        named: The class that the new model gives each of its images.
        predictions: What the new model says of the images without an answer; columns file, label.
        previous: The run that the answers are about, if any.
    """
    new, labels = lesson.answers[lesson.earlier :], lesson.labels[lesson.earlier :].tolist()
    labeled = [row for row, label in zip(new, labels, strict=True) if label >= 0]
    wrong = sum(row.answer == "wrong" for row in new)
    known = [row for row in new if row.predicted]
    judged = [row for row in known if row.answer != "none"]
    now = zip(new, labels, named[lesson.earlier :], strict=True)
    drawn = [row for row in known if row.asked == "random"]
    if previous is not None:
        drawn = [row for row in drawn if tells(row, previous.predicted.get(whole_path(row.file), ""))]
    chance = count_right(drawn)
    return RunAnswers(
        labeled=len(labeled),
        none=len(new) - len(labeled) - wrong,
        wrong=wrong,
        earlier=lesson.earlier,
        judged=len(judged),
        right=sum(row.label == row.predicted for row in judged),
        right_now=sum(row.label == name for row, label, name in now if label >= 0),
        random=chance.images,
        random_right=chance.right,
        random_low=chance.low,
        random_high=chance.high,
        confusions=_confusions(labeled),
        corrections=None if previous is None else _corrections(new, predictions, previous),
    )


def _confusions(labeled: Sequence[Answer]) -> tuple[tuple[str, str, int], ...]:
    """What was predicted, what it is, and how often; the most frequent first."""
    pairs = Counter((row.predicted, row.label) for row in labeled if row.predicted and row.predicted != row.label)
    return tuple((*pair, n) for pair, n in sorted(pairs.items(), key=lambda item: (-item[1], item[0])))


def _corrections(new: Sequence[Answer], predictions: pd.DataFrame, previous: PreviousRun) -> Corrections:
    trusted = {whole_path(file): label for file, label in previous.positives[["file", "label"]].itertuples(index=False)}
    pairs = [(row, trusted[whole_path(row.file)]) for row in new if whole_path(row.file) in trusted]
    left = [(row.file, label, row.label or row.answer) for row, label in pairs if row.label != label]
    pairs_now = [
        (previous.predicted.get(whole_path(file), ""), label)
        for file, label in predictions[["file", "label"]].itertuples(index=False)
    ]
    return Corrections(
        run=str(previous.folder),
        positives=len(previous.positives),
        confirmed=len(pairs) - len(left),
        left=pd.DataFrame(left, columns=["file", "label", "answer"]),
        open=sum(bool(before) for before, _ in pairs_now),
        changed=sum(before != now for before, now in pairs_now if before),
    )
