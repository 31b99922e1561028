"""Tables of a finished run, and what to label next as one of them says. Loads no torch."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pandas as pd

from qurate.active.answers import Answer
from qurate.errors import RunError
from qurate.runs.files import BASELINE_FOLDER, PREDICTIONS_FILE, SUGGESTIONS_FILE
from qurate.runs.image_sources import start_folder_of
from qurate.runs.model_json import ABOUT_FILE, file_of
from qurate.runs.options import DEFAULT_QUERY_STRATEGY
from qurate.runtime.paths import is_file, list_some
from qurate.runtime.tables import TableError, read_csv

SUGGESTED = ["file", "label", "predicted", "probability", "runner_up", "query_strategy", "why"]
"""Columns of what to label next; label is empty, for the answer."""
MOST_KEPT = 200
"""Rows of suggestions.csv. Our choice: more than a person answers at once."""


def read_run_table(folder: Path, name: str, *columns: str) -> pd.DataFrame:
    """A table of a finished run, all of it text.

    Raises:
        RunError: If it is missing or damaged, or lacks one of these columns.
    """
    path = file_of(folder, name)
    try:
        table = read_csv(path)
    except TableError as error:
        hint = "It belongs to every finished run; adapt again, or give the images."
        if folder.name == BASELINE_FOLDER and is_file(folder.parent / ABOUT_FILE):
            hint = f"This is the plain model beside the run {folder.parent}; give that run, or the images."
        raise RunError(f"{error} {hint}") from error
    if missing := [column for column in columns if column not in table.columns]:
        raise RunError(f"{path}: must have the column '{missing[0]}', got {list_some(table.columns)}.")
    return table


def read_suggested(
    folder: Path, count: int, strategy: object, random_share: float, answers: Mapping[str, Answer]
) -> pd.DataFrame | None:
    """What to label next, as suggestions.csv says; None where it does not say it, or no longer.

    Its order is that of the default strategy, which asks the same images and more for a larger count, and has nothing
    random. Answers that the run has not learned from change what is asked next.

    Args:
        folder: Of the run.
        count: How many images.
        strategy: The query strategy.
        random_share: Part to be drawn at random.
        answers: In labels.csv of the run, by file.
    """
    if strategy != DEFAULT_QUERY_STRATEGY or random_share:
        return None
    try:
        table = read_csv(file_of(folder, SUGGESTIONS_FILE))
        probabilities = pd.to_numeric(table["probability"])
    except (TableError, KeyError, ValueError):  # of an earlier version, or damaged
        return None
    if list(table.columns) != SUGGESTED or table.empty or len(table) == MOST_KEPT < count:
        return None
    predictions = read_run_table(folder, PREDICTIONS_FILE, "file", "problem")
    learned: set[tuple[str, ...]] = set()
    if {"answer", "answer_label"} <= set(predictions):
        rows = predictions.loc[predictions["answer"] != "", ["file", "answer", "answer_label"]]
        learned = set(rows.itertuples(index=False, name=None))
    known = set(predictions["file"])
    if learned != {(file, row.answer, row.label) for file, row in answers.items() if file in known}:
        return None
    base = start_folder_of(folder)
    is_whole = all(file in known and is_file(base / file) for file in table["file"])
    return table.assign(probability=probabilities).head(count) if is_whole else None
