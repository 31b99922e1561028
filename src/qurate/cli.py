"""The command line: one function a verb. Imported by nobody."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import tyro
from rich.console import Console

from qurate import commands
from qurate.backbones import BackboneError
from qurate.benchmark.demo import run_demo
from qurate.data.domains import DataError
from qurate.data.embeddings import EmbeddingError
from qurate.data.images import UnreadableImageError
from qurate.models import ModelError
from qurate.offline import OfflineWeightsError
from qurate.runs import RunError
from qurate.selection.pool import OversizeStateError
from qurate.settings import SettingError
from qurate.training import TrainingError


def demo(
    out: Annotated[Path, tyro.conf.arg(metavar="DIR")] = Path("demo"),
    seed: int = 0,
    force: bool = False,
) -> None:
    """Compare six methods on adapting from typeset to handwritten digits. No download.

    Args:
        out: Folder for results.csv.
        seed: Decides data, weights and batches; the same seed gives the same numbers on CPU.
        force: Overwrite DIR/results.csv if it is there.
    """
    run_demo(out, seed=seed, force=force, console=Console())


_OURS = (
    BackboneError,
    DataError,
    EmbeddingError,
    ModelError,
    OfflineWeightsError,
    OversizeStateError,
    RunError,
    SettingError,
    TrainingError,
    UnreadableImageError,
    FileExistsError,
)
"""Errors whose message is all that a person needs."""


def main() -> None:
    """Entry point of `qurate`."""
    verbs: dict[str, Callable[..., Any]] = {
        "adapt": commands.adapt,
        "predict": commands.predict,
        "evaluate": commands.evaluate,
        "export": commands.export,
        "check": commands.check,
        "demo": demo,
    }
    with warnings.catch_warnings():
        warnings.showwarning = lambda message, *_, **__: _tell(f"warning: {message}", "yellow")
        try:
            tyro.extras.subcommand_cli_from_dict(verbs, prog="qurate", description="Adapt an image classifier.")
        except _OURS as error:
            _tell(str(error), "red")
            sys.exit(2)
        except KeyboardInterrupt:
            _tell("stopped.", "red")
            sys.exit(130)


def _tell(message: str, style: str) -> None:
    """One line on standard error, as it is: a file name may hold brackets, and a line may be long."""
    line = " ".join(f"qurate: {message}".split())
    Console(stderr=True).print(line, style=style, markup=False, highlight=False, soft_wrap=True)
