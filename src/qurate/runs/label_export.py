"""The labels of a run for other programs: Label Studio, FiftyOne, Hugging Face, folders of classes. Loads no torch."""

from __future__ import annotations

import json
import math
import os
import shutil
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple, TypeAlias

from qurate.active.answers import LABELS_FILE, Answer, AnswerLog
from qurate.active.label_studio import choose, labeling_config, make_task
from qurate.data.class_names import JOINERS, NO_CLASS, NO_FIT
from qurate.errors import RunError
from qurate.runs.files import BASELINE_FOLDER, PREDICTIONS_FILE, LabelFormat
from qurate.runs.image_sources import start_folder_of
from qurate.runs.model_json import ABOUT_FILE, read_about
from qurate.runs.result_tables import read_run_table
from qurate.runtime.files import why_not_writable
from qurate.runtime.paths import StrPath, as_path, count, is_file, is_folder, list_some, shorten
from qurate.runtime.tables import is_text

TASKS_FILE, INTERFACE_FILE = "tasks.json", "interface.xml"
MARK = ".qurate-export"
"""A file in a folder that was exported: only such a folder is replaced by `force`."""
_FORBIDDEN = '/\\:*?"<>|'
"""Characters that a system, or a pattern of file names, gives a meaning of its own."""
_LONGEST = 200
"""Bytes of a name that is made here, without its suffix: less than any system allows. Our choice."""


class ImageLabel(NamedTuple):
    """What is known of the class of an image.

    Args:
        file: The image, as predictions.csv names it.
        path: Where it is.
        label: Its class, by a person where one answered, else by the model; empty where it has none, or it is unknown.
        fits_none: Whether it is of no class.
        predicted: The class that the model gives it, however well it fits.
        probability: Of `predicted`; None where the table has none.
        known: How well it fits any class, 0 to 1; None where that was not measured.
        labeled_by: Who says so.
    """

    file: str
    path: Path
    label: str
    fits_none: bool
    predicted: str
    probability: float | None
    known: float | None
    labeled_by: Literal["model", "person"]


@dataclass(frozen=True)
class ExportedLabels:
    """What was written.

    Args:
        folder: Where.
        images: How many.
        fits_none: How many of them are of no class.
        by_person: How many have the label that a person gave.
        notes: Sentences on what was left out or is called otherwise.
    """

    folder: Path
    images: int
    fits_none: int
    by_person: int
    notes: tuple[str, ...]


def read_labels(run: Path) -> tuple[list[ImageLabel], list[str]]:
    """The label of each image of a run that is still there, and sentences on those that are left out.

    Raises:
        RunError: If predictions.csv is missing or damaged, or none of its images is there.
    """
    table = read_run_table(run, PREDICTIONS_FILE, "file", "label", "probability", "problem")
    is_baseline = run.name == BASELINE_FOLDER and is_file(run.parent / ABOUT_FILE)
    home = run.parent if is_baseline else run
    base, answers = start_folder_of(home), AnswerLog(home / LABELS_FILE).current()
    known = table["known"] if "known" in table else [""] * len(table)
    columns = (*(table[name] for name in ("file", "label", "probability", "problem")), known)
    labels: list[ImageLabel] = []
    gone, unread = [], []
    for file, label, probability, problem, fit in zip(*columns, strict=True):
        path = base / file
        answer = answers.get(file)
        if not is_file(path):
            gone.append(path)
        elif not label and answer is None:
            unread.append(path)
        else:
            numbers = _number(probability), _number(fit)
            labels.append(_judge(file, path, label, problem == NO_FIT, answer, *numbers))
    if not labels:
        what = f"of the {len(table)} images of {run / PREDICTIONS_FILE}"
        raise RunError(
            f"none {what} is there with a label: {list_some([*gone, *unread], 3)}. Where its paths are relative, run "
            "from the folder that the run was started in."
        )
    found = {"no longer there": gone, "unreadable": unread}
    return labels, [_left_out(paths, why) for why, paths in found.items() if paths]


def _judge(
    file: str,
    path: Path,
    predicted: str,
    is_flagged: bool,
    answer: Answer | None,
    probability: float | None,
    known: float | None,
) -> ImageLabel:
    """What a person said counts; a class that was called wrong is none."""
    label, by = "" if is_flagged else predicted, "model"
    if answer is not None and (answer.answer != "wrong" or answer.predicted == predicted):
        is_none = answer.answer == "none" or answer.label == NO_CLASS
        label, is_flagged, by = "" if is_none else answer.label, is_none, "person"
    return ImageLabel(file, path, label, is_flagged, predicted, probability, known, by)  # type: ignore[arg-type]


def _number(cell: str) -> float | None:
    try:
        number = float(cell)
    except ValueError:
        return None
    return number if math.isfinite(number) else None


