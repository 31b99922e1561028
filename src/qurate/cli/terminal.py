"""What the verbs share: lines on the terminal, and what is done before heavy parts are loaded."""

from __future__ import annotations

import sys
from pathlib import Path

from rich.console import Console

from qurate.runtime.files import write_atomically


def say(line: str) -> None:
    """A line on standard output, as it is: a file name may hold brackets, and a line may be long."""
    Console().print(line, markup=False, highlight=False, soft_wrap=True)


def tell(message: str, style: str = "") -> None:
    """One line on standard error, likewise."""
    line = " ".join(f"qurate: {message}".split())
    Console(stderr=True).print(line, style=style, markup=False, highlight=False, soft_wrap=True)


def begin() -> None:
    """Say that PyTorch is being loaded, which takes seconds, and set this process up for work with it."""
    announce("PyTorch", "torch")
    from qurate.runtime.machine import keep_freed_memory

    keep_freed_memory()


def announce(title: str, module: str) -> None:
    """Say that a part is being loaded, unless it is there already."""
    if module not in sys.modules:
        tell(f"loading {title} ...", "dim")


def write(path: Path, content: bytes, option: str) -> None:
    """Write a file that an option named."""
    from qurate.runs.folder import RunError

    try:
        write_atomically(path, content)
    except OSError as error:
        raise RunError(f"{path}: cannot be written ({error.strerror}). Choose another {option}.") from error
