"""Names of the files of a run, and how a run replaces another one in the same folder."""

from __future__ import annotations

import errno
import json
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from qurate.errors import RunError
from qurate.runs.model_json import ABOUT_FILE, STAGE, WEIGHTS_FILE
from qurate.runtime.files import file_lock
from qurate.runtime.paths import is_file, is_folder

CONFIG_FILE, CHECKPOINT_FILE = "config.json", "checkpoint.safetensors"
CHECKPOINT_BEFORE = "checkpoint.before.safetensors"
COMPARISON_FILE = "comparison.safetensors"
FULL_FILE, FULL_FOLDS_FILE = "full.safetensors", "full_folds.safetensors"
"""Checkpoint of training all layers, and predictions of its folds."""
PREDICTIONS_FILE, POSITIVES_FILE, METRICS_FILE = "predictions.csv", "positives.csv", "metrics.csv"
REPORT_FILE = "report.html"
EXAMPLES_FILE, SUGGESTIONS_FILE = "examples.csv", "suggestions.csv"
IMAGES_FILE = "images.csv"
"""Which images an unfinished run was started with."""
PROGRESS_FILE = "progress.json"
"""How far a run is, while it works."""
CURVES_FOLDER = "tensorboard"
BASELINE_FOLDER = "baseline"
"""S+T of the run: its model and its predictions."""
EXPORT_FILE = "model.onnx"
CARD_FILE, CARD_MARK = "README.md", "<!-- The model card, written by qurate. Remove this line to keep your changes. -->"
_FILES = (
    CONFIG_FILE,  # moved first: while it is in the replacement, nothing was moved
    IMAGES_FILE,
    EXPORT_FILE,  # of the model that is replaced; no replacement has one
    COMPARISON_FILE,
    FULL_FILE,
    FULL_FOLDS_FILE,
    CHECKPOINT_FILE,
    CHECKPOINT_BEFORE,
    PREDICTIONS_FILE,
    POSITIVES_FILE,
    METRICS_FILE,
    EXAMPLES_FILE,
    SUGGESTIONS_FILE,
    REPORT_FILE,
    CARD_FILE,
    WEIGHTS_FILE,
    ABOUT_FILE,  # moved last
)


class Replacement:
    """A run that will replace another one, in the folder `.new` of that run until it is finished.

    Args:
        run: The folder of the run to replace.
    """

    def __init__(self, run: Path) -> None:
        self.run = run
        self.path = run / STAGE

    @property
    def unfinished(self) -> bool:
        """Whether there is one that is still to be trained."""
        return is_folder(self.path) and not self.finished

    @property
    def finished(self) -> bool:
        """Whether there is one that only waits to be moved into place."""
        return is_file(self.path / ABOUT_FILE)

    def remove(self) -> None:
        """Give it up."""
        if is_folder(self.path):
            shutil.rmtree(self.path)

    def move_into_place(self) -> None:
        """Replace the files of the other run, in an order that can be continued after a kill; other files stay."""
        if not is_our_card(self.run / CARD_FILE):
            (self.path / CARD_FILE).unlink(missing_ok=True)
        if is_file(self.path / CONFIG_FILE):
            for name in _FILES:
                if not is_file(self.path / name) and (name != CARD_FILE or is_our_card(self.run / name)):
                    (self.run / name).unlink(missing_ok=True)
            for name in (BASELINE_FOLDER, CURVES_FOLDER):
                if name == BASELINE_FOLDER or is_folder(self.path / name):
                    shutil.rmtree(self.run / name, ignore_errors=True)
                if is_folder(self.path / name):
                    (self.path / name).rename(self.run / name)
        for name in _FILES:
            if is_file(self.path / name):
                (self.path / name).replace(self.run / name)
        self.remove()


def is_our_card(path: Path) -> bool:
    """Whether a README.md may be written: there is none, or one that qurate wrote and nobody has taken over."""
    try:
        return CARD_MARK in path.read_text(encoding="utf-8", errors="replace")[:1000]
    except FileNotFoundError:
        return True
    except OSError:
        return False


def holds_run(folder: Path) -> bool:
    """Whether a folder holds a run of qurate: models of other programs have a config.json too."""
    try:
        config = json.loads((folder / CONFIG_FILE).read_text(encoding="utf-8"))
    except OSError:
        return any(is_file(folder / name) for name in (ABOUT_FILE, CHECKPOINT_FILE, CHECKPOINT_BEFORE))
    except (ValueError, RecursionError):
        return True  # damaged, so it cannot be told from one of ours
    return isinstance(config, dict) and "qurate" in config


@contextmanager
def lock_run(folder: Path) -> Iterator[None]:
    """Keep other processes out of a run folder until the block exits or this process ends.

    Raises:
        RunError: If another process works there.
    """
    with file_lock(folder) as alone:
        if not alone:
            raise RunError(f"{folder}: another process is at work here. Wait for it, or choose another `out`.")
        yield


@contextmanager
def disk_errors(path: Path) -> Iterator[None]:
    """Raise errors of the disk as `RunError`, with advice."""
    try:
        yield
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise RunError(
                f"{path}: the disk is full. Make room and re-run with `resume=True` to continue; nothing that was "
                "written is lost."
            ) from error
        reason = error.strerror or os.strerror(error.errno or 0)
        raise RunError(
            f"{path}: cannot be written ({reason}). Choose another `out`, or check its permissions."
        ) from error
