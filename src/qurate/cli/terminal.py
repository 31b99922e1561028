"""Lines on the terminal, and what is printed when a verb is stopped."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING

from rich.console import Console

from qurate.runtime.commands import NextStep

if TYPE_CHECKING:
    from qurate.evaluation import Metrics


_OPTIONS = {"previous": "from", "time_limit": "minutes"}
"""Arguments whose option has another name."""
_ARGUMENT = re.compile(r"`([a-z][a-z_]*)(?:=([^`]*))?`")


def print_line(line: str) -> None:
    """Print a line to standard output as it is: a file name may hold brackets, and a line may be long."""
    Console().print(line, markup=False, highlight=False, soft_wrap=True)


def print_next(*steps: NextStep) -> None:
    """Print the commands that make sense now."""
    for step in steps:
        print_line(step.line)


def print_message(message: str, style: str = "") -> None:
    """Print a message of the library to standard error in one line, likewise; where nothing can be printed, go on."""
    line = " ".join(f"qurate: {name_options(message)}".split())
    with suppress(OSError):
        Console(stderr=True).print(line, style=style, markup=False, highlight=False, soft_wrap=True)


def name_options(message: str) -> str:
    """A message of the library with its arguments, such as `force=True`, as options: --force.

    Example:
        >>> name_options("Pass `missing='drop'`, or choose another `out`.")
        'Pass --missing drop, or choose another --out.'
    """

    def option(found: re.Match[str]) -> str:
        name, value = _OPTIONS.get(found[1], found[1].replace("_", "-")), found[2]
        if value in (None, "True"):
            return f"--{name}"
        return f"--no-{name}" if value == "False" else f"--{name} {value.strip(chr(39))}"

    return _ARGUMENT.sub(option, message)


def load_torch(doing: str) -> None:
    """Print what is about to be done, before PyTorch is loaded, which takes seconds, and set this process up for it.

    Args:
        doing: What is done, such as 'predicting the classes of photos with run'.
    """
    announce_loading(doing, "PyTorch", "torch")
    from qurate.runtime.machine import keep_freed_memory

    keep_freed_memory()


def announce_loading(doing: str, title: str, module: str) -> None:
    """Print what is about to be done and that a part is loaded for it, unless that is loaded already."""
    if module not in sys.modules:
        print_message(f"{doing}; loading {title} ...", "dim")


_advice: list[Callable[[], str]] = []


def on_stop(advice: Callable[[], str]) -> None:
    """Set what is printed if this verb is stopped: how far it is, and how to continue."""
    _advice[:] = [advice]


def stop_advice() -> str:
    """What `on_stop` was given to print."""
    return _advice[0]() if _advice else ""


def print_metrics(found: Metrics) -> None:
    """Accuracy, and a table of the classes."""
    from qurate.data.class_names import NO_CLASS
    from qurate.runtime.progress import make_table

    images = int(found.confusion.sum())
    print_line(f"Accuracy {found.accuracy:.1%}, balanced accuracy {found.balanced_accuracy:.1%} on {images} images.")
    if found.confidence is not None and found.calibration_error is not None and found.uncalibrated_error is not None:
        print_line(
            f"Mean confidence {found.confidence:.1%}, expected calibration error "
            f"{100 * found.calibration_error:.1f} points ({100 * found.uncalibrated_error:.1f} before calibration)."
        )
    if found.auroc is not None:
        print_line(
            f"A right prediction has a higher probability than a wrong one in {found.auroc:.1%} of pairs (AUROC)."
        )
    if found.auroc_unknown is not None:
        print_line(
            f"{found.unknown} more images are of no class ('{NO_CLASS}'). An image of a class fits the classes "
            f"better than one of none in {found.auroc_unknown:.1%} of pairs (AUROC)."
        )
    rows = [
        (name, str(images), str(right), f"{accuracy:.1%}", mistaken)
        for name, images, right, accuracy, mistaken in found.table.itertuples(index=False, name=None)
    ]
    Console().print(make_table("Per class", ("class", "images", "right", "accuracy", "mistaken for"), rows))
