"""The page of a run: one file that needs nothing else, with the outcome first."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import chain, islice, zip_longest
from pathlib import Path
from typing import Any

import pandas as pd

from qurate.report.numbers import percent
from qurate.report.pages import render_page
from qurate.report.run.answers import CONFUSIONS, answers_in_words
from qurate.report.run.figures import (
    MOST_LABELS,
    embedding_figures,
    interval_figure,
    reliability_figure,
    rounds_figure,
)
from qurate.report.run.record import RunRecord
from qurate.report.run.thumbnails import Thumbnail, Thumbnails
from qurate.report.run.words import how_sure, outcome, witnesses
from qurate.runtime.files import write_atomically

PAIRS = 12
"""Classes shown in both domains."""
GALLERY = 24
"""Trusted pseudo-labels shown in each part of the gallery, and images to label next."""


@dataclass(frozen=True)
class Card:
    """An image with its label and a few words."""

    image: Thumbnail
    label: str
    file: str
    lines: tuple[str, ...]


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


def write_run_page(record: RunRecord, path: Path) -> None:
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
    pairs, uncertain = _pairs(record, thumbnails), _least_certain(record)
    in_full, in_a_word = witnesses(_reward_config(record.config))
    guesses = [_guess_card(row, thumbnails) for row in uncertain.to_dict("records")]
    doubtful, exemplary = (
        [_trust_card(row, in_a_word, thumbnails) for row in rows.to_dict("records")]
        for rows in _gallery(record.positives)
    )
    return render_page(
        "run.html.j2",
        title=record.title,
        record=record,
        outcome=outcome(record.comparison, record.no_comparison, record.answers),
        told=None if record.answers is None else answers_in_words(record.answers),
        confusions=() if record.answers is None else record.answers.confusions[:CONFUSIONS],
        rejected=_rejected(record, thumbnails),
        interval=interval_figure(record.comparison) if record.comparison else None,
        pairs=pairs,
        uncertain=guesses,
        uncertain_files=[str(file) for file in uncertain["file"]],
        witness=in_full,
        doubtful=doubtful,
        exemplary=exemplary,
        rounds=record.rounds.to_dict("records"),
        rounds_figure=rounds_figure(record.rounds),
        maps=embedding_figures(record.embedding, record.classes),
        most_labels=MOST_LABELS,
        images=len(record.source) + len(record.labeled) + len(record.predictions),
        classes=_class_rows(record),
        how_sure=how_sure(record),
        reliability=reliability_figure(record.held_out),
        config=json.dumps(record.config, indent=2, ensure_ascii=False, default=str),
    )


def _pairs(record: RunRecord, thumbnails: Thumbnails) -> list[Pair]:
    """Classes spread evenly over all, each with its first image of either domain."""
    shown = min(PAIRS, len(record.classes))
    names = [record.classes[i * len(record.classes) // shown] for i in range(shown)]
    first = [table.drop_duplicates("label").set_index("label")["file"] for table in (record.source, record.labeled)]
    return [
        Pair(
            name,
            *(
                thumbnails.of(Path(files[name]) if name in files.index else None, f"{name} in the {domain}")
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


def _trust_card(row: Mapping[Any, Any], witness: str, thumbnails: Thumbnails) -> Card:
    label, path = str(row["label"]), Path(row["file"])
    why = (f"{percent(row['classifier_prob'])} sure", f"{witness}: {percent(row['center_prob'])}")
    return Card(thumbnails.of(path, f"{path.name}, taken for {label}"), label, path.name, why)


def _guess_card(row: Mapping[Any, Any], thumbnails: Thumbnails) -> Card:
    label, path = str(row["label"]), Path(row["file"])
    image = thumbnails.of(path, f"{path.name}, perhaps {label}")
    return Card(image, f"{label}?", path.name, (f"{percent(row['probability'])} sure",))


def _rejected(record: RunRecord, thumbnails: Thumbnails) -> list[Card]:
    """Pseudo-labels of the previous run that people rejected."""
    corrections = None if record.answers is None else record.answers.corrections
    if corrections is None:
        return []
    said = {"none": "none of the classes", "wrong": "not that, nobody said what"}
    cards = []
    for row in corrections.left.head(GALLERY).to_dict("records"):
        label, path = str(row["label"]), Path(row["file"])
        answer = str(row["answer"])
        told = answer if answer in record.classes else said.get(answer, answer)
        cards.append(
            Card(thumbnails.of(path, f"{path.name}, no {label}"), told, path.name, (f"was trusted as {label}",))
        )
    return cards


def _class_rows(record: RunRecord) -> list[ClassRow]:
    tables = (record.source, record.labeled, record.predictions, record.positives)
    source, labeled, predictions, positives = (
        table["label"].value_counts().reindex(record.classes, fill_value=0).tolist() for table in tables
    )
    confidence = record.predictions.groupby("label")["probability"].mean()
    found = [confidence.get(name) for name in record.classes]
    columns = zip(record.classes, source, labeled, predictions, positives, found, strict=True)
    return [ClassRow(*row) for row in columns]


def _reward_config(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """The part of the configuration that says what phi was made of; empty where there is none."""
    found: Any = config
    for name in ("selection", "reward"):
        found = found.get(name, {}) if isinstance(found, Mapping) else {}
    return found if isinstance(found, Mapping) else {}
