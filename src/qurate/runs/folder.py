"""A run folder: every file whole or absent, and a finished run never overwritten by chance.

- config.json: the settings and the digest of the data, written first
- checkpoint.safetensors, comparison.json: progress; gone when the run is finished
- predictions.csv: file, label, probability of each unlabelled image
- positives.csv: the pseudo-labels that were trusted, and why
- metrics.csv: rounds, and the comparison with S+T
- report.html: the page to look at
- model.safetensors: the network
- model.json: how to use it; written last, so that its presence means "finished"
"""

from __future__ import annotations

import errno
import json
import os
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pandas as pd
import safetensors.torch

from qurate.errors import QurateError
from qurate.report.run.record import RunRecord
from qurate.runs.model import ABOUT_FILE, WEIGHTS_FILE, AdaptedModel
from qurate.runtime.files import write_atomically
from qurate.selection.checkpoint import Progress

CONFIG_FILE, CHECKPOINT_FILE, COMPARISON_FILE = "config.json", "checkpoint.safetensors", "comparison.json"
PREDICTIONS_FILE, POSITIVES_FILE, METRICS_FILE = "predictions.csv", "positives.csv", "metrics.csv"
CURVES_FOLDER = "tensorboard"
REPORT_FILE = "report.html"
_FILES = (
    ABOUT_FILE,  # first to go: without it a run is not finished
    WEIGHTS_FILE,
    REPORT_FILE,
    METRICS_FILE,
    POSITIVES_FILE,
    PREDICTIONS_FILE,
    CHECKPOINT_FILE,
    COMPARISON_FILE,
    "model.onnx",  # an export of the model that goes
    CONFIG_FILE,
)
_LEAST_FREE = 200 * 2**20
"""Bytes that must be free where a run is written: model, checkpoint and page of a common backbone."""


class RunError(QurateError, RuntimeError):
    """A run folder cannot be used as asked; the message says why and what to pass."""


