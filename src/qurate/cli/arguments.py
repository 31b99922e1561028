"""Numbers and folders of the command line, judged before anything heavy is loaded and any work is done."""

from __future__ import annotations

from pathlib import Path

from qurate.data.places import shorten
from qurate.errors import ConfigError
from qurate.runtime.checked import LARGEST_SEED, MOST, show
from qurate.runtime.files import why_not_writable


def check_count(option: str, value: int | None, most: int = MOST, least: int = 1) -> None:
    """A number of things, if one is given.

    Raises:
        ConfigError: If it is too few, or absurd.
    """
    if value is not None and not least <= value <= most:
        raise ConfigError(f"--{option} must be between {least} and {most}, got {show(value)}.")


def check_seed(option: str, value: int) -> None:
    """A seed.

    Raises:
        ConfigError: If it is negative, or too large for the generators of random numbers.
    """
    if not 0 <= value <= LARGEST_SEED:
        raise ConfigError(f"--{option} must be between 0 and {LARGEST_SEED}, got {show(value)}.")


def check_folder(option: str, path: Path) -> None:
    """A folder to write in: it is there and can be written, or can be made.

    Raises:
        ConfigError: If not.
    """
    if reason := why_not_writable(path):
        raise ConfigError(
            f"--{option} must be a folder, got {shorten(path)}, where nothing can be written: {reason}. Choose another."
        )
