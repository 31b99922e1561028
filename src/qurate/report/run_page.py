"""The page of a run: one file that needs nothing else, with the outcome first."""

from __future__ import annotations

import dataclasses
import io
import json
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import chain, islice, zip_longest
from pathlib import Path
from typing import Any

import pandas as pd
import torch
from PIL import Image
from torch import Tensor

from qurate.config import RunConfig, to_dict
from qurate.data.images import ImageFiles, UnreadableImageError, read_image
from qurate.data.samples import Inputs, Split
from qurate.methods import Method
from qurate.report.page import data_uri, percent, render_page
from qurate.report.run_figures import (
    MOST_LABELS,
    PLACES,
    draw_picture,
    embedding_figures,
    interval_figure,
    reliability_figure,
    rounds_figure,
)
from qurate.report.run_text import CONFUSIONS, answers_in_words, how_sure, outcome, witnesses
from qurate.run_results import RunRecord
from qurate.runtime.files import write_atomically
from qurate.selection.algorithm import Adaptation
from qurate.selection.pseudo_labels import view

SIDE = 160
"""Longer side of a thumbnail in pixels."""
BUDGET = 2_500_000
"""Most characters that all thumbnails of a page may take."""
_TINY = 48


@dataclass(frozen=True)
class Thumbnail:
    """A picture for the page, or why there is none.

    Args:
        alt: Its description.
        uri: The JPEG as a data URI; empty where there is none.
        problem: The text in its place.
        tiny: Whether it is so small that pixels should stay sharp when enlarged.
    """

    alt: str
    uri: str = ""
    problem: str = ""
    tiny: bool = False


class Thumbnails:
    """Makes thumbnails until the page is full.

    Args:
        budget: Characters to spend.
    """

    def __init__(self, budget: int = BUDGET) -> None:
        self._left = budget

    def of(self, path: Path | None, alt: str) -> Thumbnail:
        """The thumbnail of a file, or a text where it cannot be read."""
        if path is None:
            return Thumbnail(f"{alt}: no such image", problem="no image")
        try:
            image = read_image(path)
        except UnreadableImageError:
            return Thumbnail(f"{alt}: cannot be read", problem="cannot be read")
        tiny = max(image.size) <= _TINY
        uri = data_uri(_jpeg(image), "jpeg")
        if len(uri) > self._left:
            return Thumbnail(f"{alt}: left out to keep the page small", problem="left out to keep the page small")
        self._left -= len(uri)
        return Thumbnail(alt, uri, tiny=tiny)


def _jpeg(image: Image.Image) -> bytes:
    image.thumbnail((SIDE, SIDE), Image.Resampling.LANCZOS)
    jpeg = io.BytesIO()
    image.save(jpeg, "JPEG", quality=76, optimize=True)
    return jpeg.getvalue()


def gather_record(
    files: Split,
    split: Split,
    result: Adaptation,
    config: RunConfig,
    notes: tuple[str, ...],
    *,
    title: str,
    before: Callable[[Inputs], Tensor] | None,
    no_comparison: str = "",
) -> RunRecord:
    """Everything the page shows except the comparison, which is made last.

    Args:
        files: The parts as image files.
        split: The same parts as the network was given them.
        result: Of Algorithm 1.
        config: The run.
        notes: Sentences on what was skipped or assumed.
        title: Heading of the page.
        before: Computes embeddings by the backbone before training, (N, width), for the map; None draws no map.
        no_comparison: Why there is no comparison, as a sentence.
    """
    classes, unlabeled = files.classes, _names(files.target_unlabeled.inputs)
    sure, labels = view(result.method.network, split.target_unlabeled.inputs).probabilities.max(dim=1)
    predictions = pd.DataFrame(
        {"file": unlabeled, "label": [classes[k] for k in labels.tolist()], "probability": sure.tolist()}
    )
    positives = result.positives.table(classes)
    positives.insert(0, "file", [unlabeled[i] for i in positives["sample"]])
    source, labeled = (
        pd.DataFrame({"file": _names(part.inputs), "label": [classes[k] for k in part.labels.tolist()]})
        for part in (files.source, files.target_labeled)
    )
    named = {"source": source, "labeled": labeled, "unlabeled": predictions[["file", "label"]]}
    points = pd.concat([table.assign(part=part) for part, table in named.items()], ignore_index=True)
    columns = ["round", "positives", "new", "seconds"]
    return RunRecord(
        title=title,
        classes=classes,
        source=source,
        labeled=labeled,
        predictions=predictions,
        positives=positives.drop(columns="sample"),
        rounds=pd.DataFrame([dataclasses.asdict(record) for record in result.rounds], columns=columns),
        embedding=_picture(files, split, result.method, points, before, config.seed),
        comparison=None,
        stopped=result.stopped,
        config=to_dict(config),
        notes=notes,
        no_comparison=no_comparison,
    )


