"""Where the images of a run come from: as given, or as the config.json of an earlier run says. Loads no torch."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, NamedTuple

from qurate.config import read_settings
from qurate.errors import ConfigError, DataError, RunError
from qurate.runs.files import CONFIG_FILE
from qurate.runs.model_json import file_of, read_about
from qurate.runtime.paths import StrPath, is_file, is_folder, shorten
from qurate.runtime.tables import is_text

PARTS = ("source", "labeled", "unlabeled")
FROM_MODEL = "from_model"
"""The option that takes the place of the source, and its key in config.json."""


class Places(NamedTuple):
    """Where the images of a run are, and what is done with a class that one side lacks.

    Args:
        source: One or several source domains; none where a saved model stands for them.
        labeled: The labelled target.
        unlabeled: The unlabelled target.
        missing: What is done with a class that one side lacks.
        from_model: A saved model whose class statistics stand for the source.
    """

    source: StrPath | tuple[StrPath, ...]
    labeled: StrPath
    unlabeled: StrPath
    missing: Literal["error", "drop"]
    from_model: StrPath | None = None

    @property
    def sources(self) -> tuple[StrPath, ...]:
        """The places of the source domains."""
        return self.source if isinstance(self.source, tuple) else (self.source,)

    def stored(self) -> dict[str, str | list[str]]:
        """As config.json keeps them: those that are valid text, as names of files need not be."""
        named = {name: os.fspath(value) for name, value in self._asdict().items() if value and name != "source"}
        found: dict[str, str | list[str]] = {name: value for name, value in named.items() if is_text(value)}
        if self.sources and all(is_text(os.fspath(place)) for place in self.sources):
            places = [os.fspath(place) for place in self.sources]
            found = {"source": places if len(places) > 1 else places[0], **found}
        return found


def start_folder(settings: Mapping[str, Any]) -> Path:
    """What relative paths of a run begin with, by its config.json: the folder that it was started in.

    Nothing where that is the current folder, or is not known, or is gone, as after a move to another machine.
    """
    started = settings.get("started_in")
    if not isinstance(started, str) or not is_folder(Path(started)) or Path(started) == Path.cwd():
        return Path()
    return Path(started)


def start_folder_of(run: Path) -> Path:
    """The same for a run folder, whose config.json may be missing or damaged."""
    try:
        return start_folder(read_settings(file_of(run, CONFIG_FILE)))
    except ConfigError:
        return Path()


def read_settings_of(run: StrPath) -> dict[str, Any]:
    """config.json of a finished run.

    Raises:
        ModelError: If there is no finished run.
        RunError: If it has no settings, as a model that was saved alone.
    """
    read_about(run)
    path = file_of(Path(run), CONFIG_FILE)
    if not is_file(path):
        raise RunError(
            f"{run}: has no {CONFIG_FILE}, so it is a model without its run. `previous` must be the folder of a run, "
            "as `out` names it."
        )
    return read_settings(path)


def is_without_source(settings: Mapping[str, Any]) -> bool:
    """Whether a saved model stood for the source of a run, by its config.json."""
    places = settings.get("places")
    return isinstance(places, dict) and FROM_MODEL in places


def choose_places(settings: Mapping[str, Any] | None, given: Mapping[str, Any]) -> Places:
    """Where the images are: by the options of `adapt`, else where the config.json of an earlier run had them."""
    stored = (settings or {}).get("places")
    stored = stored if isinstance(stored, dict) else {}
    known: dict[str, Any] = {name: value for name, value in stored.items() if isinstance(value, str) and value}
    several = stored.get("source")
    if isinstance(several, list) and several and all(isinstance(place, str) and place for place in several):
        known["source"] = tuple(several)
    if settings is not None and (base := start_folder(settings)) != Path():
        known |= {name: _below(base, known[name]) for name in (*PARTS, FROM_MODEL) if name in known}
    replaced = FROM_MODEL if given.get("source") is not None else "source" if given.get(FROM_MODEL) is not None else ""
    known.pop(replaced, None)
    is_modelled = given.get(FROM_MODEL) is not None or FROM_MODEL in known
    parts = (FROM_MODEL if is_modelled else "source", *PARTS[1:])
    if absent := [name for name in parts if given.get(name) is None and name not in known]:
        is_run = settings is not None and "qurate" in settings
        why = " The settings of the earlier run do not say where its images are." if is_run else ""
        raise DataError(f"{', '.join(f'`{name}`' for name in absent)} must be given.{why}")
    for name in parts:
        before = known[name] if given.get(name) is None else ()
        for place in (before,) if isinstance(before, str) else before:
            if not (is_file(Path(place)) or is_folder(Path(place))):
                what = "its model" if name == FROM_MODEL else "these images"
                raise DataError(
                    f"`{name}` must be given: the earlier run had {what} at {shorten(place)}, where nothing is now."
                )
    first, labeled, unlabeled = (known[name] if given.get(name) is None else given[name] for name in parts)
    source, from_model = ((), first) if is_modelled else (first, None)
    if isinstance(source, tuple) and len(source) == 1:
        source = source[0]
    stays: Literal["error", "drop"] = "drop" if known.get("missing") == "drop" else "error"
    return Places(source, labeled, unlabeled, given.get("missing", stays), from_model)


def _below(base: Path, places: str | tuple[str, ...]) -> str | tuple[str, ...]:
    return str(base / places) if isinstance(places, str) else tuple(str(base / place) for place in places)