def export_labels(
    run: StrPath, out: StrPath, format: LabelFormat, *, copy: bool = False, force: bool = False
) -> ExportedLabels:
    """Write the labels of a run, with its images, as a folder that another program reads.

    Args:
        run: Folder of a finished run.
        out: Folder to write, whole or not at all.
        format: 'label-studio': tasks to correct, whose export `qurate.adapt(labels=...)` reads; 'fiftyone': a
            FiftyOneImageClassificationDataset; 'imagefolder': for `datasets.load_dataset`; 'folders': one per class.
        copy: Copy the images; else they are links, or copies where links cannot be made.
        force: Replace `out` if an export is there.

    Raises:
        RunError: If there is nothing to write, or it cannot be written.
    """
    if format not in _WRITERS:
        raise RunError(f"`format` must be one of {', '.join(_WRITERS)}, got {format!r}.")
    folder, target = Path(run), as_path(out, "out", "a folder to write")
    classes = read_about(folder)["classes"]
    check_folder(target, force=force)
    labels, notes = read_labels(folder)
    if format != "folders" and (strange := [row.path for row in labels if not is_text(row.file)]):
        labels = [row for row in labels if is_text(row.file)]
        notes.append(f"{_left_out(strange, 'for their names are no valid text')} Rename them.")
    classes = [*classes, *sorted({row.label for row in labels} - {"", *classes})]  # people add classes by answers
    temporary = target.with_name(f".{target.name[:100]}.{uuid.uuid4().hex[:8]}")
    try:
        temporary.mkdir(parents=True)
        place = _Place(temporary, copy)
        notes += _WRITERS[format](place, labels, classes, folder)
        place.write(MARK, f"{format}\n")
        _put(temporary, target)
    except OSError as error:
        raise RunError(f"{target}: cannot be written ({error.strerror}). Choose another `out`.") from error
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    if place.copied and not copy:
        notes.append("The images are copies, for no links can be made there.")
    fits_none, by_person = sum(row.fits_none for row in labels), sum(row.labeled_by == "person" for row in labels)
    return ExportedLabels(target, len(labels), fits_none, by_person, tuple(notes))


def check_folder(target: Path, *, force: bool) -> None:
    """Before any work.

    Raises:
        RunError: If there is something that may not be replaced, or nothing can be written.
    """
    if target.name in ("", ".."):
        raise RunError(f"`out` must be a new folder, got {target}. Name one in it.")
    if os.path.lexists(target) and (target.is_symlink() or not is_folder(target)):
        came = "a link" if target.is_symlink() else "a file"
        raise RunError(f"`out` must be a folder, got {shorten(target)} ({came}). Choose another `out`.")
    if is_folder(target) and any(target.iterdir()):
        if not is_file(target / MARK):
            raise RunError(f"{target} is not empty, and no export of qurate. Choose another `out`.")
        if not force:
            raise RunError(f"{target} exists. Choose another `out`, or pass `force=True` to replace it.")
    if reason := why_not_writable(target) or why_not_writable(target.absolute().parent):
        raise RunError(f"`out` {shorten(target)}: cannot be written ({reason}). Choose another `out`.")


def _put(new: Path, target: Path) -> None:
    """Move a folder into place; one that is there is removed after it."""
    old = new.with_name(f"{new.name}.old")
    if os.path.lexists(target):
        target.rename(old)
    try:
        new.rename(target)
    except BaseException:
        if os.path.lexists(old):
            old.rename(target)
        raise
    shutil.rmtree(old, ignore_errors=True)


class _Place:
    """A folder that images are put into."""

    def __init__(self, root: Path, copy: bool) -> None:
        self.root, self._copy = root, copy
        self.copied = False
        self._taken: dict[str, set[str]] = {}

    def add(self, image: Path, folder: str) -> str:
        """Link or copy an image; its path below the root. No two names in a folder are alike but for their suffix."""
        name = safe_name(image.stem, self._taken.setdefault(folder, set())) + image.suffix.lower()
        place = self.root / folder / name
        place.parent.mkdir(exist_ok=True)
        if not self._copy:
            try:
                place.symlink_to(image.absolute())
                return f"{folder}/{name}"
            except (OSError, NotImplementedError):  # no links on this system
                self._copy = True
        shutil.copyfile(image, place)
        self.copied = True
        return f"{folder}/{name}"

    def write(self, name: str, content: str) -> None:
        """Write a text file."""
        (self.root / name).write_text(content, encoding="utf-8", newline="\n")


