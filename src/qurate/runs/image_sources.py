"""Where the images of a run come from, as its config.json says.

Light, so that the command line can judge it at once.
"""

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

BACKBONE = "timm/tf_efficientnet_lite0.in1k"
"""Default backbone: 4.7 million weights, about 64 images per second on two idle cores. Our choice."""

Train = Literal["head", "full"]

DEFAULT_QUERY_STRATEGY = "density"
"""How images to label are chosen. Our choice: the best of the query strategies on Office-31 (docs/asking.md)."""


PARTS = ("source", "labeled", "unlabeled")
CHANGEABLE = ("weights", "device")
"""What may be given beside a previous run: where its weights are now, and where to train."""


class Places(NamedTuple):
    """Where the images of a run are, and what is done with a class that one side lacks."""

    source: StrPath
    labeled: StrPath
    unlabeled: StrPath
    missing: Literal["error", "drop"]

    def stored(self) -> dict[str, str]:
        """As config.json keeps them: those that are valid text, as names of files need not be."""
        named = {name: os.fspath(value) for name, value in self._asdict().items()}
        return {name: value for name, value in named.items() if is_text(value)}


def is_text(name: str) -> bool:
    """Whether a path can be written as text; `runtime.tables` has the same for tables, and is heavy."""
    try:
        name.encode()
    except UnicodeEncodeError:
        return False
    return True


def read_settings_of(run: Path) -> dict[str, Any]:
    """config.json of a finished run.

    Raises:
        ModelError: If there is no finished run.
        RunError: If it has no settings, as a model that was saved alone.
    """
    read_about(run)
    path = file_of(run, CONFIG_FILE)
    if not is_file(path):
        raise RunError(
            f"{run}: has no {CONFIG_FILE}, so it is a model without its run. `previous` must be the folder of a run, "
            "as `out` names it."
        )
    return read_settings(path)


def choose_places(
    kept: Mapping[str, Any] | None,
    source: StrPath | None,
    labeled: StrPath | None,
    unlabeled: StrPath | None,
    missing: Literal["error", "drop"],
) -> Places:
    """Where the images are: as given, else where the previous run had them.

    Args:
        kept: config.json of the previous run; None where there is none.
        source: See `adapt`, as for the next three.
        labeled: Likewise.
        unlabeled: Likewise.
        missing: Likewise.

    Raises:
        DataError: If a place is neither given nor known, or nothing is left where it was.
    """
    given = dict(zip(PARTS, (source, labeled, unlabeled), strict=True))
    stored = (kept or {}).get("places")
    known = {
        name: value
        for name, value in (stored if isinstance(stored, dict) else {}).items()
        if isinstance(value, str) and value
    }
    if absent := [name for name in PARTS if given[name] is None and name not in known]:
        why = " The previous run does not say where its images are." if kept is not None else ""
        raise DataError(f"{', '.join(f'`{name}`' for name in absent)} must be given.{why}")
    for name in PARTS:
        if given[name] is None and not (is_file(Path(known[name])) or is_folder(Path(known[name]))):
            raise DataError(
                f"`{name}` must be given: the previous run had these images at {shorten(known[name])}, where nothing "
                "is now. Where that is a relative path, you can also run from the folder that it was started in."
            )
    if missing == "error" and known.get("missing") == "drop":
        missing = "drop"
    chosen = [known[name] if value is None else value for name, value in given.items()]
    return Places(chosen[0], chosen[1], chosen[2], missing)


def check_beside_previous(given: Mapping[str, Any]) -> None:
    """Whether what is given beside a previous run leaves its settings as they are.

    Raises:
        ConfigError: If not.
    """
    if other := [f"`{name}`" for name in given if name not in CHANGEABLE]:
        raise ConfigError(
            f"{', '.join(other)} cannot be given beside `previous`: a run that learns from answers has the "
            "settings of the one that they are about. Leave them out, or give `labels` without `previous`."
        )
