"""The server of the page: on the loopback address only, until it is stopped."""

from __future__ import annotations

import logging
import secrets
import socket
import webbrowser
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import uvicorn

from qurate.active.answers import LABELS_FILE, AnswerLog
from qurate.config import read_settings
from qurate.data.images import OnProgress
from qurate.errors import ConfigError
from qurate.review.app import PATIENCE, Example, ReviewPage
from qurate.review.runs import OpenRuns
from qurate.review.session import LabelIssue, QueryOptions, Session
from qurate.runs.files import CONFIG_FILE, EXAMPLES_FILE
from qurate.runs.image_sources import start_folder_of
from qurate.runs.label_issues import read_label_issues
from qurate.runs.model import AdaptedModel, load
from qurate.runs.model_json import file_of
from qurate.runs.suggestions import look_at, read_run_images
from qurate.runtime.paths import list_some
from qurate.runtime.tables import TableError, read_csv

HOST = "127.0.0.1"


def listen(port: int) -> socket.socket:
    """A socket on this machine's own address.

    Args:
        port: 0 for any that is free.

    Raises:
        ConfigError: If it is taken.
    """
    own = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    own.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        own.bind((HOST, port))
    except OSError as error:
        own.close()
        raise ConfigError(
            f"`port={port}` cannot be used ({error.strerror}). Leave it out, or choose another."
        ) from error
    return own


def serve(runs: OpenRuns, own: socket.socket, *, at: str, show: bool, say: Callable[[str], None]) -> None:
    """Answer requests until a signal comes.

    Args:
        runs: What answers.
        own: Where it listens.
        at: Where to begin, after the token: the number of a run and a slash, or nothing for the form.
        show: Whether to open a browser.
        say: Told the address.
    """
    token, port = secrets.token_urlsafe(32), own.getsockname()[1]
    address = f"http://{HOST}:{port}/{token}/{at}"
    config = uvicorn.Config(
        runs.guarded(token, port),
        http="h11",
        ws="none",
        lifespan="off",
        log_config=None,
        access_log=False,  # the token is part of every path
        server_header=False,
        timeout_graceful_shutdown=2,
    )
    logging.getLogger("uvicorn.error").addFilter(_is_our_fault)
    own.listen(128)  # who comes before the server is ready waits
    say(f"Open {address} in a browser on this machine. Stop with Ctrl-C; every answer is saved as it is given.")
    if show:
        webbrowser.open(address)
    uvicorn.Server(config).run(sockets=[own])


def load_page(run: Path, options: QueryOptions, on_progress: OnProgress, warn: Callable[[str], None]) -> ReviewPage:
    """The page of a finished run: its model looks at the images.

    Args:
        run: Its folder.
        options: What to ask.
        on_progress: Called after each image.
        warn: Told of images that cannot be read.
    """
    examples, model = read_examples(run), load(run)
    inquiry = look_at(model, read_run_images(run), on_progress, warn)
    table = read_label_issues(run)[[*LabelIssue._fields]]
    issues = [LabelIssue(*row) for row in table.itertuples(index=False)]
    try:
        is_compared = read_settings(file_of(run, CONFIG_FILE)).get("check_helping", True) is not False
    except ConfigError:  # missing or damaged
        is_compared = True
    log = AnswerLog(run / LABELS_FILE, PATIENCE)
    session = Session(inquiry, log, options, issues, check_helping=is_compared)
    return ReviewPage(session, embed_examples(model, examples))


def _is_our_fault(record: logging.LogRecord) -> bool:
    """Whether a message of the server is about a fault in qurate, not about a client or a request that was stopped."""
    return record.exc_info is not None and isinstance(record.exc_info[1], Exception)


def read_examples(folder: Path) -> list[Example]:
    """Images of each class that a run left for comparison; none where it is of an earlier version.

    Raises:
        ConfigError: If their table is damaged.
    """
    path = file_of(folder, EXAMPLES_FILE)
    if not path.is_file():
        return []
    try:
        table = read_csv(path)
    except TableError as error:
        raise ConfigError(f"{error} Remove it to do without examples.") from error
    if missing := [name for name in ("file", "label", "part") if name not in table.columns]:
        raise ConfigError(f"{path}: must have the column '{missing[0]}', got {list_some(table.columns)}.")
    rows = zip(table["file"], table["label"], table["part"], strict=True)
    base = start_folder_of(folder)
    return [Example(base / file, label, part) for file, label, part in rows]


def embed_examples(model: AdaptedModel, examples: Sequence[Example]) -> list[Example]:
    """The same with their embeddings, so that the page can say which of them are most like an image."""
    if not examples:
        return []
    seen = model.embed_images([example.file for example in examples])
    embeddings = dict(zip(seen.files, seen.embeddings, strict=True))
    return [replace(example, embedding=embeddings.get(example.file)) for example in examples]
