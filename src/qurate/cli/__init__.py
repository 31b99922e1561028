"""The command line: one function per verb. Imported by nobody, and light until a verb runs."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable
from typing import Any

import tyro

import qurate
from qurate.cli import benchmarks, own_images
from qurate.cli.terminal import say, tell
from qurate.errors import QurateError

VERBS: dict[str, Callable[..., Any]] = {
    "check": own_images.check,
    "adapt": own_images.adapt,
    "predict": own_images.predict,
    "evaluate": own_images.evaluate,
    "export": own_images.export,
    "embed": own_images.embed,
    "demo": benchmarks.demo,
    "benchmark": benchmarks.benchmark,
    "report": benchmarks.report,
}
"""Your own images first, in the order of their use; then the benchmarks."""

_DESCRIPTION = (
    "Adapt an image classifier to a new domain with a few labels per class. "
    "`qurate VERB --help` explains a verb; `qurate --version` prints the version."
)


def main() -> None:
    """Entry point of `qurate`; exit code 2 for an error of ours, 130 for Ctrl-C."""
    words = sys.argv[1:] or ["--help"]
    if words == ["--version"]:
        say(f"qurate {qurate.__version__}")
        return
    with warnings.catch_warnings():
        warnings.showwarning = lambda message, *_, **__: tell(f"warning: {message}", "yellow")
        try:
            tyro.extras.subcommand_cli_from_dict(VERBS, args=words, prog="qurate", description=_DESCRIPTION)
        except QurateError as error:
            tell(str(error), "red")
            sys.exit(2)
        except KeyboardInterrupt as stop:
            tell(" ".join(["stopped.", *map(str, stop.args)]), "red")
            sys.exit(130)
