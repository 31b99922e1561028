"""The temperature of a run's model, from its folds or, where nothing is held out, from another model of D_u."""

from __future__ import annotations

import pandas as pd
from torch import Tensor

from qurate.calibration import Calibration, at_temperature, fit_temperature, match_confidence
from qurate.selection.crossfit import HeldOut


def calibrate(said: Tensor, labels: Tensor) -> Calibration:
    """From what models say of images that they were not trained on.

    Args:
        said: Their log-probabilities, (n, K).
        labels: The classes, (n,) int64.
    """
    return Calibration(fit_temperature(said, labels), "held-out images", len(labels))


def calibrate_by_agreement(adapted: Tensor, baseline: Tensor) -> Calibration:
    """Such that the adapted model is as sure, on the mean, as S+T agrees with it.

    Args:
        adapted: Log-probabilities of D_u, (N_u, K).
        baseline: Those of S+T.
    """
    agree = float((adapted.argmax(dim=1) == baseline.argmax(dim=1)).double().mean())
    return Calibration(match_confidence(adapted, agree), "agreement with S+T")


def calibrate_by_previous(said: Tensor, previous: Calibration, sure: float) -> Calibration:
    """Such that a model that learned from answers is as sure, on the mean, as the calibrated one before it.

    Args:
        said: Log-probabilities of D_u, (N_u, K).
        previous: Of the model before; where that is not calibrated, this one is not either.
        sure: Mean probability that it gave the classes it named in D_u.
    """
    if previous.by == "nothing":
        return Calibration()
    return Calibration(match_confidence(said, sure), "the run before")


def held_out_table(held_out: HeldOut, calibration: Calibration) -> pd.DataFrame:
    """How sure adapted models were of held-out images, before and after, and whether they were right."""
    return pd.DataFrame(
        {
            "probability": at_temperature(held_out.adapted, calibration.temperature).max(dim=1).values.tolist(),
            "uncalibrated": held_out.adapted.exp().max(dim=1).values.tolist(),
            "right": (held_out.adapted.argmax(dim=1) == held_out.labels).tolist(),
        }
    )