class RunFolder:
    """The folder of one run. It is the checkpoint of its Algorithm 1.

    Args:
        path: The folder; made where it is absent.
    """

    def __init__(self, path: Path | str) -> None:
        self.path = Path(path)

    @property
    def finished(self) -> bool:
        """Whether the run is done."""
        return (self.path / ABOUT_FILE).is_file()

    def claim(self, *, resume: bool, force: bool) -> None:
        """Make sure that this run may be written here, before anything is trained.

        Args:
            resume: Continue what is there.
            force: Remove an earlier run's files; others are never touched.

        Raises:
            RunError: If an earlier run would be lost, the folder is not a run's, or it cannot be written.
        """
        there = [name for name in _FILES if (self.path / name).exists()] if self._is_run() else []
        if self.path.exists() and not self.path.is_dir():
            raise RunError(f"{self.path}: the run folder must be a folder, and this is a file. Choose another --out.")
        if there and not (resume or force):
            if self.finished:
                raise RunError(
                    f"{self.path} holds a finished run. Choose another --out, or pass --force to overwrite it."
                )
            raise RunError(
                f"{self.path} holds an unfinished run. Pass --resume to continue it, or --force to start again."
            )
        if not there and self.path.is_dir() and any(self.path.iterdir()):
            raise RunError(f"{self.path} is not empty and not a run of qurate. Choose another --out.")
        self._check_writable()
        if force and not resume:
            for name in _FILES:
                (self.path / name).unlink(missing_ok=True)
            shutil.rmtree(self.path / CURVES_FOLDER, ignore_errors=True)

    def _is_run(self) -> bool:
        """Whether files of our names are ours: models of other programs have a config.json too."""
        try:
            kept = json.loads((self.path / CONFIG_FILE).read_text(encoding="utf-8"))
        except OSError:
            return (self.path / ABOUT_FILE).is_file() or (self.path / CHECKPOINT_FILE).is_file()
        except ValueError:
            return True  # ours, damaged, as far as one can tell
        return isinstance(kept, dict) and "qurate" in kept

    def check(self, settings: Mapping[str, Any]) -> None:
        """Make sure that an interrupted run has these settings; there may be others."""
        path = self.path / CONFIG_FILE
        if not path.is_file():
            return
        wanted = json.loads(json.dumps(settings))
        try:
            kept = json.loads(path.read_text(encoding="utf-8"))
        except ValueError as error:
            raise RunError(f"{path}: damaged ({error}). Pass --force to start again.") from error
        if differing := sorted(found for name in wanted for found in _differences(name, kept.get(name), wanted[name])):
            raise RunError(
                f"{self.path} was started with other settings, so it cannot be resumed with these: "
                f"{'; '.join(differing[:4])}. Repeat its settings, or pass --force to start again."
            )

    def begin(self, settings: Mapping[str, Any]) -> None:
        """Write the settings, or make sure that a resumed run has the same ones."""
        self.check(settings)
        if not (self.path / CONFIG_FILE).is_file():
            self._write(CONFIG_FILE, json.dumps(settings, indent=2, ensure_ascii=False) + "\n")

    def load(self) -> Progress | None:
        """Where Algorithm 1 was when the run was killed, or None."""
        path = self.path / CHECKPOINT_FILE
        if not path.is_file():
            return None
        try:
            return Progress.of_tensors(safetensors.torch.load_file(path))
        except Exception as error:  # a damaged or foreign file fails in many ways; none of them runs its code
            raise RunError(f"{path}: damaged ({type(error).__name__}). Pass --force to start again.") from error

    def save(self, progress: Progress) -> None:
        """Keep where Algorithm 1 is."""
        self._write(CHECKPOINT_FILE, safetensors.torch.save(progress.tensors()))

    def load_folds(self) -> list[dict[str, list[bool]]]:
        """The folds of the comparison that are done."""
        path = self.path / COMPARISON_FILE
        return list(json.loads(path.read_text())) if path.is_file() else []

    def save_folds(self, folds: list[dict[str, list[bool]]]) -> None:
        """Keep the folds of the comparison that are done."""
        self._write(COMPARISON_FILE, json.dumps(folds))

    def finish(self, model: AdaptedModel, record: RunRecord) -> None:
        """Write results, page and model; then forget the progress."""
        from qurate.report.run.gather import metrics_table  # both draw, and predicting need not load what draws
        from qurate.report.run.page import write_report

        self._write(PREDICTIONS_FILE, as_csv(record.predictions))
        self._write(POSITIVES_FILE, as_csv(record.positives))
        self._write(METRICS_FILE, as_csv(metrics_table(record)))
        try:
            write_report(record, self.path / REPORT_FILE)
            model.save(self.path)
        except OSError as error:
            raise _unwritable(self.path, error) from error
        for name in (CHECKPOINT_FILE, COMPARISON_FILE):
            (self.path / name).unlink(missing_ok=True)

    def _write(self, name: str, content: str | bytes) -> None:
        try:
            write_atomically(self.path / name, content)
        except OSError as error:
            raise _unwritable(self.path, error) from error

    def _check_writable(self) -> None:
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryFile(dir=self.path):
                pass
            free = shutil.disk_usage(self.path).free
        except OSError as error:
            raise _unwritable(self.path, error) from error
        if free < _LEAST_FREE:
            raise RunError(
                f"{self.path}: {free // 2**20} MiB are free on this disk and a run needs about "
                f"{_LEAST_FREE // 2**20} MiB. Make room, or choose another --out."
            )


def as_csv(table: pd.DataFrame) -> bytes:
    """A table for a file; names that are no valid text keep their bytes."""
    text: str = table.to_csv(index=False)
    return text.encode("utf-8", errors="surrogateescape")


def _unwritable(path: Path, error: OSError) -> RunError:
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return RunError(
            f"{path}: the disk is full. Make room and re-run the command with --resume to continue; nothing that was "
            "written is lost."
        )
    reason = error.strerror or os.strerror(error.errno or 0)
    return RunError(f"{path}: cannot be written ({reason}). Choose another --out, or check its permissions.")


def _differences(where: str, kept: Any, wanted: Any) -> list[str]:
    if isinstance(kept, dict) and isinstance(wanted, dict):
        names = kept.keys() | wanted.keys()
        return [found for name in names for found in _differences(f"{where}.{name}", kept.get(name), wanted.get(name))]
    return [] if kept == wanted else [f"{where} was {kept!r}, is {wanted!r}"]
