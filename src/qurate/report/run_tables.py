"""Tables of the page of a run: its classes, which of them moved, and how many predictions can be accepted."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd

from qurate.active.answers import wilson_interval
from qurate.run_results import RunRecord

ACCEPT_FROM = (0.5, 0.7, 0.8, 0.9, 0.95, 0.99)
"""Probabilities at or above which predictions are counted."""
LEAST_HELD_OUT = 5
"""Held-out images from which on an interval is given. Our choice."""
_Z = 2.576
"""Standard deviations of a two-sided test at 1 %."""


def predicted(record: RunRecord) -> pd.DataFrame:
    """The predictions with the columns known, flagged and baseline; NaN, False and '' where there are none."""
    absent: dict[str, Any] = {"known": math.nan, "flagged": False, "baseline": ""}
    return record.predictions.assign(
        **{name: value for name, value in absent.items() if name not in record.predictions}
    )


@dataclass(frozen=True)
class MovedClass:
    """A class whose number of predictions is another one since adaptation; `before` is by S+T."""

    label: str
    before: int
    now: int


def moved_classes(adapted: Sequence[str], baseline: Sequence[str], classes: Sequence[str]) -> list[MovedClass]:
    """Classes that lost more than half of their images by adaptation, or more than doubled, by more than chance.

    Only images on which the models disagree move a class. With b gained and c lost, that is more than chance if
    |b - c| > 2.576 sqrt(b + c): McNemar's test at 1 %.

    Args:
        adapted: Class of each image by the adapted model, (N,).
        baseline: By S+T, (N,).
        classes: Class names.

    Returns:
        The largest change in images first.
    """
    now, before = Counter(adapted), Counter(baseline)
    kept = Counter(label for label, other in zip(adapted, baseline, strict=True) if label == other)
    found = []
    for label in classes:
        moved = MovedClass(label, before[label], now[label])
        disagree = now[label] + before[label] - 2 * kept[label]
        is_large = 2 * moved.now < moved.before or moved.now > 2 * moved.before
        if is_large and abs(moved.now - moved.before) > _Z * math.sqrt(disagree):
            found.append(moved)
    return sorted(found, key=lambda moved: -abs(moved.now - moved.before))


def moved_in(record: RunRecord) -> list[MovedClass]:
    """The classes that moved, over the unlabelled images that fit a class; none where S+T was not trained."""
    table = predicted(record)
    table = table[~table["flagged"] & (table["baseline"] != "") & table["label"].notna()]
    return moved_classes(table["label"].tolist(), table["baseline"].tolist(), record.classes)


def class_rows(record: RunRecord) -> list[dict[Hashable, Any]]:
    """Images of each class in every part, without flagged ones, and the mean confidence of its predictions.

    Returns:
        Keys label, source, labeled, predictions, baseline (by S+T), positives, confidence and moved ('fell', 'grew' or
        '').
    """
    table = predicted(record)
    table = table[~table["flagged"]]
    parts = {"source": record.source["label"], "labeled": record.labeled["label"], "predictions": table["label"]}
    parts |= {"baseline": table["baseline"], "positives": record.positives["label"]}
    counts = {name: labels.value_counts() for name, labels in parts.items()}
    rows = pd.DataFrame(counts, index=pd.Index(record.classes, name="label")).fillna(0).astype(int)
    rows["confidence"] = table.groupby("label")["probability"].mean()
    moved = {each.label: "fell" if each.now < each.before else "grew" for each in moved_in(record)}
    return rows.reset_index().assign(moved=[moved.get(label, "") for label in record.classes]).to_dict("records")


@dataclass(frozen=True)
class AcceptanceRow:
    """What comes of accepting each prediction at or above a probability.

    Args:
        probability: From which on.
        images: How many unlabelled images that are.
        right: Share of them that is expected to be right: the mean of their probabilities; NaN where there is none.
        held_out: Held-out labelled images at or above the probability.
        interval: Wilson's 95 % interval of the share of these that is right; None where they are too few.
    """

    probability: float
    images: int
    right: float
    held_out: int
    interval: tuple[float, float] | None


def acceptance_table(record: RunRecord) -> list[AcceptanceRow]:
    """How many unflagged predictions can be accepted, and how many of them are right; empty where nothing was held out.

    Example of a row: at or above 0.9 there are 812 images, of which about 96 % are right; of 40 held-out ones 38 are.
    """
    if record.calibration.by != "held-out images" or record.held_out.empty:
        return []
    table = predicted(record)
    sure = table.loc[~table["flagged"], "probability"]
    rows = []
    for probability in ACCEPT_FROM:
        accepted = sure[sure >= probability]
        right = record.held_out.loc[record.held_out["probability"] >= probability, "right"]
        interval = wilson_interval(int(right.sum()), len(right)) if len(right) >= LEAST_HELD_OUT else None
        rows.append(AcceptanceRow(probability, len(accepted), float(accepted.mean()), len(right), interval))
    return rows


MOST_CONFUSED = 12
"""Classes in the confusion matrix; of more, those that are confused most often. Our choice."""


@dataclass(frozen=True)
class ConfusionMatrix:
    """What held-out images were taken for.

    Args:
        names: The classes that are shown.
        rows: Of each, how many images with that label were predicted as each of `names`, and as a class besides.
        classes: How many classes there are in all.
        images: How many held-out images.
        wrong: How many of them are not predicted as labelled.
    """

    names: tuple[str, ...]
    rows: tuple[tuple[int, ...], ...]
    classes: int
    images: int
    wrong: int


def confusion_matrix(record: RunRecord) -> ConfusionMatrix | None:
    """Labels against predictions of held-out images; only the most confused classes where there are many."""
    table = record.held_out
    if table.empty:
        return None
    pairs = Counter(zip(table["label"], table["predicted"], strict=True))
    wrong = {pair: images for pair, images in pairs.items() if pair[0] != pair[1]}
    names = record.classes
    if len(names) > MOST_CONFUSED:
        worst = sorted(wrong, key=lambda pair: (-wrong[pair], pair))
        chosen = list(dict.fromkeys(name for pair in worst for name in pair))[:MOST_CONFUSED]
        names = tuple(name for name in record.classes if name in chosen)
    rows = []
    for label in names:
        cells = tuple(pairs[label, name] for name in names)
        rows.append((*cells, sum(n for pair, n in pairs.items() if pair[0] == label) - sum(cells)))
    return ConfusionMatrix(names, tuple(rows), len(record.classes), len(table), sum(wrong.values()))


def surest_mistakes(record: RunRecord) -> pd.DataFrame:
    """Held-out images that are not predicted as labelled, those first of which the model is surest."""
    table = record.held_out
    if table.empty:
        return table
    return table[~table["right"].astype(bool)].sort_values("probability", ascending=False, kind="stable")
