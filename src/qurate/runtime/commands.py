"""Commands that make sense next, as a person can type them. Needs nothing heavy."""

from __future__ import annotations

import os
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from qurate.runtime.paths import StrPath


class NextStep(NamedTuple):
    """A command, and what it is for.

    Args:
        purpose: After the word 'to', such as 'use the model on other images'.
        words: After the word `qurate`; capitals such as IMAGES are for the person to fill in.

    Example:
        >>> print(NextStep("label images", ("open", "my run")).line)
        Next, to label images: qurate open 'my run'
    """

    purpose: str
    words: tuple[str, ...]

    @property
    def command(self) -> str:
        """Quoted for the shell."""
        return shlex.join(["qurate", *self.words])

    @property
    def line(self) -> str:
        """For the terminal."""
        return f"Next, to {self.purpose}: {self.command}"


def predict_with(run: StrPath) -> NextStep:
    """The step of using a model."""
    return NextStep("use the model on other images", ("predict", str(run), "IMAGES", "--out", "predictions.csv"))


def open_run(run: StrPath) -> NextStep:
    """The step of answering questions about the images of a run."""
    return NextStep("label the images that help most, on a page", ("open", str(run)))


def suggest_from(run: StrPath, count: int) -> NextStep:
    """The step of writing a table of images to label."""
    words = ("suggest", str(run), "--count", str(count), "--out", "to_label.csv")
    return NextStep("list the images to label", words)


def learn_from(run: StrPath, *options: str) -> NextStep:
    """The step of learning from answers about a run."""
    place = Path(run) if Path(run).name not in ("", "..") else Path(run).resolve()
    words = ("adapt", "--from", str(run), *options, "--out", free_name(str(place)))
    return NextStep("learn from the answers", words)


def option_words(given: Mapping[str, object]) -> list[str]:
    """Options by the names of their arguments, as words of a command.

    Example:
        >>> option_words({"source": ("studio", "web"), "image_size": 192})
        ['--source', 'studio', 'web', '--image-size', '192']
    """
    several = {name: value if isinstance(value, list | tuple) else (value,) for name, value in given.items()}
    return [word for name, values in several.items() for word in (f"--{name.replace('_', '-')}", *map(str, values))]


def free_name(wanted: str) -> str:
    """The name, or one with the next number, at which there is nothing yet.

    Example:
        >>> free_name("a-folder-that-is-not-there")
        'a-folder-that-is-not-there'
    """
    stem, _, number = wanted.rpartition("-")
    if not (stem and number.isdecimal()):
        stem, number = wanted, "1"
    name, count = wanted, int(number)
    while os.path.lexists(Path(name)):
        count += 1
        name = f"{stem}-{count}"
    return name
