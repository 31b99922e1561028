"""A run folder with a tiny model, written by hand in a moment: what suggest and review need of a finished run."""

from __future__ import annotations

import json
from pathlib import Path

import pandas as pd
from tests.own_images import BACKBONE, COLORS, make_folders

from qurate.config import NetworkConfig
from qurate.networks.heads import build_network
from qurate.run_results import LABEL_ISSUES
from qurate.runs.model import AdaptedModel
from qurate.runtime.tables import read_csv, to_csv

CLASSES = tuple(sorted(COLORS))


def write_run(root: Path, *, unlabeled: int = 6, trusted: int = 5) -> Path:
    """Images in `root`, and in `root/run` a model that nobody trained, with its predictions and positives."""
    places = make_folders(root, unlabeled=unlabeled)
    config = NetworkConfig(BACKBONE, "none", "normalized", features=8)
    network = build_network(config, n_classes=3, input_width=None, seed=0)
    model = AdaptedModel(network.eval(), config, CLASSES, {"trained": "head"})
    run = root / "run"
    model.save(run)
    table = model.predict(places["unlabeled"])
    (run / "predictions.csv").write_bytes(to_csv(table))
    sure = table.sort_values("probability", ascending=False).head(trusted)
    positives = sure[["file", "label"]].assign(round=0, reward=None, phi=-0.1, classifier_prob=sure["probability"])
    (run / "positives.csv").write_bytes(to_csv(positives.assign(center_prob=0.9, entropy_drop=0.0)))
    examples = [
        (str(path), name, part)
        for part in ("source", "labeled")
        for name in CLASSES
        for path in sorted((places[part] / name).iterdir())[:2]
    ]
    table = pd.DataFrame(examples, columns=["file", "label", "part"])
    (run / "examples.csv").write_bytes(to_csv(table))
    (run / "label_issues.csv").write_bytes(to_csv(pd.DataFrame(columns=LABEL_ISSUES)))
    return run


HOSTILE = (
    "<img src=x onerror=window.hurt=1>",
    "\u202egnp.exe right to left \u05e9\u05dc\u05d5\u05dd",
    "😀👩‍👩‍👧‍👦" + "🏳️‍🌈" * 8,
    "x" * 251,
    "first line\nsecond line",
    "'\"&lt;<script>window.hurt=1<script>",
)
"""Names that a browser must show as they are: HTML, right to left, emoji, as long as a name can be, two lines."""


def rename_hostile(run: Path) -> None:
    """Give the classes and the images of a run that `write_run` made hostile names."""
    classes = dict(zip(CLASSES, (HOSTILE[0], HOSTILE[1] + HOSTILE[2], HOSTILE[3]), strict=True))
    about = json.loads((run / "model.json").read_text(encoding="utf-8"))
    (run / "model.json").write_text(json.dumps({**about, "classes": list(classes.values())}), encoding="utf-8")
    moved: dict[str, str] = {}
    for number, path in enumerate(sorted((run.parent / "unlabeled").rglob("*.png"))):
        place = path.parent / str(number) / f"{HOSTILE[number % len(HOSTILE)]}.png"
        place.parent.mkdir()
        moved[str(path)] = str(path.rename(place))
    for name in ("predictions.csv", "positives.csv", "examples.csv"):
        table = read_csv(run / name)
        files = [moved.get(file, file) for file in table["file"]]
        (run / name).write_bytes(to_csv(table.assign(file=files, label=[classes[label] for label in table["label"]])))
