"""S+T beside the adapted model: trained on all labelled images and kept in RUN/baseline, where it may be the better."""

from __future__ import annotations

import dataclasses

import pandas as pd
from torch import Tensor

from qurate.calibration import Calibration
from qurate.config import RunConfig
from qurate.data.samples import Split
from qurate.methods import Method
from qurate.report.run.record import RunRecord
from qurate.runs.folder import RunFolder
from qurate.runs.lesson import Material
from qurate.runs.predictions import calibrate_record, predict_all
from qurate.runtime.progress import Audience
from qurate.selection.algorithm import fit
from qurate.selection.counting import StepCount
from qurate.selection.crossfit import baseline_of


def train_baseline(split: Split, config: RunConfig, folder: RunFolder | None, audience: Audience) -> Method:
    """S+T with the network, training and seed of a run; one that was trained before the run was stopped is taken up.

    Args:
        split: D_s, D_t, D_u.
        config: The run.
        folder: Of the run, if it is written anywhere.
        audience: Told how far it is.
    """
    run = baseline_of(config)
    checkpoint = None if folder is None else folder.open_baseline()
    listen = StepCount(audience, "S+T on all labelled images", run.total_steps)
    return fit(split, run, checkpoint=checkpoint, callbacks=[listen]).method


def predict_baseline(
    said: Tensor, record: RunRecord, material: Material, method: Method, calibration: Calibration
) -> pd.DataFrame:
    """predictions.csv of S+T, with a row for the same images as the adapted model's.

    Args:
        said: Log-probabilities of D_u by S+T, (N_u, K).
        record: Of the run; names the files of D_u.
        material: The images.
        method: S+T.
        calibration: Its temperature.
    """
    named = record.predictions.assign(label=[record.classes[label] for label in said.argmax(dim=1).tolist()])
    of_baseline = calibrate_record(dataclasses.replace(record, predictions=named), said, calibration)
    return predict_all(of_baseline, material, method)
