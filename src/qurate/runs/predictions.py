"""predictions.csv of a run, its baseline, and how sure its model may be."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence

import pandas as pd
from torch import Tensor

from qurate.active.answers import Answer
from qurate.calibration import Calibration, at_temperature, fit_temperature, match_confidence
from qurate.config import RunConfig
from qurate.data.own_images import Parts, paths_of
from qurate.data.samples import Split
from qurate.methods import Method
from qurate.networks.inference import log_probabilities
from qurate.run_results import RunRecord
from qurate.runs.continue_from import RunData
from qurate.runs.folder import RunFolder
from qurate.runtime.progress import Reporter
from qurate.selection.algorithm import fit
from qurate.selection.callbacks import StepCount
from qurate.selection.crossfit import HeldOut, baseline_of

Row = tuple[str, float, str]
"""Label, probability and problem."""


def calibrate_record(record: RunRecord, log_probs: Tensor, calibration: Calibration) -> RunRecord:
    """The record with probabilities of D_u at a temperature, from log-probabilities (N_u, K); its classes stay."""
    sure = at_temperature(log_probs, calibration.temperature).max(dim=1).values.tolist()
    return dataclasses.replace(record, predictions=record.predictions.assign(probability=sure), calibration=calibration)


def predict_all(record: RunRecord, data: RunData, method: Method) -> pd.DataFrame:
    """Predictions for each image, and why some were not trained on; those of D_u are the record's.

    Returns:
        Columns file, label, probability and problem: first the images that can be read, in their order. Where people
        answered, also answer ('label', 'none' or 'wrong', else empty) and answer_label.
    """
    parts, applied, temperature = data.parts, data.applied, record.calibration.temperature
    predicted = record.predictions[["file", "label", "probability"]].itertuples(index=False, name=None)
    rows: dict[str, Row] = {file: (label, probability, "") for file, label, probability in predicted}
    unlabeled = parts.domains["unlabeled"]
    rows |= _twins(parts, data.whole, method, temperature)
    if len(applied):
        sure, labels = at_temperature(log_probabilities(method.network, data.answered), temperature).max(dim=1)
        answered = zip(applied.answers, labels.tolist(), sure.tolist(), strict=True)
        rows |= {row.file: (record.classes[label], probability, "") for row, label, probability in answered}
    rows |= {str(skip.path): ("", math.nan, skip.reason) for skip in unlabeled.skipped if skip.is_broken}
    return prediction_table(rows, [str(path) for path in paths_of(unlabeled)], applied.answers)


def prediction_table(rows: Mapping[str, Row], readable: Sequence[str], answers: Sequence[Answer]) -> pd.DataFrame:
    """The table that `predict_all` describes, from rows by file; the readable files come first, in their order."""
    first = set(readable)
    files = [*readable, *(file for file in rows if file not in first)]
    table = pd.DataFrame([(file, *rows[file]) for file in files], columns=["file", "label", "probability", "problem"])
    if not answers:
        return table
    given = {row.file: (row.answer, row.label) for row in answers}
    kinds, labels = zip(*(given.get(file, ("", "")) for file in files), strict=True)
    return table.assign(answer=kinds, answer_label=labels)


def _twins(parts: Parts, split: Split, method: Method, temperature: float) -> dict[str, Row]:
    """Rows of images that are the same as labelled ones: predictions for those."""
    twins = parts.twins()
    if not twins:
        return {}
    log_probs = log_probabilities(method.network, split.target_labeled.inputs)
    sure, labels = at_temperature(log_probs, temperature).max(dim=1)
    place = {path: i for i, path in enumerate(paths_of(parts.split.target_labeled))}
    return {
        str(path): (
            split.classes[int(labels[place[twin]])],
            float(sure[place[twin]]),
            f"same image as the labelled {twin}; left out of training",
        )
        for path, twin in twins.items()
    }


def calibrate(log_probs: Tensor, labels: Tensor) -> Calibration:
    """From log-probabilities (n, K) of images with labels (n,) by models that were not trained on them."""
    return Calibration(fit_temperature(log_probs, labels), "held-out images", len(labels))


def calibrate_by_agreement(adapted: Tensor, baseline: Tensor) -> Calibration:
    """Such that the adapted model is as sure, on the mean, as S+T agrees with it; log-probabilities (N_u, K)."""
    agree = float((adapted.argmax(dim=1) == baseline.argmax(dim=1)).double().mean())
    return Calibration(match_confidence(adapted, agree), "agreement with S+T")


def calibrate_by_previous(log_probs: Tensor, previous: Calibration, sure: float) -> Calibration:
    """Such that a model that learned from answers is as sure, on the mean, as the calibrated one before it.

    Args:
        log_probs: Log-probabilities of D_u, (N_u, K).
        previous: Of the model before; where that is not calibrated, this one is not either.
        sure: Mean probability that it gave the classes it named in D_u.
    """
    if previous.by == "nothing":
        return Calibration()
    return Calibration(match_confidence(log_probs, sure), "the run before")


def held_out_table(held_out: HeldOut, calibration: Calibration) -> pd.DataFrame:
    """How sure adapted models were of held-out images, before and after, and whether they were right."""
    return pd.DataFrame(
        {
            "probability": at_temperature(held_out.adapted, calibration.temperature).max(dim=1).values.tolist(),
            "uncalibrated": held_out.adapted.exp().max(dim=1).values.tolist(),
            "right": (held_out.adapted.argmax(dim=1) == held_out.labels).tolist(),
        }
    )


def train_baseline(split: Split, config: RunConfig, folder: RunFolder | None, reporter: Reporter) -> Method:
    """S+T with the network, training and seed of a run; one that was trained before the run was stopped is taken up."""
    run = baseline_of(config)
    checkpoint = None if folder is None else folder.open_baseline()
    progress = StepCount(reporter, "S+T on all labelled images", run.total_steps)
    return fit(split, run, checkpoint=checkpoint, callbacks=[progress]).method


def predict_baseline(
    log_probs: Tensor, record: RunRecord, data: RunData, method: Method, calibration: Calibration
) -> pd.DataFrame:
    """predictions.csv of S+T, from its log-probabilities of D_u (N_u, K), for the images of the adapted one."""
    named = record.predictions.assign(label=[record.classes[label] for label in log_probs.argmax(dim=1).tolist()])
    of_baseline = calibrate_record(dataclasses.replace(record, predictions=named), log_probs, calibration)
    return predict_all(of_baseline, data, method)
