"""predictions.csv of a run, its baseline, and how sure its model may be."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence

import pandas as pd
from torch import Tensor
from torch.nn import functional as F

from qurate.active.answers import Answer
from qurate.calibration import LEAST, MOST, Calibration, fit_temperature, match_confidence
from qurate.combined import CombinedModel, Prediction
from qurate.config import RunConfig
from qurate.data.class_names import NO_FIT
from qurate.data.own_images import Parts, paths_of
from qurate.data.samples import Split
from qurate.networks.heads import Network
from qurate.novelty import FALSE_DISCOVERY_RATE
from qurate.presets import baseline_of
from qurate.run_results import FlaggedImages, RunRecord
from qurate.runs.continue_from import RunData
from qurate.runs.folder import RunFolder
from qurate.runtime.progress import Reporter
from qurate.selection.algorithm import fit
from qurate.selection.callbacks import StepCount
from qurate.selection.crossfit import HeldOut

Row = tuple[str, float, float, str]
"""Label, probability, known and problem."""


def predict_record(
    record: RunRecord, predicted: Prediction, baseline: Tensor | None, model: CombinedModel
) -> RunRecord:
    """The record with what the model says of D_u.

    Args:
        record: Of the run.
        predicted: Of D_u.
        baseline: Log-probabilities of D_u by S+T, (N_u, K); None where there is none.
        model: Says how sure it may be, and what fits no class.
    """
    named = [] if baseline is None else [record.classes[label] for label in baseline.argmax(dim=1).tolist()]
    table = record.predictions.assign(
        label=[record.classes[label] for label in predicted.labels.tolist()],
        probability=predicted.probabilities.max(dim=1).values.tolist(),
        known=predicted.known.tolist(),
        flagged=predicted.flagged.tolist(),
        baseline=named or "",
    )
    novelty, flagged = model.novelty, None
    if novelty is not None:
        count = int(predicted.flagged.sum())
        shares = novelty.share, novelty.highest_share
        flagged = FlaggedImages(count, FALSE_DISCOVERY_RATE, len(novelty.held_out), *shares)
    of_map, by_file = record.embedding, dict(zip(table["file"], table["label"], strict=True))
    of_map = of_map.assign(label=of_map["label"].where(of_map["part"] != "unlabeled", of_map["file"].map(by_file)))
    return dataclasses.replace(
        record, predictions=table, embedding=of_map, calibration=model.calibration, flagged=flagged
    )


def predict_all(record: RunRecord, data: RunData, model: CombinedModel) -> pd.DataFrame:
    """Predictions for each image, and why some were not trained on; those of D_u are the record's.

    Returns:
        Columns file, label, probability, known and problem: first the images that can be read, in their order. Where
        people answered, also answer ('label', 'none' or 'wrong', else empty) and answer_label.
    """
    parts, applied = data.parts, data.applied
    columns = ["file", "label", "probability", "known", "flagged"]
    predicted = record.predictions[columns].itertuples(index=False, name=None)
    rows: dict[str, Row] = {
        file: (label, probability, known, NO_FIT if flagged else "")
        for file, label, probability, known, flagged in predicted
    }
    unlabeled = parts.domains["unlabeled"]
    rows |= _copies_of_labeled(parts, data.whole, model)
    if len(applied):
        answered = zip(applied.answers, _rows_of(record.classes, model.predict(data.answered)), strict=True)
        rows |= {row.file: (*values, "") for row, values in answered}
    rows |= {str(skip.path): ("", math.nan, math.nan, skip.reason) for skip in unlabeled.skipped if skip.is_broken}
    return prediction_table(rows, [str(path) for path in paths_of(unlabeled)], applied.answers)


def _rows_of(classes: Sequence[str], predicted: Prediction) -> list[tuple[str, float, float]]:
    """Label, probability and known of each image."""
    sure = predicted.probabilities.max(dim=1).values.tolist()
    named = [classes[label] for label in predicted.labels.tolist()]
    return list(zip(named, sure, predicted.known.tolist(), strict=True))


def prediction_table(rows: Mapping[str, Row], readable: Sequence[str], answers: Sequence[Answer]) -> pd.DataFrame:
    """The table that `predict_all` describes, from rows by file; the readable files come first, in their order."""
    first = set(readable)
    files = [*readable, *(file for file in rows if file not in first)]
    table = pd.DataFrame(
        [(file, *rows[file]) for file in files], columns=["file", "label", "probability", "known", "problem"]
    )
    if not answers:
        return table
    given = {row.file: (row.answer, row.label) for row in answers}
    kinds, labels = zip(*(given.get(file, ("", "")) for file in files), strict=True)
    return table.assign(answer=kinds, answer_label=labels)


def _copies_of_labeled(parts: Parts, split: Split, model: CombinedModel) -> dict[str, Row]:
    """Rows of images that are the same as labelled ones: predictions for those."""
    copies = parts.labeled_copies()
    if not copies:
        return {}
    found = _rows_of(split.classes, model.predict(split.target_labeled.inputs))
    place = {path: i for i, path in enumerate(paths_of(parts.split.target_labeled))}
    dropped = "", math.nan, math.nan  # by an answer
    return {
        str(path): (
            *(found[place[labeled]] if labeled in place else dropped),
            f"same image as the labelled {labeled}; left out of training",
        )
        for path, labeled in copies.items()
    }


_SURER = 20.0
"""How many times surer than the run before to begin with, since `match_confidence` only makes less sure."""


def calibrate(log_probs: Tensor, labels: Tensor) -> Calibration:
    """From log-probabilities (n, K) of images with labels (n,) by models that were not trained on them."""
    return Calibration(fit_temperature(log_probs, labels), "held-out images", len(labels))


def calibrate_by_agreement(adapted: Tensor, baseline: Tensor) -> Calibration:
    """Such that the adapted model is as sure, on the mean, as S+T agrees with it; log-probabilities (N_u, K)."""
    agree = float((adapted.argmax(dim=1) == baseline.argmax(dim=1)).double().mean())
    return Calibration(match_confidence(adapted, agree), "agreement with S+T")


def calibrate_by_previous(adapted: Tensor, baseline: Tensor | None, previous: Calibration, sure: float) -> Calibration:
    """Such that a model that learned from answers is as sure, on the mean, as the calibrated one before it.

    Args:
        adapted: Log-probabilities of D_u, (N_u, K).
        baseline: Those of S+T of the run before; None where it has none.
        previous: Of the model before; where that is not calibrated, this one is not either.
        sure: Mean probability that it gave the classes it named in D_u.
    """
    if previous.by == "nothing":
        return Calibration()
    if baseline is None or previous.baseline_temperature is None:
        return Calibration(match_confidence(adapted, sure), "the run before")
    before = previous.temperature, previous.baseline_temperature
    product = F.log_softmax(_SURER * (adapted / before[0] + baseline / before[1]), dim=1)
    both = match_confidence(product, sure) / _SURER
    first, second = (min(MOST, max(LEAST, both * each)) for each in before)
    return Calibration(first, "the run before", 0, second)


def held_out_table(
    held_out: HeldOut, calibration: Calibration, files: Sequence[str], classes: Sequence[str]
) -> pd.DataFrame:
    """What models said of held-out images, how sure they were, before and after, and whether they were right.

    Args:
        held_out: Their predictions.
        calibration: Of the combined model.
        files: The images of D_t.
        classes: Their names.
    """
    combined = held_out.combined(calibration).adapted
    return pd.DataFrame(
        {
            "file": [files[i] for i in held_out.images.tolist()],
            "label": [classes[k] for k in held_out.labels.tolist()],
            "predicted": [classes[k] for k in combined.argmax(dim=1).tolist()],
            "probability": combined.exp().max(dim=1).values.tolist(),
            "uncalibrated": held_out.adapted.exp().max(dim=1).values.tolist(),
            "right": (combined.argmax(dim=1) == held_out.labels).tolist(),
        }
    )


def train_baseline(split: Split, config: RunConfig, folder: RunFolder | None, reporter: Reporter) -> Network:
    """S+T with the network, training and seed of a run; one that was trained before the run was stopped is taken up."""
    run = baseline_of(config)
    checkpoint = None if folder is None else folder.open_baseline()
    progress = StepCount(reporter, "S+T on all labelled images", run.total_steps)
    return fit(split, run, checkpoint=checkpoint, callbacks=[progress]).method.network


def predict_baseline(record: RunRecord, data: RunData, model: CombinedModel) -> pd.DataFrame:
    """predictions.csv of S+T, for the images of the adapted model."""
    predicted = model.predict(data.split.target_unlabeled.inputs)
    return predict_all(predict_record(record, predicted, None, model), data, model)