def metrics_table(record: RunRecord) -> pd.DataFrame:
    """Rounds, comparison, calibration and answers in numbers: columns what, round, value."""
    rows: list[tuple[str, int | None, float]] = [
        (name, int(row["round"]), float(row[name]))
        for row in record.rounds.to_dict("records")
        for name in ("positives", "new", "seconds")
    ]
    if (found := record.comparison) is not None:
        values = {name: getattr(found, name) for name in ("adapted", "baseline", "images", "disagreement", "moved")}
        for prefix, gain in (("", found.gain), ("balanced_", found.balanced)):
            values |= {f"{prefix}{name}": value for name, value in dataclasses.asdict(gain).items()}
        rows += [(f"comparison_{name}", None, float(value)) for name, value in values.items() if math.isfinite(value)]
    if record.calibration.by != "nothing":
        rows.append(("calibration_temperature", None, record.calibration.temperature))
        rows.append(("calibration_images", None, float(record.calibration.images)))
    if (answers := record.answers) is not None:
        names = ("labeled", "none", "wrong", "judged", "right", "right_now", "random", "random_right")
        rows += [(f"answers_{name}", None, float(getattr(answers, name))) for name in names]
        if answers.random:
            rows += [(f"answers_{name}", None, getattr(answers, name)) for name in ("random_low", "random_high")]
        if answers.corrections is not None:
            rows.append(("answers_rejected", None, float(len(answers.corrections.left))))
            rows.append(("answers_changed", None, float(answers.corrections.changed)))
    table = pd.DataFrame(rows, columns=["what", "round", "value"])
    table["round"] = table["round"].astype("Int64")
    return table


def _picture(
    files: Split,
    split: Split,
    method: Method,
    points: pd.DataFrame,
    before: Callable[[Inputs], Tensor] | None,
    seed: int,
) -> pd.DataFrame:
    if before is None:
        return points.iloc[:0].reindex(columns=[*points, *PLACES])
    shown = files if isinstance(split.source.inputs, ImageFiles) else split  # its files may be stored arrays
    first = torch.cat([before(part).cpu() for part in _inputs(shown)])
    after = torch.cat([view(method.network, part).features for part in _inputs(split)])
    return draw_picture(points, first, after, seed=seed)


def _inputs(split: Split) -> tuple[Inputs, ...]:
    return split.source.inputs, split.target_labeled.inputs, split.target_unlabeled.inputs


def _names(inputs: Inputs) -> list[str]:
    assert isinstance(inputs, ImageFiles), "a run of your own images is made of files"
    return [str(path) for path in inputs.paths]


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
        answer_sentences=None if record.answers is None else answers_in_words(record.answers),
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
    words = {"none": "none of the classes", "wrong": "not that, nobody said what"}
    cards = []
    for row in corrections.left.head(GALLERY).to_dict("records"):
        label, path = str(row["label"]), Path(row["file"])
        answer = str(row["answer"])
        shown = answer if answer in record.classes else words.get(answer, answer)
        cards.append(
            Card(thumbnails.of(path, f"{path.name}, no {label}"), shown, path.name, (f"was trusted as {label}",))
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
    """The part of the configuration that defines phi; empty where there is none."""
    found: Any = config
    for name in ("selection", "reward"):
        found = found.get(name, {}) if isinstance(found, Mapping) else {}
    return found if isinstance(found, Mapping) else {}
