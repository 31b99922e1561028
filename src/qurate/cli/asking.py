"""The verbs that ask a person: suggest."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Annotated

import tyro
from rich.console import Console

from qurate.cli import options
from qurate.cli.arguments import check_count, check_seed
from qurate.cli.signals import on_stop
from qurate.cli.terminal import begin, check_output, say, tell, write
from qurate.errors import ConfigError
from qurate.registry import ASKERS
from qurate.runs.about import read_about
from qurate.runs.settings import DEFAULT_ASKER
from qurate.runtime.checked import show

AskerName = Annotated[str, tyro.conf.arg(metavar="NAME", help=f"Which images to ask about: {', '.join(ASKERS)}.")]


def suggest(
    run: options.RunDir,
    count: Annotated[int, tyro.conf.arg(metavar="INT")],
    out: Annotated[Path, tyro.conf.arg(metavar="FILE")],
    asker: AskerName = DEFAULT_ASKER,
    random_share: float = 0.0,
    seed: int = 0,
    force: options.Flag = False,
) -> None:
    """Say which unlabelled images to label next, and why.

    Args:
        run: Folder of a finished run.
        count: How many images.
        out: CSV table to write: file, label (empty, for you), predicted, probability, runner_up, asker, why.
        asker: Which images to ask about; a name of the registry.
        random_share: Part that is drawn at random, 0 to 1; only that part tells how often the model is right.
        seed: Decides everything random.
        force: Overwrite FILE if it exists.
    """
    check_wish_words(count, asker, random_share, seed)
    check_output(out, "--out", force=force)
    read_about(run)
    on_stop(lambda: "Nothing was written. Re-run the command to start again.")
    begin()
    from qurate.data.domains import list_some
    from qurate.runs.answers import LABELS_FILE, AnswerLog
    from qurate.runs.model import load
    from qurate.runs.suggestions import make_inquiry, read_run_images
    from qurate.runtime.progress import PhaseBars
    from qurate.runtime.tables import to_csv

    files, trusted = read_run_images(run)
    with PhaseBars(Console()) as bars:
        inquiry = make_inquiry(load(run), files, trusted, functools.partial(bars.show, "looking at the images"))
    if inquiry.unreadable:
        lost = f"{len(inquiry.unreadable)} of {len(files)} images cannot be read and are left out"
        tell(f"{lost}: {list_some(inquiry.unreadable, 3)}.", "yellow")
    answers = AnswerLog(run / LABELS_FILE).current()
    questions = inquiry.draw(count, asker, random_share=random_share, seed=seed, answers=answers)
    if not questions:
        raise ConfigError(f"--asker {asker} finds nothing to ask about in {run}. Choose another --asker.")
    write(out, to_csv(inquiry.table(questions)), "--out")
    honest = sum(question.asker == "random" for question in questions)
    say(f"{len(questions)} of {len(inquiry.files)} images to label, {honest} of them drawn at random. Table: {out}")


def check_wish_words(count: int, asker: str, random_share: float, seed: int) -> None:
    """Judge the options that say what to ask, before anything heavy is loaded.

    Raises:
        ConfigError: If one is not allowed.
    """
    check_count("count", count)
    check_seed("seed", seed)
    if not 0 <= random_share <= 1:
        raise ConfigError(f"--random-share must be between 0 and 1, got {show(random_share)}.")
    try:
        ASKERS.find(asker)
    except ConfigError as error:
        raise ConfigError(f"--{error}") from None
