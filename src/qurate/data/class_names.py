"""Names of classes: one form for the same name, and which names a person may give. Loads no torch."""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable

from qurate.errors import DataError
from qurate.runtime.paths import shorten

NO_CLASS = "none"
"""How people call the class of an image of no class: in answers, and in labelled images to measure a model on."""
NO_FIT = "fits none of the classes"
"""What is said of an image that the model flags as one of no class."""
_LONGEST_NAME = 255
"""Bytes of a class name in UTF-8: those of a folder's name."""
JOINERS = "\u200c\u200d"
"""Letters without a look of their own that words and emoji need."""


def compose_name(name: str) -> str:
    """A name in Unicode's composed form: macOS stores the same name decomposed."""
    return unicodedata.normalize("NFC", name)


def check_class_name(name: str, others: Iterable[str]) -> str:
    """The name of a new class, in Unicode's composed form and without spaces around it.

    Args:
        name: As a person wrote it.
        others: The classes that there are.

    Raises:
        DataError: If no class can be called so, or one is that differs by upper and lower case alone.
    """
    whole = compose_name(name.strip())
    if not whole:
        raise DataError("the name of a class must have a letter, got none.")
    shown = f"'{shorten(whole)}'"
    if not all(letter.isprintable() or letter in JOINERS for letter in whole):
        raise DataError(
            f"the name of a class must be one line of text without control characters, got {shorten(whole)!a}."
        )
    if (size := len(whole.encode())) > _LONGEST_NAME:
        raise DataError(f"the name of a class must have at most {_LONGEST_NAME} bytes, got {size}: {shown}.")
    if whole.startswith(".") or "/" in whole:
        raise DataError(f"the name of a class must be one for a folder, without '/' or '.' in front, got {shown}.")
    if whole.casefold() == NO_CLASS:
        raise DataError(f"no class can be called {shown}, for that is the answer about an image of no class.")
    if same := [other for other in others if other.casefold() == whole.casefold() and other != whole]:
        raise DataError(f"{shown} is the class '{shorten(same[0])}' but for upper and lower case. Use that name.")
    return whole
