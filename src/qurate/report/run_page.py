"""The page of a run: one file that needs nothing else, with the outcome first."""

from __future__ import annotations

import dataclasses
import io
import itertools
import json
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd
import torch
from PIL import Image
from torch import Tensor

from qurate.config import RunConfig, to_dict
from qurate.data.images import ImageFiles, UnreadableImageError, read_image
from qurate.data.samples import Inputs, Split, take
from qurate.methods import Method
from qurate.report.next_steps import steps_after
from qurate.report.page import data_uri, percent, render_page
from qurate.report.run_figures import (
    MOST_LABELS,
    PLACES,
    choose_points,
    draw_picture,
    embedding_figures,
    interval_figure,
    reliability_figure,
    rounds_figure,
)
from qurate.report.run_tables import (
    acceptance_table,
    class_rows,
    confusion_matrix,
    moved_in,
    predicted,
    surest_mistakes,
)
from qurate.report.run_text import (
    CONFUSIONS,
    answers_in_words,
    class_warnings,
    count_unknown,
    describe_center_prob,
    flagged_in_words,
    how_sure,
    issues_in_words,
    outcome,
)
from qurate.run_results import RunRecord
from qurate.runtime.commands import open_run, suggest_from
from qurate.runtime.files import write_atomically
from qurate.selection.algorithm import Adaptation
from qurate.selection.pseudo_labels import view

SIDE = 160
"""Longer side of a thumbnail in pixels."""
BUDGET = 2_500_000
"""Most characters that all thumbnails of a page may take."""
PAIRS = 12
"""Classes shown in both domains."""
GALLERY = 24
"""Trusted pseudo-labels shown in each part of the gallery, images of no class, and images to label next."""
FEW = 12
"""Labels to check and sure mistakes that are shown."""


