"""predictions.csv: a row for every unlabelled image that was given, also for those that were no part of training."""

from __future__ import annotations

import dataclasses
import math

import pandas as pd
from torch import Tensor

from qurate.calibration import Calibration, at_temperature
from qurate.data.parts import Parts, paths_of
from qurate.data.samples import Split
from qurate.methods import Method
from qurate.report.run.record import RunRecord
from qurate.runs.lesson import Material
from qurate.selection.views import log_probabilities

Row = tuple[str, float, str]
"""Label, probability and problem."""


def calibrate_record(record: RunRecord, said: Tensor, calibration: Calibration) -> RunRecord:
    """The record with probabilities at a temperature; its classes stay.

    Args:
        record: Holds the predictions of D_u.
        said: Log-probabilities of D_u, (N_u, K).
        calibration: The temperature and where it is from.
    """
    sure = at_temperature(said, calibration.temperature).max(dim=1).values.tolist()
    return dataclasses.replace(record, predictions=record.predictions.assign(probability=sure), calibration=calibration)


def predict_all(record: RunRecord, material: Material, method: Method) -> pd.DataFrame:
    """What the model says of each image, and why some were no part of training.

    Args:
        record: Holds the predictions of D_u, and their calibration.
        material: The images.
        method: The trained F and C.

    Returns:
        Columns file, label, probability and problem: first the images that can be read, in their order. Where people
        answered, also answer ('label', 'none' or 'wrong', else empty) and answer_label.
    """
    parts, lesson, temperature = material.parts, material.lesson, record.calibration.temperature
    predicted = record.predictions[["file", "label", "probability"]].itertuples(index=False, name=None)
    rows: dict[str, Row] = {file: (label, probability, "") for file, label, probability in predicted}
    unlabeled = parts.domains["unlabeled"]
    rows |= _twins(parts, material.whole, method, temperature)
    if len(lesson):
        sure, labels = at_temperature(log_probabilities(method, material.answered), temperature).max(dim=1)
        told = zip(lesson.answers, labels.tolist(), sure.tolist(), strict=True)
        rows |= {row.file: (record.classes[label], probability, "") for row, label, probability in told}
    rows |= {str(skip.path): ("", math.nan, skip.reason) for skip in unlabeled.skipped if skip.is_broken}
    readable = [str(path) for path in paths_of(unlabeled)]
    files = [*readable, *(file for file in rows if file not in set(readable))]
    table = pd.DataFrame([(file, *rows[file]) for file in files], columns=["file", "label", "probability", "problem"])
    if not len(lesson):
        return table
    said = {row.file: (row.answer, row.label) for row in lesson.answers}
    answers = [said.get(file, ("", "")) for file in files]
    return table.assign(answer=[kind for kind, _ in answers], answer_label=[label for _, label in answers])


def _twins(parts: Parts, split: Split, method: Method, temperature: float) -> dict[str, Row]:
    """Rows of images that are labelled ones too: what the model says of those."""
    twins = parts.twins()
    if not twins:
        return {}
    said = log_probabilities(method, split.target_labeled.inputs)
    sure, labels = at_temperature(said, temperature).max(dim=1)
    place = {path: i for i, path in enumerate(paths_of(parts.split.target_labeled))}
    return {
        str(path): (
            split.classes[int(labels[place[twin]])],
            float(sure[place[twin]]),
            f"same image as the labelled {twin}; left out of training",
        )
        for path, twin in twins.items()
    }