def safe_name(wanted: str, taken: set[str]) -> str:
    """A name for a file or folder on any system that is not taken, and is now; upper and lower case are alike.

    Example:
        >>> taken: set[str] = set()
        >>> [safe_name(name, taken) for name in ("a/b", "A:B", "..", "x")]
        ['a_b', 'A_B-2', '_', 'x']
    """
    is_sound = [(letter.isprintable() or letter in JOINERS) and letter not in _FORBIDDEN for letter in wanted]
    plain = "".join(letter if sound else "_" for letter, sound in zip(wanted, is_sound, strict=True))
    plain = plain.encode()[:_LONGEST].decode(errors="ignore").rstrip(". ")
    plain = plain if plain and plain == plain.lstrip(". ") else f"_{plain.lstrip('. ')}"
    name, number = plain, 1
    while name.casefold() in taken:
        number += 1
        name = f"{plain}-{number}"
    taken.add(name.casefold())
    return name


Writer: TypeAlias = Callable[[_Place, Sequence[ImageLabel], Sequence[str], Path], list[str]]
"""Writes labels whose classes are these, of a run; sentences on what is called otherwise."""


def _write_label_studio(place: _Place, labels: Sequence[ImageLabel], classes: Sequence[str], run: Path) -> list[str]:
    none = [] if NO_CLASS in classes else [NO_CLASS]  # a class of that name leaves no word for it
    place.write(INTERFACE_FILE, labeling_config([*classes, *none]))
    version = f"qurate {run.resolve().name}"
    tasks = []
    for row in labels:
        task = make_task(row.file, place.add(row.path, "images"))
        label = row.label or (NO_CLASS if row.fits_none and none else "")
        if label and row.labeled_by == "person":
            task["annotations"] = [{"result": choose(label)}]
        elif label:
            score = {} if row.fits_none or row.probability is None else {"score": row.probability}
            task["predictions"] = [{"model_version": version, **score, "result": choose(label)}]
        tasks.append(task)
    place.write(TASKS_FILE, json.dumps(tasks, ensure_ascii=False, indent=1) + "\n")
    return []


def _write_fiftyone(place: _Place, labels: Sequence[ImageLabel], classes: Sequence[str], run: Path) -> list[str]:
    targets: dict[str, Any] = {}
    for row in labels:
        name = Path(place.add(row.path, "data")).stem
        label = row.label or (NO_CLASS if row.fits_none else "")
        sure = row.probability if row.label and row.labeled_by == "model" else None
        targets[name] = {"label": label, "confidence": sure, "attributes": _about(row)} if label else None
    place.write("labels.json", json.dumps({"labels": targets}, ensure_ascii=False, indent=1) + "\n")
    return []


def _write_imagefolder(place: _Place, labels: Sequence[ImageLabel], classes: Sequence[str], run: Path) -> list[str]:
    lines = []
    for row in labels:
        name = Path(place.add(row.path, "train")).name  # without it, a file called 'test' would be another split
        label = row.label or (NO_CLASS if row.fits_none else None)
        about = {"file_name": name, "label": label, "probability": row.probability, **_about(row)}
        lines.append(json.dumps(about, ensure_ascii=False) + "\n")
    place.write("train/metadata.jsonl", "".join(lines))
    return []


def _about(row: ImageLabel) -> dict[str, Any]:
    return {
        "known": row.known,
        "fits_none": row.fits_none,
        "predicted": row.predicted,
        "labeled_by": row.labeled_by,
        "file": row.file,
    }


def _write_folders(place: _Place, labels: Sequence[ImageLabel], classes: Sequence[str], run: Path) -> list[str]:
    taken: set[str] = set()
    folders = {name: safe_name(name, taken) for name in classes}
    none = safe_name(NO_CLASS, taken)
    notes = _renamed({**folders, **({NO_CLASS: none} if NO_CLASS not in folders else {})})
    unclear = [row.path for row in labels if not row.label and not row.fits_none]
    for row in labels:
        if row.label or row.fits_none:
            place.add(row.path, folders[row.label] if row.label else none)
    if NO_CLASS in folders and any(row.fits_none for row in labels):
        notes.append(f"Images of no class are in the folder '{none}', for '{NO_CLASS}' is a class.")
    if unclear:
        notes.append(_left_out(unclear, "called wrong by people without naming a class"))
    return notes


def _renamed(folders: Mapping[str, str]) -> list[str]:
    moved = [f"{shorten(name)!r} is in '{folder}'" for name, folder in folders.items() if name != folder]
    more = f" and {len(moved) - 5} more" if len(moved) > 5 else ""
    return [f"Not every name of a class is one for a folder: {', '.join(moved[:5])}{more}."] if moved else []


def _left_out(images: Sequence[Path], why: str) -> str:
    return f"{count(len(images), 'image')} left out, {why}: {list_some(images, 3)}."


_WRITERS: Mapping[str, Writer] = {
    "label-studio": _write_label_studio,
    "fiftyone": _write_fiftyone,
    "imagefolder": _write_imagefolder,
    "folders": _write_folders,
}
