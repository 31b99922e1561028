"""The verbs that ask a person: suggest, open."""

from __future__ import annotations

import functools
import os
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import tyro
from rich.console import Console
from tyro.conf import OmitArgPrefixes

from qurate.cli import options
from qurate.cli.options import check_output, write_output
from qurate.cli.terminal import announce_loading, load_torch, on_stop, print_line, print_message, print_next
from qurate.errors import ConfigError
from qurate.registry import QUERY_STRATEGIES
from qurate.runs.files import COMPARISON_FILE, CONFIG_FILE, PROGRESS_FILE
from qurate.runs.model_json import ABOUT_FILE, file_of, read_about
from qurate.runs.options import COLD_START_STRATEGY, DEFAULT_QUERY_STRATEGY, BackboneOptions
from qurate.runtime.commands import NextStep, free_name, learn_from, open_run, option_words
from qurate.runtime.options import between, option
from qurate.runtime.paths import LABELED, UNLABELED, existing, is_file
from qurate.runtime.progress import PhaseBars, read_progress

if TYPE_CHECKING:
    from qurate.review.runs import OpenRuns


_QUERY_STRATEGIES = f"Which images to ask about: {', '.join(QUERY_STRATEGIES)}."
_DEFAULTS = f"{DEFAULT_QUERY_STRATEGY}, and {COLD_START_STRATEGY} before any run"
QueryStrategyName = Annotated[str, tyro.conf.arg(metavar="NAME", help=_QUERY_STRATEGIES)]


def suggest(
    count: options.Count,
    out: options.File,
    model: OmitArgPrefixes[BackboneOptions],
    run: Annotated[Path | None, tyro.conf.Positional, option("[RUN]")] = None,
    source: options.Folders = (),
    unlabeled: options.AnyFolder = None,
    query_strategy: Annotated[str | None, option("NAME", _DEFAULTS, help=_QUERY_STRATEGIES)] = None,
    random_share: options.Share = 0.0,
    seed: options.Seed = 0,
    force: options.Flag = False,
) -> None:
    """Say which unlabelled images to label next, and why; or which to label first, before any run.

    Args:
        count: How many images.
        out: CSV table to write: file, label (empty, for you), predicted, probability, runner_up, query_strategy,
            why.
        model: The backbone, before any run.
        run: Folder of a finished run. Without it, --source and --unlabeled say where the images are.
        source: Labelled source images, before any run: class folders, a list file or a CSV table; or several of them.
        unlabeled: Target images, before any run: any folder, a list or a table.
        query_strategy: Which images to ask about; a name of the registry.
        random_share: Part that is drawn at random, 0 to 1; only that part tells how often the model is right.
        seed: Decides everything random.
        force: Overwrite FILE if it exists.
    """
    if (run is None and not (source and unlabeled)) or (run is not None and (source or unlabeled)):
        raise ConfigError(
            "suggest needs RUN, the folder of a finished run; or, before any run, --source and --unlabeled together."
        )
    if run is not None and model:
        raise ConfigError(
            f"--{next(iter(model)).replace('_', '-')} is for --source and --unlabeled: a run has its own backbone."
        )
    query_strategy = query_strategy or (DEFAULT_QUERY_STRATEGY if run is not None else COLD_START_STRATEGY)
    _check_strategy(query_strategy)
    check_output(out, "--out", force=force)
    if run is not None:
        _suggest_of_run(run, count, out, query_strategy, random_share, seed)
        return
    assert unlabeled is not None
    for place in source:
        existing(place, "--source", LABELED)
    existing(unlabeled, "--unlabeled", UNLABELED)
    on_stop(lambda: "Embeddings are kept in the cache. Re-run the command to continue.")
    load_torch(f"choosing {count} images of {unlabeled} to label first")
    import qurate
    from qurate.runtime.tables import to_csv

    with PhaseBars(Console()) as bars:
        show = functools.partial(bars.show, "embedding")
        table = qurate.suggest(
            source,
            unlabeled,
            count,
            query_strategy=query_strategy,
            random_share=random_share,
            seed=seed,
            on_progress=show,
            **model,
        )
    if table.empty:
        raise ConfigError(
            f"--query-strategy {query_strategy} finds nothing to ask about in {unlabeled}. Choose another."
        )
    relative = [file if Path(file).is_absolute() else os.path.relpath(file, out.parent) for file in table["file"]]
    write_output(out, to_csv(table.assign(file=relative)), "--out")
    honest = int((table["query_strategy"] == "random").sum())
    print_line(f"{len(table)} images to label first, {honest} of them drawn at random. Table: {out}")
    print_line(
        "Fill in its column label; a row without a label does not count. Each class of the source needs one image: if "
        "a class has none, add a row with a file and the class."
    )
    words = option_words({"source": source, "labeled": out, "unlabeled": unlabeled, **model})
    print_next(NextStep("adapt with these labels", ("adapt", *words, "--out", free_name("run"))))


