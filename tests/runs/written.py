"""A run folder with a tiny model, written by hand in a moment: what suggest and review need of a finished run."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
from tests.own_images import BACKBONE, COLORS, make_folders

from qurate.config import NetworkConfig
from qurate.networks.heads import build_network
from qurate.runs.model import AdaptedModel
from qurate.runtime.tables import to_csv

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
    return run
