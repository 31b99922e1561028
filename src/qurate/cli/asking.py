"""The verbs that ask a person: suggest, review."""

from __future__ import annotations

import functools
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import tyro
from rich.console import Console

from qurate.cli import options
from qurate.cli.options import check_output, write_output
from qurate.cli.terminal import announce_loading, load_torch, on_stop, print_line, print_message, print_next
from qurate.errors import ConfigError
from qurate.registry import QUERY_STRATEGIES
from qurate.runs.model_json import read_about
from qurate.runs.options import DEFAULT_QUERY_STRATEGY
from qurate.runtime.commands import learn_from
from qurate.runtime.options import between
from qurate.runtime.paths import is_file

if TYPE_CHECKING:
    from qurate.runs.model import AdaptedModel
    from qurate.runs.suggestions import Inquiry, RunImages


QueryStrategyName = Annotated[
    str, tyro.conf.arg(metavar="NAME", help=f"Which images to ask about: {', '.join(QUERY_STRATEGIES)}.")
]


def suggest(
    run: options.RunDir,
    count: options.Count,
    out: options.File,
    asker: QueryStrategyName = DEFAULT_QUERY_STRATEGY,
    random_share: options.Share = 0.0,
    seed: options.Seed = 0,
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
    _check_strategy(asker)
    check_output(out, "--out", force=force)
    read_about(run)
    on_stop(lambda: "Nothing was written. Re-run the command to start again.")
    announce_loading(f"choosing {count} images of {run} to label", "pandas", "pandas")
    from qurate.active.answers import LABELS_FILE, AnswerLog
    from qurate.runs.files import PREDICTIONS_FILE
    from qurate.runs.suggested import read_run_table, read_suggested
    from qurate.runtime.tables import to_csv

    if out.resolve() == (run / LABELS_FILE).resolve():
        raise ConfigError(f"--out cannot be {out}, for 'qurate review' adds answers to it. Choose another --out.")
    answers = AnswerLog(run / LABELS_FILE).current()
    table = read_suggested(run, count, asker, random_share, answers)
    if table is None:
        load_torch("there is no ready list for that, so the model looks at the images")
        from qurate.runs.model import load
        from qurate.runs.suggestions import read_run_images

        inquiry = look_at(load(run), read_run_images(run))
        table = inquiry.table(inquiry.draw(count, asker, random_share=random_share, seed=seed, answers=answers))
    if table.empty:
        raise ConfigError(f"--asker {asker} finds nothing to ask about in {run}. Choose another --asker.")
    write_output(out, to_csv(table), "--out")
    images = int((read_run_table(run, PREDICTIONS_FILE, "file", "problem")["problem"] == "").sum())
    honest = int((table["asker"] == "random").sum())
    print_line(f"{len(table)} of {images} images to label, {honest} of them drawn at random. Table: {out}")
    print_line("Fill in its column label.")
    print_next(learn_from(run, "--labels", str(out)))


def review(
    run: options.RunDir,
    count: options.Count = 50,
    asker: QueryStrategyName = DEFAULT_QUERY_STRATEGY,
    random_share: options.Share = 0.2,
    seed: options.Seed = 0,
    port: Annotated[int, between(0, 65535)] = 0,
    browser: options.Switch = True,
) -> None:
    """Answer on a page on this machine: which classes images have, and which pseudo-labels are wrong.

    Args:
        run: Folder of a finished run; every answer is added to RUN/labels.csv at once.
        count: Questions at a time.
        asker: Which images to ask about; a name of the registry.
        random_share: Part that is drawn at random, 0 to 1; only that part tells how often the model is right.
        seed: Decides everything random.
        port: Of the server, which only this machine can reach; 0 takes any that is free.
        browser: Open the page in a browser.
    """
    _check_strategy(asker)
    read_about(run)
    if any(find_spec(name) is None for name in ("starlette", "uvicorn")):
        raise ConfigError("review needs the extra 'review': pip install 'qurate[review]'.")
    on_stop(functools.partial(_after_review, run))
    load_torch(f"opening {run} for questions")
    from qurate.active.answers import LABELS_FILE, AnswerLog
    from qurate.review.app import PATIENCE, ReviewPage
    from qurate.review.server import embed_examples, listen, read_examples, serve
    from qurate.review.session import QueryOptions, Session
    from qurate.runs.model import load
    from qurate.runs.suggestions import read_run_images

    examples = read_examples(run)
    own = listen(port)
    with own:
        model = load(run)
        inquiry = look_at(model, read_run_images(run))
        log = AnswerLog(run / LABELS_FILE, PATIENCE)
        session = Session(inquiry, log, QueryOptions(count, asker, random_share, seed))
        title = run.absolute().name
        serve(ReviewPage(title, session, embed_examples(model, examples)), own, show=browser, say=print_line)


def _after_review(run: Path) -> str:
    labels = run / "labels.csv"
    return f"All answers are saved in {labels}. {learn_from(run).line if is_file(labels) else ''}".rstrip()


def look_at(model: AdaptedModel, images: RunImages) -> Inquiry:
    """The images of a run as its model sees them; says how many cannot be read."""
    from qurate.runs.suggestions import make_inquiry
    from qurate.runtime.paths import list_some
    from qurate.runtime.progress import PhaseBars

    with PhaseBars(Console()) as bars:
        inquiry = make_inquiry(model, images, functools.partial(bars.show, "looking at the images"))
    if inquiry.unreadable:
        count = len(images.files) + len(images.flagged)
        lost = f"{len(inquiry.unreadable)} of {count} images cannot be read and are left out"
        print_message(f"{lost}: {list_some(inquiry.unreadable, 3)}.", "yellow")
    return inquiry


def _check_strategy(asker: str) -> None:
    try:
        QUERY_STRATEGIES.find(asker)
    except ConfigError as error:
        raise ConfigError(f"--{error}") from None
