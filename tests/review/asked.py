"""Requests to the application of the page in this process, without a server."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from starlette.types import ASGIApp, Message
from tests.review.test_session import make_session

if TYPE_CHECKING:
    from qurate.review.app import ReviewPage
    from qurate.review.runs import OpenRuns

TOKEN, PORT = "token", 81


def make_app(folder: Path, patience: float | None = None) -> ASGIApp:
    """The application behind its guard, with questions about images that are not there."""
    from qurate.active.answers import AnswerLog
    from qurate.review.app import ReviewPage

    session = make_session(folder)
    session.log = AnswerLog(session.log.path, patience)
    return open_runs(folder, ReviewPage(session, [])).guarded(TOKEN, PORT)


def open_runs(folder: Path, page: ReviewPage) -> OpenRuns:
    """One run, whose page is there."""
    from qurate.review.runs import OpenRuns

    runs = OpenRuns(lambda folder, on_progress: page)
    runs.add(folder, page)
    return runs


async def ask(
    app: ASGIApp,
    method: str = "GET",
    path: str = "start",
    body: bytes = b"",
    *,
    headers: Mapping[str, str] | None = None,
    leaves: bool = False,
) -> tuple[int, bytes]:
    """Status and body of the answer to a request.

    Args:
        app: The application.
        method: Of HTTP.
        path: Of the first run, or of the server where it begins with a slash; with what follows a question mark.
        body: JSON.
        headers: Beside those of the page.
        leaves: Whether the client goes away in the middle of the body.
    """
    own = {"host": f"127.0.0.1:{PORT}", "origin": f"http://127.0.0.1:{PORT}", "content-type": "application/json"}
    place, _, query = path.partition("?")
    place = place[1:] if place.startswith("/") else f"0/{place}"
    scope: dict[str, Any] = {
        "type": "http",
        "asgi": {"version": "3.0"},
        "http_version": "1.1",
        "method": method,
        "scheme": "http",
        "path": f"/{TOKEN}/{place}",
        "raw_path": f"/{TOKEN}/{place}".encode("utf-8", "surrogatepass"),
        "root_path": "",
        "query_string": query.encode("utf-8", "surrogatepass"),
        "headers": [
            (name.lower().encode("latin-1", "replace"), value.encode("latin-1", "replace"))
            for name, value in {**own, **(headers or {})}.items()
        ],
        "client": ("127.0.0.1", 5),
        "server": ("127.0.0.1", PORT),
    }
    waiting: list[Message] = [{"type": "http.request", "body": body, "more_body": leaves}]
    sent: list[Message] = []

    async def receive() -> Message:
        return waiting.pop(0) if waiting else {"type": "http.disconnect"}

    async def send(message: Message) -> None:
        sent.append(message)

    await app(scope, receive, send)
    return sent[0]["status"], b"".join(message.get("body", b"") for message in sent[1:])


def answer(app: ASGIApp, *arguments: Any, **named: Any) -> tuple[int, bytes]:
    """`ask`, from code that is not asynchronous."""
    return asyncio.run(ask(app, *arguments, **named))
