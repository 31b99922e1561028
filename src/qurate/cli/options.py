"""Types of arguments that several verbs share, and what is checked of places to write to before any work."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import tyro

from qurate.errors import ConfigError
from qurate.runtime.files import why_not_writable, write_atomically
from qurate.runtime.options import Flag as Flag
from qurate.runtime.options import Switch as Switch
from qurate.runtime.options import between, option
from qurate.runtime.paths import is_file, is_folder, shorten
from qurate.runtime.validation import LARGEST_SEED, MOST, MOST_STEPS

AnyName = Annotated[str | None, option("NAME")]
Folder = Annotated[Path, tyro.conf.arg(metavar="DIR")]
AnyFolder = Annotated[Path | None, option("DIR")]
Folders = Annotated[tuple[Path, ...], option("DIR [DIR ...]")]
File = Annotated[Path, tyro.conf.arg(metavar="FILE")]
AnyFile = Annotated[Path | None, option("FILE")]
RunDir = Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="RUN")]
Ray = Annotated[str | None, option("local|ADDRESS")]
Count = Annotated[int, tyro.conf.arg(metavar="INT"), between(1, MOST)]
Steps = Annotated[int, between(1, MOST_STEPS)]
Seed = Annotated[int, between(0, LARGEST_SEED)]
Share = Annotated[float, between(0, 1)]


def check_folder(option: str, path: Path) -> None:
    """A folder to write in: it is there and can be written, or can be made.

    Raises:
        ConfigError: If not.
    """
    if reason := why_not_writable(path):
        raise ConfigError(
            f"--{option} must be a folder, got {shorten(path)}, where nothing can be written: {reason}. Choose another."
        )


def check_output(path: Path, option: str, *, force: bool) -> None:
    """Make sure, before any work begins, that a file may be written.

    Raises:
        ConfigError: If it is there and may not be overwritten, is a folder, or is nowhere where one could be.
    """
    if is_folder(path):
        raise ConfigError(f"{option} must be a file, got {path} (a folder). Name a file in it.")
    if is_file(path) and not force:
        raise ConfigError(f"{path} exists. Choose another {option}, or pass --force to overwrite it.")
    if reason := why_not_writable(path.parent if is_file(path) else path):
        raise ConfigError(f"{option} {shorten(path)}: cannot be written ({reason}). Choose another {option}.")


def write_output(path: Path, content: bytes, option: str) -> None:
    """Write a file that an option named."""
    try:
        write_atomically(path, content)
    except OSError as error:
        raise ConfigError(f"{path}: cannot be written ({error.strerror}). Choose another {option}.") from error
