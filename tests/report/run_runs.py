"""A made-up run with small pictures that report tests share."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from PIL import Image

from qurate.calibration import Calibration
from qurate.config import to_dict
from qurate.presets import make_config
from qurate.run_results import BaselineComparison, Corrections, FlaggedImages, Gain, RunAnswers, RunRecord

HELPS = BaselineComparison(
    *(0.742, 0.687, 124, "held-out images", 0.151, 0.043),
    *(Gain(0.051, 0.016, 0.094, 0.03), "helps"),
)
UNCLEAR = BaselineComparison(
    *(0.70, 0.687, 40, "k-fold over the labelled images", 0.118, 0.021),
    *(Gain(0.012, -0.05, 0.07, 0.061), "unclear", 0.03, 18),
)
HARMS = BaselineComparison(
    *(0.652, 0.687, 124, "held-out images", 0.151, 0.11),
    *(Gain(-0.031, -0.064, -0.006, 0.03), "harms"),
)

TOLD = RunAnswers(
    *(5, 2, 1, 4, 6, 3, 4),
    *(3, 2, 0.208, 0.939),
    (("mug", "pen", 2), ("pen", "desk_lamp", 1)),
)


def finished_run(folder: Path, classes: tuple[str, ...] = ("mug", "desk_lamp", "pen"), **changes: Any) -> RunRecord:
    """A record whose images are coloured squares in a folder.

    Args:
        folder: Where the images go.
        classes: Their names.
        **changes: Fields of the record to set otherwise.
    """
    rng = np.random.default_rng(0)
    source = _pictures(folder / "source", classes, 4, rng)
    labeled = _pictures(folder / "labeled", classes, 2, rng)
    unlabeled = _pictures(folder / "unlabeled", classes, 12, rng)
    n = len(unlabeled)
    predictions = unlabeled.assign(probability=rng.uniform(0.2, 0.999, n))
    chosen = predictions.sort_values("probability").tail(n * 3 // 4)
    prob = chosen["probability"].to_numpy()
    positives = pd.DataFrame(
        {
            "file": chosen["file"].to_list(),
            "label": chosen["label"].to_list(),
            "round": np.arange(len(chosen)) % 3,
            "reward": 1.0,
            "phi": 2 * np.log(prob),
            "classifier_prob": prob,
            "center_prob": prob,
            "entropy_drop": np.where(np.arange(len(chosen)) % 3 == 0, 0.0, rng.normal(0, 0.02, len(chosen))),
        }
    )
    parts = pd.concat(
        [
            table[["file", "label"]].assign(part=part)
            for part, table in (("source", source), ("labeled", labeled), ("unlabeled", unlabeled))
        ]
    )
    places = {f"{axis}_{when}": rng.normal(size=len(parts)) for when in ("before", "after") for axis in "xy"}
    fields: dict[str, Any] = {
        "title": "Two small domains",
        "classes": classes,
        "source": source,
        "labeled": labeled,
        "predictions": predictions,
        "positives": positives,
        "rounds": pd.DataFrame(
            {"round": [0, 1, 2], "positives": [9, 18, 27], "new": [9, 11, 10], "seconds": [1.0, 1.1, 0.9]}
        ),
        "embedding": parts.assign(**places),
        "comparison": HELPS,
        "stopped": "the trusted pseudo-labels did not change for 3 rounds",
        "config": to_dict(make_config("TML_DQNPL")),
        "notes": ("2 files were skipped.",),
    }
    return RunRecord(**{**fields, **changes})


def _pictures(folder: Path, classes: tuple[str, ...], count: int, rng: np.random.Generator) -> pd.DataFrame:
    folder.mkdir(parents=True)
    rows = []
    for k, name in enumerate(classes):
        for i in range(count):
            path = folder / f"{k}_{i}.png"
            color = tuple(int(value) for value in rng.integers(0, 255, 3))
            Image.new("RGB", (64, 48), color).save(path)
            rows.append({"file": str(path), "label": name})
    return pd.DataFrame(rows)


def corrected(folder: Path) -> RunAnswers:
    """Answers to the images of such a run, which goes on from another."""
    left = pd.DataFrame(
        {"file": [f"{folder}/unlabeled/0_0.png", "b.png"], "label": ["mug", "pen"], "answer": ["pen", "none"]}
    )
    return replace(TOLD, corrections=Corrections("run <1>", 27, 3, left, 28, 7))


def held_out_images(labeled: pd.DataFrame, sure: Any, right: Any) -> pd.DataFrame:
    """Predictions for labelled images, which repeat; those that are not right are of the next class."""
    rows = labeled.iloc[np.arange(len(sure)) % len(labeled)].reset_index(drop=True)
    names = list(dict.fromkeys(labeled["label"]))
    others = rows["label"].map(lambda name: names[(names.index(name) + 1) % len(names)])
    predicted = rows["label"].where(pd.Series(right), others)
    return rows.assign(predicted=predicted, probability=sure, uncalibrated=np.asarray(sure) ** 0.3, right=right)


def cluttered_run(folder: Path, classes: tuple[str, ...] = ("mug", "desk_lamp", "pen"), **changes: Any) -> RunRecord:
    """A run that flagged every sixth image, whose adapted model took nearly all of the first class for the second."""
    record = finished_run(folder, classes)
    rng, table = np.random.default_rng(1), record.predictions
    flagged = np.arange(len(table)) % 6 == 0
    known = np.where(flagged, rng.uniform(0, 0.02, len(table)), rng.uniform(0.05, 1, len(table)))
    vanished = (table["label"] == classes[0]) & (np.arange(len(table)) > 1)
    predictions = table.assign(
        label=table["label"].mask(vanished, classes[1]), known=known, flagged=flagged, baseline=table["label"]
    )
    sure = rng.uniform(0.3, 1, 60)
    held_out = held_out_images(record.labeled, sure, rng.uniform(size=60) < sure)
    fields: dict[str, Any] = {
        "predictions": predictions,
        "positives": record.positives[~record.positives["file"].isin(predictions["file"][flagged])],
        "flagged": FlaggedImages(int(flagged.sum()), 0.1, 60, 0.81, 0.9),
        "calibration": Calibration(2.5, "held-out images", 60),
        "held_out": held_out,
    }
    return replace(record, **{**fields, **changes})
