"""The file model.json: what a model is made of, judged before anything heavy is loaded."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from qurate.errors import QurateError
from qurate.runtime.paths import is_file, is_folder, shorten

WEIGHTS_FILE, ABOUT_FILE = "model.safetensors", "model.json"
STAGE = ".new"
"""Folder inside a run's where a run that will replace it is written; its model.json comes last."""
FORMAT = "qurate-model-1"


class ModelError(QurateError, ValueError):
    """A model that cannot be read; the message says what is wrong with which file."""


class ModelWarning(UserWarning):
    """Something about a model that a person should know."""


def file_of(folder: Path, name: str) -> Path:
    """Where a file of a run is: in the stage, if that is whole and only waits to be moved, else in the folder."""
    staged = folder / STAGE
    return staged / name if is_file(staged / ABOUT_FILE) and is_file(staged / name) else folder / name


def read_about(folder: Path | str) -> dict[str, Any]:
    """What model.json of a run says.

    Raises:
        ModelError: If it is missing, damaged or not qurate's.
    """
    if not isinstance(folder, str | os.PathLike) or not os.fspath(folder):
        raise ModelError(f"the run must be the path of a folder, got {folder!r}.")
    path = file_of(Path(folder), ABOUT_FILE)
    if not is_file(path):
        run = Path(folder)
        came = "a file" if is_file(run) else "a folder without it" if is_folder(run) else "a path that does not exist"
        raise ModelError(
            f"{shorten(run)}: must be the folder of a finished run with {ABOUT_FILE} and {WEIGHTS_FILE}, got {came}. "
            "Models of other programs cannot be read; give their weights to adapt, as `weights=FILE`."
        )
    try:
        about = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise ModelError(f"{path}: cannot be read as JSON ({error}).") from error
    if not isinstance(about, dict) or about.get("format") != FORMAT:
        found = about.get("format") if isinstance(about, dict) else None
        raise ModelError(f"{path}: format must be '{FORMAT}', got {shorten(repr(found))}. Is it a model of qurate?")
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