def gather_record(
    files: Split,
    split: Split,
    result: Adaptation,
    labels: Tensor,
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
        labels: What the model of the run says of D_u, (N_u,) int64.
        config: The run.
        notes: Sentences on what was skipped or assumed.
        title: Heading of the page.
        before: Computes embeddings by the backbone before training, (N, width), for the map; None draws no map.
        no_comparison: Why there is no comparison, as a sentence.
    """
    classes, unlabeled = files.classes, _names(files.target_unlabeled.inputs)
    predictions = pd.DataFrame({"file": unlabeled, "label": [classes[k] for k in labels.tolist()]})
    positives = result.positives.table(classes)
    positives.insert(0, "file", [unlabeled[i] for i in positives["sample"]])
    source, labeled = (
        pd.DataFrame({"file": _names(part.inputs), "label": [classes[k] for k in part.labels.tolist()]})
        for part in (files.source, files.target_labeled)
    )
    named = {"source": source, "labeled": labeled, "unlabeled": predictions}
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
        drawn=0 if len(files.source) else len(split.source),
    )


def metrics_table(record: RunRecord) -> pd.DataFrame:
    """Rounds, comparison, calibration and answers in numbers: columns what, round, value."""
    values: dict[str, float] = {}
    if (found := record.comparison) is not None:
        numbers = {name: getattr(found, name) for name in ("adapted", "baseline", "images", "disagreement", "moved")}
        numbers |= dataclasses.asdict(found.gain)
        values |= {f"comparison_{name}": value for name, value in numbers.items() if math.isfinite(value)}
    if record.calibration.by != "nothing":
        values["calibration_temperature"] = record.calibration.temperature
        values["calibration_images"] = record.calibration.images
    if (flagged := record.flagged) is not None:
        values |= {"flagged_images": flagged.flagged, "flagged_held_out": flagged.held_out}
        values |= {"flagged_known_share": flagged.share, "flagged_known_share_highest": flagged.highest_share}
    if (answers := record.answers) is not None:
        names = ["labeled", "none", "wrong", "judged", "right", "right_now", "random", "random_right"]
        names += ["random_low", "random_high"] if answers.random else []
        values |= {f"answers_{name}": getattr(answers, name) for name in names}
        if (better := answers.improvement) is not None:
            values |= {f"improvement_{name}": value for name, value in dataclasses.asdict(better).items()}
        if answers.corrections is not None:
            values["answers_rejected"] = len(answers.corrections.left)
            values["answers_changed"] = answers.corrections.changed
    rows: list[tuple[str, int | None, float]] = [
        (name, int(row["round"]), float(row[name]))
        for row in record.rounds.to_dict("records")
        for name in ("positives", "new", "seconds")
    ]
    rows += [(name, None, float(value)) for name, value in values.items()]
    return pd.DataFrame(rows, columns=["what", "round", "value"]).astype({"round": "Int64"})


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
    chosen = choose_points(points, seed)  # no more is computed
    ends = list(itertools.accumulate(len(part) for part in _inputs(files)))  # a drawn source has no files
    rows = [chosen[(start <= chosen) & (chosen < end)] - start for start, end in itertools.pairwise([0, *ends])]
    first = torch.cat([before(part)[which].cpu() for part, which in zip(_inputs(shown), rows, strict=True)])
    parts = [take(part, which) for part, which in zip(_inputs(split), rows, strict=True)]
    after = torch.cat([view(method.network, part).features for part in parts if len(part)])
    return draw_picture(points.iloc[chosen.numpy()], first, after, seed=seed)


def _inputs(split: Split) -> tuple[Inputs, ...]:
    return split.source.inputs, split.target_labeled.inputs, split.target_unlabeled.inputs


def _names(inputs: Inputs) -> list[str]:
    assert isinstance(inputs, ImageFiles), "a run of your own images is made of files"
    return [str(path) for path in inputs.paths]


@dataclass(frozen=True)
class Thumbnail:
    """A picture for the page as a data URI, or the problem in its place; tiny ones stay sharp when enlarged."""

    alt: str
    uri: str = ""
    problem: str = ""
    tiny: bool = False


@dataclass(frozen=True)
class Card:
    """An image with its label and a few words."""

    image: Thumbnail
    label: str
    file: str
    lines: tuple[str, ...]


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
        tiny = max(image.size) <= 48
        image.thumbnail((SIDE, SIDE), Image.Resampling.LANCZOS)
        jpeg = io.BytesIO()
        image.save(jpeg, "JPEG", quality=76, optimize=True)
        uri = data_uri(jpeg.getvalue(), "jpeg")
        if len(uri) > self._left:
            return Thumbnail(f"{alt}: left out to keep the page small", problem="left out to keep the page small")
        self._left -= len(uri)
        return Thumbnail(alt, uri, tiny=tiny)

    def card(self, file: str, relation: str, label: str, *lines: str) -> Card:
        """The card of a file; its description is the name of the file and its relation to a class."""
        path = Path(file)
        return Card(self.of(path, f"{path.name}, {relation}"), label, path.name, lines)


def write_run_page(record: RunRecord, path: Path, run: Path | None = None) -> None:
    """Write the page of a run, whole or not at all.

    Args:
        record: What the run left.
        path: Where to; usually RUN/report.html.
        run: Its folder, as commands are to name it; that of the page unless given.
    """
    run = path.parent if run is None else run
    thumbnails = Thumbnails()
    compared_with, short_name = describe_center_prob((record.config.get("selection") or {}).get("reward") or {})
    doubtful, exemplary = _gallery(record)
    cards: dict[str, Any] = {  # in the order in which thumbnails fill the page
        "pairs": _pairs(record, thumbnails),
        "suggested": _to_label(record, thumbnails),
        "strange": _strange(record, thumbnails),
        "issues": _issues(record, thumbnails),
        "mistakes": _mistakes(record, thumbnails),
        "doubtful": _trusted(doubtful, thumbnails, short_name),
        "exemplary": _trusted(exemplary, thumbnails, short_name),
        "rejected": _rejected(record, thumbnails),
    }
    page = render_page(
        "run.html.j2",
        title=record.title,
        record=record,
        outcome=outcome(record.comparison, record.no_comparison, record.answers),
        answer_sentences=None if record.answers is None else answers_in_words(record.answers),
        confusions=() if record.answers is None else record.answers.confusions[:CONFUSIONS],
        **cards,
        flagged_sentences=flagged_in_words(record),
        perhaps_unknown=count_unknown(record)[0],
        issue_sentences=issues_in_words(record),
        correct=open_run(run).command,
        confusion=confusion_matrix(record),
        interval=interval_figure(record.comparison) if record.comparison else None,
        suggest=suggest_from(run, GALLERY).command,
        steps=steps_after(record, run),
        compared_with=compared_with,
        rounds=record.rounds.to_dict("records"),
        rounds_figure=rounds_figure(record.rounds),
        maps=embedding_figures(record.embedding, record.classes),
        most_labels=MOST_LABELS,
        images=len(record.source) + len(record.labeled) + len(record.predictions),
        classes=class_rows(record),
        has_baseline=bool((predicted(record)["baseline"] != "").any()),
        moved=len(moved_in(record)),
        class_warnings=class_warnings(record),
        acceptance=acceptance_table(record),
        how_sure=how_sure(record),
        reliability=reliability_figure(record.held_out),
        config=json.dumps(record.config, indent=2, ensure_ascii=False, default=str),
    )
    # A file name need not be valid Unicode; the page must be.
    write_atomically(path, page.encode("utf-8", errors="backslashreplace"))


def _pairs(record: RunRecord, thumbnails: Thumbnails) -> list[tuple[str, Thumbnail, Thumbnail]]:
    """Classes spread evenly over all, each with its first image of either domain."""
    shown = min(PAIRS, len(record.classes))
    source, target = (table.groupby("label")["file"].first() for table in (record.source, record.labeled))

    def first(files: pd.Series, name: str, domain: str) -> Thumbnail:
        return thumbnails.of(Path(files[name]) if name in files else None, f"{name} in the {domain}")

    names = [record.classes[i * len(record.classes) // shown] for i in range(shown)]
    return [(name, first(source, name, "source"), first(target, name, "target")) for name in names]


def _to_label(record: RunRecord, thumbnails: Thumbnails) -> list[Card]:
    """Images to label next."""
    asked = record.suggested.head(GALLERY)
    return [
        thumbnails.card(file, f"perhaps {label}", f"{label}?", f"{percent(probability)} sure", f"or {other}")
        for file, label, probability, other in _rows(asked, "file", "predicted", "probability", "runner_up")
    ]


def _strange(record: RunRecord, thumbnails: Thumbnails) -> list[Card]:
    """Images that fit none of the classes, or perhaps none."""
    perhaps = "" if record.flagged is None or record.flagged.flagged else "perhaps "
    return [
        thumbnails.card(
            file, f"{perhaps}none of the classes, nearest to {label}", f"{label}?", f"known: {percent(known, 1)}"
        )
        for file, label, known in _rows(_worst(record), "file", "label", "known")
    ]


def _issues(record: RunRecord, thumbnails: Thumbnails) -> list[Card]:
    """Labels to check."""
    columns = ("file", "part", "given", "suggested", "probability")
    return [
        thumbnails.card(
            file,
            f"labelled {label}, perhaps {suggested}",
            f"{suggested}?",
            f"labelled {label}",
            f"{percent(sure)} sure",
            "source" if part == "source" else "target",
        )
        for file, part, label, suggested, sure in _rows(record.label_issues.head(FEW), *columns)
    ]


def _mistakes(record: RunRecord, thumbnails: Thumbnails) -> list[Card]:
    """The surest mistakes on held-out labelled images."""
    columns = ("file", "label", "predicted", "probability")
    return [
        thumbnails.card(
            file, f"labelled {label}, taken for {named}", label, f"taken for {named}", f"{percent(sure)} sure"
        )
        for file, label, named, sure in _rows(surest_mistakes(record).head(FEW), *columns)
    ]


def _trusted(table: pd.DataFrame, thumbnails: Thumbnails, compared_with: str) -> list[Card]:
    """Trusted pseudo-labels of one part of the gallery."""
    return [
        thumbnails.card(
            file,
            f"taken for {label}",
            label,
            f"{percent(p_c)} sure",
            f"{compared_with}: {percent(p_f)}",
            f"at the end: {last}",
        )
        for file, label, p_c, p_f, last in _rows(table, "file", "label", "classifier_prob", "center_prob", "last")
    ]


def _gallery(record: RunRecord) -> tuple[pd.DataFrame, pd.DataFrame]:
    """The lowest by phi, and of the others the highest of each class in turn.

    The classifier is sure of nearly all of them, so phi counts in percent; then come those of which the finished model
    is least sure, first those for which it names another class. The column `last` says which, or how sure.
    """
    now = record.predictions[["file", "label", "probability"]].rename(columns={"label": "now", "probability": "sure"})
    found = record.positives.merge(now, "left", "file")
    is_same = found["now"] == found["label"]
    found = found.assign(
        last=found["sure"].map(percent).where(is_same, found["now"]),
        percent=found["phi"].round(2),
        sure=found["sure"].where(is_same, 0.0),
    )
    by_phi = found.sort_values(["percent", "sure"], kind="stable")
    doubtful, rest = by_phi.iloc[:GALLERY], by_phi.iloc[: GALLERY - 1 : -1]
    turn = rest.groupby("label").cumcount()
    return doubtful, rest.assign(turn=turn).sort_values(["turn", "label"], kind="stable").head(GALLERY)


def _worst(record: RunRecord) -> pd.DataFrame:
    """Flagged images, or all where it is only known that some fit no class; those that fit the classes worst first."""
    table = predicted(record)
    if table["flagged"].any() or not any(count_unknown(record)):
        table = table[table["flagged"]]
    return table.sort_values("known", kind="stable").head(GALLERY)


def _rejected(record: RunRecord, thumbnails: Thumbnails) -> list[Card]:
    """Pseudo-labels of the previous run that people rejected."""
    if record.answers is None or record.answers.corrections is None:
        return []
    words = {"none": "none of the classes", "wrong": "not that, nobody said what"}
    words |= {name: name for name in record.classes}  # a class may have such a name
    return [
        thumbnails.card(file, f"no {label}", words.get(answer, answer), f"was trusted as {label}")
        for file, label, answer in _rows(record.answers.corrections.left.head(GALLERY), "file", "label", "answer")
    ]


def _rows(table: pd.DataFrame, *columns: str) -> Iterator[tuple[Any, ...]]:
    if table.empty:  # perhaps without these columns
        return iter(())
    return zip(*(table[column] for column in columns), strict=True)
