"""The files of a run by name, and how one run replaces another.

Written beside it, and moved into place when it is whole.
"""

from __future__ import annotations

import errno
import json
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from qurate.errors import QurateError as QurateError
from qurate.errors import RunError as RunError
from qurate.runs.model_json import ABOUT_FILE, STAGE, WEIGHTS_FILE
from qurate.runtime.files import hold as lock_folder
from qurate.runtime.paths import is_file, is_folder

CONFIG_FILE, CHECKPOINT_FILE = "config.json", "checkpoint.safetensors"
CHECKPOINT_BEFORE = "checkpoint.before.safetensors"
COMPARISON_FILE, OLDER_COMPARISON_FILE = "comparison.safetensors", "comparison.json"
PREDICTIONS_FILE, POSITIVES_FILE, METRICS_FILE = "predictions.csv", "positives.csv", "metrics.csv"
REPORT_FILE = "report.html"
EXAMPLES_FILE = "examples.csv"
CURVES_FOLDER = "tensorboard"
BASELINE_FOLDER = "baseline"
"""S+T of the run: its model and its predictions; see `runs.baseline`."""
EXPORT_FILE = "model.onnx"
_FILES = (
    CONFIG_FILE,  # first to be moved: while it is in the stage, nothing was
    EXPORT_FILE,  # of the model that goes; no stage has one
    COMPARISON_FILE,
    OLDER_COMPARISON_FILE,
    CHECKPOINT_FILE,
    CHECKPOINT_BEFORE,
    PREDICTIONS_FILE,
    POSITIVES_FILE,
    METRICS_FILE,
    EXAMPLES_FILE,
    REPORT_FILE,
    WEIGHTS_FILE,
    ABOUT_FILE,  # last to be moved
)


class Stage:
    """Where a run is written that will replace another.

    Args:
        run: The folder of the other.
    """

    def __init__(self, run: Path) -> None:
        self.run = run
        self.path = run / STAGE

    @property
    def begun(self) -> bool:
        """Whether an unfinished run is in it."""
        return is_folder(self.path) and not self.whole

    @property
    def whole(self) -> bool:
        """Whether a finished run is in it, to be moved."""
        return is_file(self.path / ABOUT_FILE)

    def clear(self) -> None:
        """Remove it."""
        if is_folder(self.path):
            shutil.rmtree(self.path)

    def replace_run(self) -> None:
        """Move what is in it into place, in the order that a kill can be mended in. Files of others stay."""
        curves = self.run / CURVES_FOLDER
        if is_file(self.path / CONFIG_FILE):
            for name in _FILES:
                if not is_file(self.path / name):
                    (self.run / name).unlink(missing_ok=True)
            shutil.rmtree(self.run / BASELINE_FOLDER, ignore_errors=True)  # of the model that goes; no stage has one
            if is_folder(self.path / CURVES_FOLDER):
                shutil.rmtree(curves, ignore_errors=True)
                (self.path / CURVES_FOLDER).rename(curves)
        for name in _FILES:
            if is_file(self.path / name):
                (self.path / name).replace(self.run / name)
        self.clear()


def holds_run(folder: Path) -> bool:
    """Whether files of our names are there and are ours: models of other programs have a config.json too."""
    try:
        kept = json.loads((folder / CONFIG_FILE).read_text(encoding="utf-8"))
    except OSError:
        return any(is_file(folder / name) for name in (ABOUT_FILE, CHECKPOINT_FILE, CHECKPOINT_BEFORE))
    except (ValueError, RecursionError):
        return True  # ours, damaged, as far as one can tell
    return isinstance(kept, dict) and "qurate" in kept


def is_pending(folder: Path) -> bool:
    """Whether a comparison there is still to be finished."""
    return any(is_file(folder / name) for name in (COMPARISON_FILE, OLDER_COMPARISON_FILE))


@contextmanager
def hold(folder: Path) -> Iterator[None]:
    """Keep other processes out of a run folder for the length of the block; the system ends it if this one dies.

    Raises:
        RunError: If another process is at work there.
    """
    with lock_folder(folder) as alone:
        if not alone:
            raise RunError(f"{folder}: another process is at work here. Wait for it, or choose another `out`.")
        yield


@contextmanager
def disk_errors(path: Path) -> Iterator[None]:
    """Errors of the disk as errors of ours."""
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
