"""The file model.json: what a model is made of, judged before anything heavy is loaded."""

from __future__ import annotations

import itertools
import json
import os
import shlex
from pathlib import Path
from typing import Any

from qurate.errors import QurateError
from qurate.runtime.paths import IMAGE_SUFFIXES, is_file, is_folder, list_some, shorten

WEIGHTS_FILE, ABOUT_FILE = "model.safetensors", "model.json"
STAGE = ".new"
"""Folder inside a run's where a run that will replace it is written; its model.json comes last."""
FORMAT = "qurate-model-1"
_ENTRIES = {"network", "transform", "calibration", "baseline", "novelty", "comparison", "no_comparison", "sha256"}


class ModelError(QurateError, ValueError):
    """A model that cannot be read; the message says what is wrong with which file."""


def file_of(folder: Path, name: str) -> Path:
    """Where a file of a run is: in the stage, if that is whole and only waits to be moved, else in the folder."""
    staged = folder / STAGE
    return staged / name if is_file(staged / ABOUT_FILE) and is_file(staged / name) else folder / name


def _describe_place(place: Path) -> str:
    """What is there in place of a finished run, and what to do; the end of a sentence, and one or two more."""
    from qurate.runs.files import holds_run  # which needs the names above

    what = "a file" if is_file(place) else "a folder" if is_folder(place) else "a path that does not exist"
    if what == "a folder" and holds_run(place):
        return f"an unfinished run. 'qurate open {shlex.quote(str(place))}' shows how far it is, and continues it."
    if is_file(place.absolute().parent / ABOUT_FILE):
        return f"{what} in a run. Give the run itself: {place.absolute().parent}"
    if what == "a file":
        return f"{what}. Models of other programs cannot be read; give their weights to adapt, as `weights=FILE`."
    if what == "a folder" and (held := _runs_in(place)):
        return f"{what} with runs in it: {list_some(held)}. Give one of these."
    if what == "a folder" and _has_images(place):
        return f"{what} of images. 'qurate adapt' makes a run of such folders; 'qurate open' alone asks for them."
    if beside := _runs_in(place.absolute().parent):
        return f"{what}. Runs beside it: {list_some(beside)}."
    return f"{what}. 'qurate adapt' makes a run, in the folder that `out` names."


def _runs_in(folder: Path) -> list[str]:
    """Names of the finished runs in a folder, in order; none where it cannot be read."""
    try:
        return sorted(child.name for child in folder.iterdir() if is_file(child / ABOUT_FILE))
    except OSError:
        return []


def _has_images(folder: Path) -> bool:
    """Whether a folder holds an image, or a folder in it does."""
    try:
        found = itertools.chain(folder.glob("*"), folder.glob("*/*"))
        return any(path.suffix.lower() in IMAGE_SUFFIXES for path in itertools.islice(found, 1000))
    except OSError:
        return False


def read_about(folder: Path | str) -> dict[str, Any]:
    """What model.json of a run says.

    Raises:
        ModelError: If it is missing, damaged or not qurate's.
    """
    if not isinstance(folder, str | os.PathLike) or not os.fspath(folder):
        raise ModelError(f"the run must be the path of a folder, got {folder!r}.")
    path = file_of(Path(folder), ABOUT_FILE)
    if not is_file(path):
        raise ModelError(
            f"{shorten(folder)}: must be the folder of a finished run with {ABOUT_FILE} and {WEIGHTS_FILE}, got "
            f"{_describe_place(Path(folder))}"
        )
    try:
        about = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise ModelError(f"{path}: cannot be read as JSON ({error}).") from error
    if not isinstance(about, dict) or about.get("format") != FORMAT:
        found = about.get("format") if isinstance(about, dict) else None
        raise ModelError(f"{path}: format must be '{FORMAT}', got {shorten(repr(found))}. Is it a model of qurate?")
    if missing := sorted(_ENTRIES - about.keys()):
        raise ModelError(
            f"{path}: lacks {', '.join(missing)}. Models of earlier versions of qurate cannot be read: adapt again."
        )
    classes = about.get("classes")
    if not isinstance(classes, list) or not all(isinstance(name, str) and name for name in classes):
        raise ModelError(f"{path}: classes must be a list of names, got {shorten(repr(classes))}.")
    if len(classes) < 2 or len(set(classes)) != len(classes):
        raise ModelError(f"{path}: classes must be two or more names that differ, got {shorten(repr(classes))}.")
    try:
        "".join(classes).encode()
    except UnicodeEncodeError as error:
        raise ModelError(f"{path}: classes must be valid text ({error}).") from error
    return about
