"""The command line: one function a verb. Imported by nobody."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import tyro
from rich.console import Console

from qurate.benchmark.demo import run_demo
from qurate.cli import own_images
from qurate.cli.benchmarks import benchmark
from qurate.errors import QurateError


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


def report(
    folder: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="DIR")],
    out: Annotated[Path | None, tyro.conf.arg(metavar="DIR")] = None,
    reference: Annotated[str | None, tyro.conf.arg(metavar="ROW")] = None,
) -> None:
    """Tables and figures of a benchmark beside the published numbers, and which differences are larger than chance.

    Writes tables.md, tables.tex, tables.html and the figures; those of an earlier report there are replaced.

    Args:
        folder: The --out folder of `qurate benchmark`; it may still be running.
        out: Folder for the files; DIR/report unless given.
        reference: Row that the others are compared with, as 'TML_SPL'; TML_DQNPL unless given, or else the best.
    """
    from qurate.report.benchmark.report import write_report
    from qurate.report.benchmark.terminal import print_report

    console = Console()
    made, files = write_report(folder, out, reference=reference)
    print_report(made, console)
    names = ", ".join(file.name for file in files)
    console.print(f"Written to {files[0].parent}: {names}", markup=False, highlight=False, soft_wrap=True)


def main() -> None:
    """Entry point of `qurate`."""
    verbs: dict[str, Callable[..., Any]] = {
        "adapt": own_images.adapt,
        "predict": own_images.predict,
        "evaluate": own_images.evaluate,
        "export": own_images.export,
        "embed": own_images.embed,
        "check": own_images.check,
        "benchmark": benchmark,
        "report": report,
        "demo": demo,
    }
    with warnings.catch_warnings():
        warnings.showwarning = lambda message, *_, **__: _tell(f"warning: {message}", "yellow")
        try:
            tyro.extras.subcommand_cli_from_dict(verbs, prog="qurate", description="Adapt an image classifier.")
        except QurateError as error:
            _tell(str(error), "red")
            sys.exit(2)
        except KeyboardInterrupt:
            _tell("stopped.", "red")
            sys.exit(130)


def _tell(message: str, style: str) -> None:
    """One line on standard error, as it is: a file name may hold brackets, and a line may be long."""
    line = " ".join(f"qurate: {message}".split())
    Console(stderr=True).print(line, style=style, markup=False, highlight=False, soft_wrap=True)
