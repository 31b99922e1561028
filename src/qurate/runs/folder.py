"""The folder of a run: its settings, checkpoints and results; every file is whole or absent."""

from __future__ import annotations

import json
import shutil
import tempfile
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pandas as pd
from safetensors import safe_open
from torch import Tensor

from qurate.active.answers import LABELS_FILE, Answer, AnswerLog
from qurate.config import read_settings
from qurate.data.samples import Split
from qurate.errors import ConfigError, RunError
from qurate.run_results import RunRecord
from qurate.runs.comparison import Folds, Model, pack_folds, unpack_folds
from qurate.runs.files import (
    BASELINE_FOLDER,
    CARD_FILE,
    CHECKPOINT_BEFORE,
    CHECKPOINT_FILE,
    COMPARISON_FILE,
    CONFIG_FILE,
    EXAMPLES_FILE,
    FULL_FILE,
    FULL_FOLDS_FILE,
    IMAGES_FILE,
    ISSUES_FILE,
    METRICS_FILE,
    POSITIVES_FILE,
    PREDICTIONS_FILE,
    PROGRESS_FILE,
    REPORT_FILE,
    SUGGESTIONS_FILE,
    Replacement,
    disk_errors,
    holds_run,
    is_our_card,
    lock_run,
)
from qurate.runs.model import AdaptedModel
from qurate.runs.model_json import ABOUT_FILE
from qurate.runtime.files import write_atomically
from qurate.runtime.paths import is_file, list_some
from qurate.runtime.tables import TableError, read_csv, to_csv
from qurate.runtime.tensors import not_finite, pack_tensors, read_tensors
from qurate.selection.crossfit import Fold
from qurate.selection.session import Progress


class RunWarning(UserWarning):
    """A file of a run is damaged, and the run continues without it."""


def read_checkpoint(path: Path) -> Progress:
    """Read a checkpoint; where it is damaged, errors are of many kinds."""
    tensors = read_tensors(path)
    if strange := not_finite({name: tensors[name] for name in tensors if name.startswith("trainer.")}):
        raise ValueError(f"NaN in {strange[0]}")
    return Progress.of_tensors(tensors)


def describe_checkpoint(folder: Path) -> str:
    """What the newest checkpoint holds, as the beginning of a sentence; KeyError where none can be read."""
    about: Mapping[str, str] = {}
    for name in (CHECKPOINT_BEFORE, CHECKPOINT_FILE):
        with suppress(Exception), safe_open(folder / name, framework="pt") as file:  # missing or damaged
            about = file.metadata() or {}
    rounds, steps = int(about["rounds"]), int(about.get("steps", 0))
    if about.get("line") == "1":
        return f"The first {steps} steps of pre-training are"
    done = "Pre-training" if not rounds else f"Pre-training and {rounds} of the rounds"
    if steps:
        return f"{done} and {steps} steps of {'the next one' if rounds else 'the first round'} are"
    return f"{done} {'are' if rounds else 'is'}"


_LEAST_FREE = 200 * 2**20
"""Bytes that must be free where a run is written: model, checkpoint and page of a common backbone."""

_MAY_DIFFER = ("check_helping", "places", "started_in", "compared_in", "continued_from", "sources")
"""Settings that may differ when a run is resumed: the comparison can be left out at any time, and the digest of the
data identifies it better than its paths."""

_EXAMPLES = 4
"""Images of a class that are kept as examples, of either domain."""