def _suggest_of_run(run: Path, count: int, out: Path, strategy: str, random_share: float, seed: int) -> None:
    """The table of what to label next of a finished run."""
    read_about(run)
    on_stop(lambda: "Nothing was written. Re-run the command to start again.")
    announce_loading(f"choosing {count} images of {run} to label", "pandas", "pandas")
    from qurate.active.answers import LABELS_FILE, AnswerLog
    from qurate.runs.files import PREDICTIONS_FILE
    from qurate.runs.result_tables import read_run_table, read_suggested
    from qurate.runtime.tables import to_csv

    if out.resolve() == (run / LABELS_FILE).resolve():
        raise ConfigError(f"--out cannot be {out}, for 'qurate open' adds answers to it. Choose another --out.")
    answers = AnswerLog(run / LABELS_FILE).current()
    table = read_suggested(run, count, strategy, random_share, answers)
    if table is None:
        load_torch("there is no ready list for that, so the model looks at the images")
        from qurate.runs.model import load
        from qurate.runs.suggestions import look_at, read_run_images

        with PhaseBars(Console()) as bars:
            show = functools.partial(bars.show, "looking at the images")
            inquiry = look_at(load(run), read_run_images(run), show, functools.partial(print_message, style="yellow"))
        table = inquiry.table(inquiry.draw(count, strategy, random_share=random_share, seed=seed, answers=answers))
    if table.empty:
        raise ConfigError(f"--query-strategy {strategy} finds nothing to ask about in {run}. Choose another.")
    write_output(out, to_csv(table), "--out")
    images = int((read_run_table(run, PREDICTIONS_FILE, "file", "problem")["problem"] == "").sum())
    honest = int((table["query_strategy"] == "random").sum())
    print_line(f"{len(table)} of {images} images to label, {honest} of them drawn at random. Table: {out}")
    print_line("Fill in its column label.")
    print_next(learn_from(run, "--labels", str(out)))


def open_page(
    run: Annotated[Path | None, tyro.conf.Positional, option("[RUN]")] = None,
    count: options.Count = 50,
    query_strategy: QueryStrategyName = DEFAULT_QUERY_STRATEGY,
    random_share: options.Share = 0.2,
    seed: options.Seed = 0,
    port: Annotated[int, between(0, 65535)] = 0,
    browser: options.Switch = True,
) -> None:
    """Open a page on this machine: start a run, follow it, see its outcome, answer questions, and learn from them.

    Args:
        run: Folder of a run, finished or at work; every answer is added to RUN/labels.csv at once. Without it, the page
            begins with the folders of a new run.
        count: Questions at a time.
        query_strategy: Which images to ask about; a name of the registry.
        random_share: Part that is drawn at random, 0 to 1; only that part tells how often the model is right.
        seed: Decides everything random.
        port: Of the server, which only this machine can reach; 0 takes any that is free.
        browser: Open the page in a browser.
    """
    _check_strategy(query_strategy)
    is_begun = run is not None and _is_begun(run)
    if run is not None and not is_begun:
        read_about(run)
    if any(find_spec(name) is None for name in ("starlette", "uvicorn")):
        raise ConfigError("open needs the extra 'review': pip install 'qurate[review]'.")
    on_stop(functools.partial(_after_page, run, None))
    load_torch("opening a page for a new run" if run is None else f"opening {run}")
    from qurate.review.runs import OpenRuns
    from qurate.review.server import listen, load_page, serve
    from qurate.review.session import QueryOptions

    ask = QueryOptions(count, query_strategy, random_share, seed)
    warn = functools.partial(print_message, style="yellow")
    runs = OpenRuns(lambda folder, on_progress: load_page(folder, ask, on_progress, warn))
    on_stop(functools.partial(_after_page, run, runs))
    own = listen(port)
    with own:
        if run is not None and not is_begun:
            with PhaseBars(Console()) as bars:
                page = load_page(run, ask, functools.partial(bars.show, "looking at the images"), warn)
            runs.add(run, page)
        elif run is not None:
            runs.add(run)
        serve(runs, own, at="" if run is None else "0/", show=browser, say=print_line)


def _is_begun(run: Path) -> bool:
    """Whether there is a run without its last model: at work, or stopped before there was one."""
    if not is_file(file_of(run, ABOUT_FILE)):
        return is_file(run / PROGRESS_FILE) or is_file(run / CONFIG_FILE)
    progress = read_progress(run / PROGRESS_FILE)  # the comparison writes the model again
    return is_file(run / COMPARISON_FILE) and progress is not None and bool(progress["alive"])


def _after_page(run: Path | None, runs: OpenRuns | None) -> str:
    """What is kept when the page ends, and what to do next."""
    opened = [] if runs is None else runs.opened
    working = [] if runs is None else runs.working
    answered = [one.folder for one in opened if one.page is not None and one.page.has_answers]
    if run is not None and os.path.lexists(run / "labels.csv"):
        answered = list(dict.fromkeys([run, *answered]))
    said = [f"All answers are saved in {folder / 'labels.csv'}." for folder in answered]
    if run is not None and not said:
        said.append("No answers were given.")
    started = [word for one in opened if one.process is not None for word in one.process.words]
    if answered and not working and f"--from={answered[-1]}" not in started:
        said.append(learn_from(answered[-1]).line)
    for one in opened:
        if one.folder in working:
            said.append(f"The run in {one.folder} goes on. {open_run(one.folder).line}")
        elif one.process is not None and one.folder.is_dir() and one.folder not in answered:
            said.append(f"The run in {one.folder} has ended. {open_run(one.folder).line}")
    return " ".join(said) or "Nothing was started."


def _check_strategy(name: str) -> None:
    try:
        QUERY_STRATEGIES.find(name)
    except ConfigError as error:
        raise ConfigError(f"--query-strategy{str(error).removeprefix(QUERY_STRATEGIES.what)}") from None
