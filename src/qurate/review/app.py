"""The addresses of the page: its parts, questions, pictures by number, and answers."""

from __future__ import annotations

import io
import json
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from importlib.resources import files
from pathlib import Path
from typing import Any

from PIL import Image
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from qurate.data.images import UnreadableImageError, read_image
from qurate.errors import QurateError
from qurate.review.guard import MOST_BYTES, App, Guard
from qurate.review.session import Session

SIDES = {"small": 192, "large": 1024}
"""Longer side in pixels of each size."""


class Pictures:
    """The images that a page may show, by number.

    Args:
        files: All of them; nothing else is ever read.
    """

    def __init__(self, files: Sequence[Path]) -> None:
        self._files = tuple(files)
        self._encode = lru_cache(maxsize=256)(encode_picture)

    def get(self, number: int, size: str) -> bytes | None:
        """A JPEG; None where there is no such number or size, or the file cannot be read."""
        if size not in SIDES or not 0 <= number < len(self._files):
            return None
        try:
            return self._encode(self._files[number], SIDES[size])
        except UnreadableImageError:
            return None


def encode_picture(path: Path, side: int) -> bytes:
    """A JPEG no larger than that.

    Raises:
        UnreadableImageError: If the file cannot be decoded.
    """
    image = read_image(path)
    image.thumbnail((side, side), Image.Resampling.LANCZOS)
    jpeg = io.BytesIO()
    image.save(jpeg, "JPEG", quality=88)
    return jpeg.getvalue()


PARTS = {"": "text/html", "page.css": "text/css", "page.js": "text/javascript"}
"""Files of the page, and their media types."""
MOST_IMAGES = 200
"""Pseudo-labels that a page of the grid may ask for."""


@dataclass(frozen=True)
class Example:
    """An image of a class, to compare with.

    Args:
        file: The image.
        label: Its class.
        part: 'source' or 'labeled'.
    """

    file: Path
    label: str
    part: str


class ReviewPage:
    """Answers the requests of the page.

    Args:
        title: Of the page.
        session: The questions.
        examples: Images of the classes.
    """

    def __init__(self, title: str, session: Session, examples: list[Example]) -> None:
        self._title, self._session, self._examples = title, session, examples
        self._pictures = {
            "images": Pictures(session.inquiry.paths),
            "examples": Pictures([example.file for example in examples]),
        }
        self._lock = threading.Lock()  # one request at a time changes or reads the session

    def guarded(self, token: str, port: int) -> App:
        """The application, behind its guard."""
        at = "/{token}/"
        routes = [
            Route(f"{at}start", self.start),
            Route(f"{at}question", self.question),
            Route(f"{at}trusted", self.trusted),
            Route(at + "{part}/{number:int}/{size}", self.picture),
            Route(f"{at}answers", self.answers, methods=["POST"]),
            Route(f"{at}undo", self.undo, methods=["POST"]),
            Route(f"{at}more", self.more, methods=["POST"]),
            *(Route(at + name, self.part) for name in PARTS),
        ]
        handlers: dict[Any, Callable[..., Any]] = {HTTPException: _explain, QurateError: _explain_ours}
        return Guard(Starlette(routes=routes, exception_handlers=handlers), token, port)

    async def part(self, request: Request) -> Response:
        """A file of the page."""
        name = request.url.path.rsplit("/", 1)[1]
        content = files("qurate.review").joinpath("page", name or "index.html").read_bytes()
        return Response(content, media_type=PARTS[name], headers={"cache-control": "no-cache"})

    async def start(self, request: Request) -> Response:
        """What the page shows first: classes, their examples, the pseudo-labels, and the progress."""
        names = self._session.inquiry.classes
        examples: list[list[dict[str, Any]]] = [[] for _ in names]
        number = {name: k for k, name in enumerate(names)}
        for i, example in enumerate(self._examples):
            if example.label in number:
                examples[number[example.label]].append({"number": i, "part": example.part})
        return await self._respond(lambda: {"title": self._title, "classes": list(names), "examples": examples})

    async def question(self, request: Request) -> Response:
        """The next question."""
        words = request.query_params.get("later", "").split(",")
        later = [int(word) for word in words if word.isascii() and word.isdigit() and len(word) < 10]
        tab = request.query_params.get("tab", "")[:40]
        return await self._respond(lambda: {"question": self._session.next_question(tab, later)})

    async def trusted(self, request: Request) -> Response:
        """Pseudo-labels of a class without an answer."""
        label = _whole(request.query_params.get("label"), len(self._session.inquiry.classes) - 1)
        count = _whole(request.query_params.get("count"), MOST_IMAGES)
        return await self._respond(lambda: {"grid": self._session.trusted_images(label, count)})

    def picture(self, request: Request) -> Response:
        """An image by its number; no path of a request ever leads to a file."""
        pictures = self._pictures.get(request.path_params["part"])
        content = pictures and pictures.get(request.path_params["number"], request.path_params["size"])
        if not content:
            raise HTTPException(404, "there is no such image")
        return Response(content, media_type="image/jpeg", headers={"cache-control": "private, max-age=600"})

    async def answers(self, request: Request) -> Response:
        """Save answers."""
        body = await _body(request)
        given = body.get("answers")
        if not isinstance(given, list) or not all(isinstance(one, dict) for one in given):
            raise HTTPException(400, "answers must be a list")
        return await self._respond(lambda: {"id": self._session.answer(given)})

    async def undo(self, request: Request) -> Response:
        """Take answers back."""
        act = (await _body(request)).get("id")
        return await self._respond(lambda: {"undone": self._session.log.undo(str(act))})

    async def more(self, request: Request) -> Response:
        """Ask more."""
        return await self._respond(lambda: {"added": self._session.ask_more()})

    async def _respond(self, work: Callable[[], dict[str, Any]]) -> Response:
        """The result of some work, and the state of the session after it."""

        def do() -> dict[str, Any]:
            with self._lock:
                return {**work(), "summary": self._session.summary(), "trusted": self._session.trusted_classes()}

        body = json.dumps(await run_in_threadpool(do))  # in ASCII: the name of a file need not be valid text
        return Response(body, media_type="application/json", headers={"cache-control": "no-store"})


async def _body(request: Request) -> dict[str, Any]:
    if request.headers.get("content-type", "").partition(";")[0] != "application/json":
        raise HTTPException(415, "the body must be JSON")
    content = b""
    async for chunk in request.stream():
        content += chunk
        if len(content) > MOST_BYTES:
            raise HTTPException(413, "the request is too large")
    try:
        body = json.loads(content)
    except (ValueError, RecursionError):
        raise HTTPException(400, "the body must be JSON") from None
    if not isinstance(body, dict):
        raise HTTPException(400, "the body must be a table")
    return body


def _whole(word: str | None, most: int) -> int:
    if word is None or not word.isascii() or not word.isdigit() or len(word) > 9 or int(word) > most:
        raise HTTPException(400, f"a number between 0 and {most} is needed")
    return int(word)


def _explain(request: Request, error: HTTPException) -> Response:
    return JSONResponse({"problem": str(error.detail)}, error.status_code)


def _explain_ours(request: Request, error: QurateError) -> Response:
    return JSONResponse({"problem": str(error)}, 500 if isinstance(error, RuntimeError) else 400)