class RunFolder:
    """The folder of one run. It is the checkpoint of its Algorithm 1.

    Args:
        path: The folder; made where it is absent.
    """

    def __init__(self, path: Path | str) -> None:
        self.path = Path(path)
        self.work = self.path
        """Where this run is written: in the folder of the replacement, as long as an earlier run must stay."""
        self._replacement = Replacement(self.path)
        self._resume = self._force = False

    @property
    def finished(self) -> bool:
        """Whether the model is done."""
        return is_file(self.work / ABOUT_FILE)

    @property
    def resumes(self) -> bool:
        """Whether the run continues from what is there."""
        return self._resume and is_file(self.work / CONFIG_FILE)

    @property
    def pending(self) -> bool:
        """Whether the comparison is still to be finished."""
        return is_file(self.work / COMPARISON_FILE)

    def claim(self, *, resume: bool, force: bool) -> None:
        """Check that this run may be written here, before anything is read or trained.

        Args:
            resume: Continue what is there.
            force: Replace an earlier run when this one is finished.

        Raises:
            RunError: If an earlier run would be lost, the folder is not a run's, or it cannot be written.
        """
        if resume and force:
            raise RunError("`resume` continues a run and `force` replaces it: give one of `resume` and `force`.")
        self._resume, self._force = resume, force
        with disk_errors(self.path):
            if self._replacement.finished:  # killed while it was moved into place
                with lock_run(self.path):
                    self._replacement.move_into_place()
            self._choose_work()
            there = next(folder for folder in (self.path, *self.path.absolute().parents) if folder.exists())
            with tempfile.TemporaryFile(dir=there):  # raises where nothing can be written
                pass
            free = shutil.disk_usage(there).free
        if free < _LEAST_FREE:
            raise RunError(
                f"{self.path}: {free // 2**20} MiB are free on this disk and a run needs about "
                f"{_LEAST_FREE // 2**20} MiB. Make room, or choose another `out`."
            )

    def _choose_work(self) -> None:
        there = holds_run(self.path)
        if self.path.is_symlink() and not self.path.exists():
            raise RunError(f"{self.path} is a link to nothing. Choose another `out`.")
        if self.path.exists() and not self.path.is_dir():
            raise RunError(f"{self.path}: the run folder must be a folder, and this is a file. Choose another `out`.")
        if not there and self.path.is_dir() and any(PROGRESS_FILE not in file.name for file in self.path.iterdir()):
            raise RunError(f"{self.path} is not empty and not a run of qurate. Choose another `out`.")
        if there and not (self._resume or self._force):
            raise RunError(f"{self.path} holds {self._what_is_there()}")
        replaces = there and (self._force or self._replacement.unfinished)
        self.work = self._replacement.path if replaces else self.path

    def _what_is_there(self) -> str:
        if self._replacement.unfinished:
            return (
                "a run and an unfinished one that would replace it. Pass `resume=True` to continue that one, or "
                f"`force=True` to start again. Without {self._replacement.path} the earlier run stays."
            )
        if self.finished and self.pending:
            return (
                "a run whose comparison is not finished. Pass `resume=True` to continue it, with `compare=False` to do "
                "without it, or `force=True` to start again."
            )
        if self.finished:
            return "a finished run. Choose another `out`, or pass `force=True` to overwrite it."
        return "an unfinished run. Pass `resume=True` to continue it, or `force=True` to start again."

    def check(self, settings: Mapping[str, Any], images: pd.DataFrame | None = None) -> None:
        """Check that an interrupted run has these settings; it may have others besides.

        Args:
            settings: Of this run.
            images: Of `Parts.table`, to say which of them are others.
        """
        path = self.work / CONFIG_FILE
        if not path.is_file() or not self._resume:
            return
        wanted = json.loads(json.dumps(settings))
        try:
            kept = json.loads(path.read_text(encoding="utf-8"))
        except (OSError, ValueError, RecursionError) as error:
            raise RunError(f"{path}: damaged ({error}). Pass `force=True` to start again.") from error
        if not isinstance(kept, dict):
            raise RunError(f"{path}: damaged (it holds no settings). Pass `force=True` to start again.")
        for table in (kept, wanted):
            if isinstance(table.get("run"), dict):
                table["run"].pop("execution", None)  # affects execution, not results
        names = [name for name in wanted if name not in _MAY_DIFFER]
        if images is not None and kept.get("data") != wanted["data"]:
            raise RunError(
                f"{self.path} was started with other images, so it cannot be resumed with these: "
                f"{self._changed_images(images)}. Bring the earlier ones back, or pass `force=True` to start again."
            )
        if wanted.get("check_helping") and not kept.get("check_helping", True) and self.resumes:
            raise RunError(
                f"{self.path} was started with --no-compare (`compare=False`), and plain training (S+T) helps to label "
                "the images where it is compared. Repeat --no-compare, or pass `force=True` to start again."
            )
        if differing := sorted(found for name in names for found in _differences(name, kept.get(name), wanted[name])):
            raise RunError(
                f"{self.path} was started with other settings, so it cannot be resumed with these: "
                f"{'; '.join(differing[:4])}. Repeat its settings, or pass `force=True` to start again."
            )

    def _changed_images(self, now: pd.DataFrame) -> str:
        """Which images are others than when the run was started."""
        try:
            before = read_csv(self.work / IMAGES_FILE)[list(now.columns)]
        except (TableError, KeyError):  # of an earlier version, or damaged
            return "their contents, classes or order differ"
        old, new = (_by_place(table) for table in (before, now))
        moved = {(part, what) for (part, _), what in old.items()} & {(part, what) for (part, _), what in new.items()}
        both = old.keys() & new.keys()
        said = [f"{place[1]} (changed)" for place in old if place in both and old[place][1] != new[place][1]]
        said += [f"{place[1]} (of another class)" for place in old if place in both and old[place][0] != new[place][0]]
        for table, word in ((old, "gone from"), (new, "new in")):
            alone = [place for place in table if place not in both and (place[0], table[place]) not in moved]
            said += [f"{file} ({word} {part})" for part, file in alone]
        return list_some(said, 4) or "they are the same under other names"

    @property
    def kept_config(self) -> Path:
        """config.json of the unfinished run here; there need not be one."""
        return (self._replacement.path if self._replacement.unfinished else self.path) / CONFIG_FILE

    def kept_settings(self) -> dict[str, Any] | None:
        """config.json of an unfinished run here, or of one whose comparison is unfinished; None where there is none.

        Raises:
            RunError: If it is damaged.
        """
        if not is_file(self.kept_config):
            return None
        try:
            return read_settings(self.kept_config)
        except ConfigError as error:
            raise RunError(f"{error} Pass `force=True` to start again, or another `out`.") from error

    def processes_before(self) -> int:
        """How many processes an interrupted run was started with; 1 where it does not say."""
        with suppress(OSError, ValueError, RecursionError, KeyError, TypeError):
            execution = json.loads((self.work / CONFIG_FILE).read_text(encoding="utf-8"))["run"]["execution"]
            return int(execution["devices"]) * int(execution["num_nodes"])
        return 1

    @contextmanager
    def begin(self, settings: Mapping[str, Any], images: pd.DataFrame | None = None) -> Iterator[None]:
        """Write the settings, or check that a resumed run has the same ones, and lock the folder for the block.

        Args:
            settings: What a resumed run must have in common with the interrupted one.
            images: What `settings["data"]` is the digest of.
        """
        with disk_errors(self.path):
            self.path.mkdir(parents=True, exist_ok=True)
        with lock_run(self.path):
            self.check(settings, images)
            with disk_errors(self.path):
                self._choose_work()  # again: reading the images took a while
                if not self._resume:
                    self._replacement.remove()
                self.work.mkdir(exist_ok=True)
            if not (self.work / CONFIG_FILE).is_file():
                if images is not None:
                    self._write(IMAGES_FILE, to_csv(images))
                self._write(CONFIG_FILE, json.dumps(settings, indent=2, ensure_ascii=False) + "\n")
            yield

    def load(self) -> Progress | None:
        """The newest checkpoint of Algorithm 1 that is not damaged; None where there is no checkpoint.

        Raises:
            RunError: If every checkpoint is damaged.
        """
        problems = []
        for path in (self.work / name for name in (CHECKPOINT_FILE, CHECKPOINT_BEFORE)):
            if not path.is_file():
                continue
            try:
                progress = read_checkpoint(path)
            except Exception as error:  # a damaged or foreign file fails in many ways; none of them runs its code
                problems.append(f"{path}: damaged ({error}).")
                continue
            for problem in problems:
                warnings.warn(f"{problem} The run continues from the checkpoint before it.", RunWarning, stacklevel=2)
                with suppress(OSError):  # else the next one would be kept in place of the sound one
                    (self.work / CHECKPOINT_FILE).unlink()
            return progress
        if problems:
            raise RunError(f"{' '.join(problems)} Pass `force=True` to start again.")
        return None

    def save(self, progress: Progress) -> None:
        """Write a checkpoint of Algorithm 1, and keep the one before it."""
        about = {"rounds": str(len(progress.rounds))}
        if (mid := progress.mid_training) is not None:
            about |= {"line": str(mid.line), "steps": str(mid.steps)}
        content, newest = pack_tensors(progress.tensors(), **about), self.work / CHECKPOINT_FILE
        with disk_errors(self.path):
            if newest.is_file():
                newest.replace(self.work / CHECKPOINT_BEFORE)
            write_atomically(newest, content)

    def load_folds(self, split: Split, folds: Sequence[Tensor]) -> dict[tuple[Model, int], Fold] | None:
        """The folds of the comparison that are done; None where the file is damaged."""
        path = self.work / COMPARISON_FILE
        return unpack_folds(path, split, folds) if path.is_file() else {}

    def save_folds(self, folds: Folds) -> None:
        """Write the folds of the comparison that are done."""
        self._write(COMPARISON_FILE, pack_folds(folds))

    def write_results(
        self,
        model: AdaptedModel,
        record: RunRecord,
        predictions: pd.DataFrame,
        answers: Iterable[Answer],
        *,
        pending: bool,
    ) -> None:
        """Write tables, page and model; then replace an earlier run. `pending`: whether a comparison follows.

        The answers are kept with the run, so that nobody is asked again.
        """
        if pending and not self.pending:
            self.save_folds({})
        self._write(PREDICTIONS_FILE, to_csv(predictions))
        self._write(POSITIVES_FILE, to_csv(record.positives))
        self._write(EXAMPLES_FILE, to_csv(_choose_examples(record)))
        self.write_page(record, model)
        AnswerLog(self.path / LABELS_FILE).keep(answers)
        with disk_errors(self.path):
            model.write(self.work)
            if self.work != self.path:
                self._replacement.move_into_place()
        self.work = self.path

    def write_compared(self, model: AdaptedModel, record: RunRecord, predictions: pd.DataFrame) -> None:
        """Write again what the comparison changes: predictions, metrics, the page, and how to use the model."""
        self._write(PREDICTIONS_FILE, to_csv(predictions))
        self.write_page(record, model)
        with disk_errors(self.path):
            model.write_about(self.work)

    def open_baseline(self) -> RunFolder:
        """The folder of S+T of this run, with its checkpoints."""
        with disk_errors(self.path):
            (self.work / BASELINE_FOLDER).mkdir(exist_ok=True)
        return RunFolder(self.work / BASELINE_FOLDER)

    def write_baseline(self, model: AdaptedModel, predictions: pd.DataFrame) -> None:
        """Write S+T and what it predicts."""
        baseline = self.open_baseline()
        baseline._write(PREDICTIONS_FILE, to_csv(predictions))
        with disk_errors(self.path):
            model.write(baseline.path)

    def write_page(self, record: RunRecord, model: AdaptedModel) -> None:
        """Write three tables, the page, and the model card unless a person has a README.md there."""
        from qurate.report.run_page import metrics_table, write_run_page
        from qurate.runs.card import make_card

        self._write(METRICS_FILE, to_csv(metrics_table(record)))
        self._write(SUGGESTIONS_FILE, to_csv(record.suggested))
        self._write(ISSUES_FILE, to_csv(record.label_issues))
        with disk_errors(self.path):
            write_run_page(record, self.work / REPORT_FILE, self.path.absolute())
        if is_our_card(self.work / CARD_FILE):
            card = make_card(record, model.about(), self.path.absolute())
            self._write(CARD_FILE, card.encode("utf-8", errors="backslashreplace"))

    def forget(self) -> None:
        """Remove the checkpoints of a finished run; first the file that marks it as unfinished."""
        with disk_errors(self.path):
            for name in (COMPARISON_FILE, CHECKPOINT_FILE, CHECKPOINT_BEFORE, IMAGES_FILE, FULL_FILE, FULL_FOLDS_FILE):
                (self.work / name).unlink(missing_ok=True)
            for name in (CHECKPOINT_FILE, CHECKPOINT_BEFORE):
                (self.work / BASELINE_FOLDER / name).unlink(missing_ok=True)
            with suppress(OSError):  # it is not empty, or not there
                (self.work / BASELINE_FOLDER).rmdir()

    def standing(self) -> str:
        """How far the run is, by its files, and how to continue it."""
        work = self.kept_config.parent
        finished, pending = is_file(work / ABOUT_FILE), is_file(work / COMPARISON_FILE)
        if not is_file(work / CONFIG_FILE) or (finished and not pending):
            return f"Nothing in {self.path} is half done. Re-run the command to begin again."
        state = "Pre-training was not finished and will begin again."
        with suppress(Exception):
            state = f"{describe_checkpoint(work)} kept in {self.path}."
        if finished:
            state = f"The model in {self.path} is finished and can be used; the comparison is not."
        return f"{state} Re-run the command with `resume=True` to continue."

    def _write(self, name: str, content: str | bytes) -> None:
        with disk_errors(self.path):
            write_atomically(self.work / name, content)


def _choose_examples(record: RunRecord) -> pd.DataFrame:
    """A few labelled images of each class from either domain: columns file, label, part."""
    parts = {"labeled": record.labeled, "source": record.source}
    few = [table.groupby("label").head(_EXAMPLES).assign(part=part) for part, table in parts.items()]
    return pd.concat(few, ignore_index=True)[["file", "label", "part"]]


def _by_place(images: pd.DataFrame) -> dict[tuple[str, str], tuple[str, str]]:
    """Class and content of each image, by its part and file."""
    places = zip(images["part"], images["file"], strict=True)
    return dict(zip(places, zip(images["label"], images["sha256"], strict=True), strict=True))


def _differences(where: str, kept: Any, wanted: Any) -> list[str]:
    if isinstance(kept, dict) and isinstance(wanted, dict):
        names = kept.keys() | wanted.keys()
        return [found for name in names for found in _differences(f"{where}.{name}", kept.get(name), wanted.get(name))]
    return [] if kept == wanted else [f"{where} was {kept!r}, is {wanted!r}"]
