"""What a run left, gathered for its page and its tables."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable

import pandas as pd
import torch
from torch import Tensor

from qurate.config import RunConfig, to_dict
from qurate.data.images import ImageFiles
from qurate.data.samples import Inputs, Split
from qurate.methods import Method
from qurate.report.run.picture import PLACES, draw_picture
from qurate.report.run.record import RunRecord
from qurate.selection.algorithm import Adaptation
from qurate.selection.views import view


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
    """Everything the page shows but the comparison, which comes last.

    Args:
        files: The parts as image files.
        split: The same parts as the network was given them.
        result: Of Algorithm 1.
        config: The run.
        notes: Sentences on what was skipped or assumed.
        title: Heading of the page.
        before: Embeddings by the backbone as it came, (N, width), for the map of the images; None draws no map.
        no_comparison: Why there is no comparison, as a sentence.
    """
    classes, unlabeled = files.classes, _names(files.target_unlabeled.inputs)
    sure, labels = view(result.method, split.target_unlabeled.inputs).probabilities.max(dim=1)
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
    if (told := record.answers) is not None:
        names = ("labeled", "none", "wrong", "judged", "right", "right_now", "random", "random_right")
        rows += [(f"answers_{name}", None, float(getattr(told, name))) for name in names]
        if told.random:
            rows += [(f"answers_{name}", None, getattr(told, name)) for name in ("random_low", "random_high")]
        if told.corrections is not None:
            rows.append(("answers_rejected", None, float(len(told.corrections.left))))
            rows.append(("answers_changed", None, float(told.corrections.changed)))
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
    after = torch.cat([view(method, part).features for part in _inputs(split)])
    return draw_picture(points, first, after, seed=seed)


def _inputs(split: Split) -> tuple[Inputs, ...]:
    return split.source.inputs, split.target_labeled.inputs, split.target_unlabeled.inputs


def _names(inputs: Inputs) -> list[str]:
    assert isinstance(inputs, ImageFiles), "a run of your own images is made of files"
    return [str(path) for path in inputs.paths]
