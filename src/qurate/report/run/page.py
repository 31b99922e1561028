"""The page of a run: one file that needs nothing else, with the outcome first."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import chain, islice, zip_longest
from pathlib import Path
from typing import Any

import pandas as pd
from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup, escape

from qurate.report.run.figures import COLORS, MOST_LABELS, embedding_figures, interval_figure, rounds_figure
from qurate.report.run.record import RunRecord
from qurate.report.run.thumbnails import Thumbnail, Thumbnails
from qurate.report.run.words import count, exact_percent, outcome, percent, signed, why_trusted
from qurate.runtime.files import write_atomically

PAIRS = 12
"""Classes shown in both domains."""
GALLERY = 24
"""Pseudo-labels shown in each part of the gallery, and images to label next."""


@dataclass(frozen=True)
class Card:
    """An image with its label and a few words."""

    image: Thumbnail
    label: str
    file: str
    detail: str
    text: str


@dataclass(frozen=True)
class Pair:
    """One class in both domains."""

    label: str
    source: Thumbnail
    target: Thumbnail


@dataclass(frozen=True)
class ClassRow:
    """One class in numbers; confidence is None where the class was never predicted."""

    label: str
    source: int
    labeled: int
    predictions: int
    positives: int
    confidence: float | None


def write_report(record: RunRecord, path: Path) -> None:
    """Write the page of a run, whole or not at all.

    Args:
        record: What the run left.
        path: Where to; usually RUN/report.html.
    """
    # A file name need not be valid Unicode; the page must be.
    write_atomically(path, render(record).encode("utf-8", errors="backslashreplace"))


def render(record: RunRecord) -> str:
    """The page as HTML."""
    thumbnails = Thumbnails()
    reward_config = _reward_config(record.config)
    doubtful, exemplary = _gallery(record.positives)
    uncertain = _least_certain(record)
    return (
        _environment()
        .get_template("report.html.j2")
        .render(
            record=record,
            outcome=outcome(record.comparison),
            interval=interval_figure(record.comparison) if record.comparison else None,
            pairs=_pairs(record, thumbnails),
            uncertain=[_guess_card(record, row, thumbnails) for row in uncertain.to_dict("records")],
            uncertain_files=[str(file) for file in uncertain["file"]],
            doubtful=[_trust_card(record, row, reward_config, thumbnails) for row in doubtful.to_dict("records")],
            exemplary=[_trust_card(record, row, reward_config, thumbnails) for row in exemplary.to_dict("records")],
            effect_measured=_effect_measured(record.positives),
            rounds=record.rounds.to_dict("records"),
            rounds_figure=rounds_figure(record.rounds),
            maps=embedding_figures(record.embedding, record.classes),
            most_labels=MOST_LABELS,
            colors=COLORS,
            classes=_class_rows(record),
            config=json.dumps(record.config, indent=2, ensure_ascii=False, default=str),
        )
    )


def _environment() -> Environment:
    environment = Environment(
        loader=PackageLoader("qurate.report.run"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters.update(exact_percent=exact_percent, count=count, breakable=breakable)
    return environment


def breakable(name: str) -> Markup:
    """A name that may be broken into lines after its underscores."""
    return Markup("_<wbr>").join(escape(part) for part in name.split("_"))


def _pairs(record: RunRecord, thumbnails: Thumbnails) -> list[Pair]:
    """Classes spread evenly over all, each with its first image of either domain."""
    shown = min(PAIRS, len(record.classes))
    names = [record.classes[i * len(record.classes) // shown] for i in range(shown)]
    first = [table.drop_duplicates("label").set_index("label")["file"] for table in (record.source, record.labeled)]
    return [
        Pair(
            name,
            *(
                thumbnails.of(record.path(files[name]) if name in files.index else None, f"{name} in the {domain}")
                for files, domain in zip(first, ("source", "target"), strict=True)
            ),
        )
        for name in names
    ]


def _gallery(positives: pd.DataFrame) -> tuple[pd.DataFrame, pd.DataFrame]:
    """The lowest by phi, and of the others the highest of each class in turn."""
    by_phi = positives.sort_values("phi", kind="stable")
    doubtful, rest = by_phi.iloc[:GALLERY], by_phi.iloc[GALLERY:]
    by_class = [list(group.index[::-1]) for _, group in rest.groupby("label", sort=True)]
    turns = (place for place in chain.from_iterable(zip_longest(*by_class)) if place is not None)
    return doubtful, rest.loc[list(islice(turns, GALLERY))]


def _least_certain(record: RunRecord) -> pd.DataFrame:
    """Predictions of lowest probability that were not chosen as pseudo-labels."""
    table = record.predictions.dropna(subset=["label", "probability"])
    table = table[~table["file"].isin(record.positives["file"])]
    return table.sort_values("probability", kind="stable").head(GALLERY)


def _effect_measured(positives: pd.DataFrame) -> bool:
    """Whether any positive has an entropy drop; selectors that do not try labels out leave it at zero."""
    return bool(positives["entropy_drop"].fillna(0).ne(0).any())


def _trust_card(
    record: RunRecord, row: Mapping[Any, Any], reward_config: Mapping[str, Any], thumbnails: Thumbnails
) -> Card:
    label, file = str(row["label"]), str(row["file"])
    drop = row["entropy_drop"] if _effect_measured(record.positives) else None
    why = why_trusted(row["classifier_prob"], row["center_prob"], drop, reward_config)
    detail = f"round {row['round']} · phi {signed(row['phi'], 2)}"
    image = thumbnails.of(record.path(file), f"{Path(file).name}, taken for {label}")
    return Card(image, label, Path(file).name, detail, why)


def _guess_card(record: RunRecord, row: Mapping[Any, Any], thumbnails: Thumbnails) -> Card:
    label, file = str(row["label"]), str(row["file"])
    image = thumbnails.of(record.path(file), f"{Path(file).name}, perhaps {label}")
    return Card(image, f"{label}?", Path(file).name, f"{percent(row['probability'])} sure", "")


def _class_rows(record: RunRecord) -> list[ClassRow]:
    confidence = record.predictions.groupby("label")["probability"].mean()
    return [
        ClassRow(
            label=name,
            source=_count(record.source, name),
            labeled=_count(record.labeled, name),
            predictions=_count(record.predictions, name),
            positives=_count(record.positives, name),
            confidence=float(confidence[name]) if name in confidence.index else None,
        )
        for name in record.classes
    ]


def _count(table: pd.DataFrame, label: str) -> int:
    return int((table["label"] == label).sum())


def _reward_config(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """The part of the configuration that says what phi was made of; empty where there is none."""
    found: Any = config
    for name in ("selection", "reward"):
        found = found.get(name, {}) if isinstance(found, Mapping) else {}
    return found if isinstance(found, Mapping) else {}
