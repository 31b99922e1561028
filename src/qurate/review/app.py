"""The addresses of a run whose model is loaded: questions, pictures by number, and answers."""

from __future__ import annotations

import gzip
import io
import json
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import torch
from PIL import Image
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp
from torch import Tensor

from qurate.data.images import UnreadableImageError, read_image
from qurate.errors import QurateError
from qurate.review.gallery import Gallery, PictureCache
from qurate.review.guard import MOST_BYTES
from qurate.review.session import Session
from qurate.runtime.commands import learn_from
from qurate.runtime.files import call_within

SIDES = {"small": 192, "large": 1024}
"""Longer side in pixels of each size."""


MOST_IMAGES = 200
"""Pseudo-labels that a page of the grid may ask for."""
MOST_CACHED = 64_000_000
"""Bytes of pictures that are kept: some 8,000 small ones. Our choice."""
PATIENCE = 5.0
"""Seconds that the disk has for a file. Our choice."""


@dataclass(frozen=True)
class Example:
    """An image of a class to compare with; its part is 'source' or 'labeled'.

    Args:
        file: The image.
        label: Its class.
        part: Where it is from.
        embedding: Of the model, (width,); None where it was not asked for, or the image cannot be read.
    """

    file: Path
    label: str
    part: str
    embedding: Tensor | None = field(default=None, compare=False)


class ReviewPage:
    """Answers the requests of the page.

    Args:
        session: The questions.
        examples: Images of the classes.
    """

    def __init__(self, session: Session, examples: list[Example]) -> None:
        self._session, self._examples = session, examples
        self.has_answers = False
        """Whether answers were given on this page."""
        # Nothing but these is ever read.
        self._pictures = {
            "images": session.inquiry.paths,
            "examples": [example.file for example in examples],
            "issues": [session.inquiry.base / issue.file for issue in session.issues],
        }
        self._cache = PictureCache(MOST_CACHED)
        seen = {i: example.embedding for i, example in enumerate(examples) if example.embedding is not None}
        self._gallery = Gallery(session, torch.stack([*seen.values()]) if seen else None, [*seen])

    @cached_property
    def app(self) -> ASGIApp:
        """The application, which is to stand behind a guard."""
        at = "/{token}/"
        routes = [
            Route(f"{at}start", self.start),
            Route(f"{at}question", self.question),
            Route(f"{at}trusted", self.trusted),
            Route(at + "{part}/{number}/{size}", self.picture),
            Route(f"{at}answers", self.answers, methods=["POST"]),
            Route(f"{at}undo", self.undo, methods=["POST"]),
            Route(f"{at}more", self.more, methods=["POST"]),
            Route(f"{at}issues", self.issues),
            Route(f"{at}rows", self.rows),
            Route(f"{at}answered", self.answered),
            Route(f"{at}likeness", self.likeness),
            Route(f"{at}duplicates", self.duplicates),
            Route(f"{at}map", self.map),
        ]
        return Starlette(routes=routes, exception_handlers=HANDLERS)

    async def start(self, request: Request) -> Response:
        """What the page shows first: classes, their examples, the pseudo-labels, and the progress."""
        names = self._session.inquiry.classes
        examples: dict[str, list[dict[str, Any]]] = {name: [] for name in names}
        for number, example in enumerate(self._examples):
            if example.label in examples:
                examples[example.label].append({"number": number, "part": example.part})
        command = learn_from(self._session.log.path.parent).command
        return await self._respond(
            lambda: {"classes": list(names), "examples": [*examples.values()], "command": command}
        )

    async def question(self, request: Request) -> Response:
        """The next question."""
        words = request.query_params.get("later", "").split(",")
        later = [int(word) for word in words if is_number(word)]
        tab = request.query_params.get("tab", "")[:40]
        word = request.query_params.get("now", "")
        shown = int(word) if is_number(word) else None
        return await self._respond(lambda: {"question": self._session.next_question(tab, later, shown)})

    async def trusted(self, request: Request) -> Response:
        """Pseudo-labels of a class without an answer."""
        label = _whole(request.query_params.get("label"), len(self._session.inquiry.classes) - 1)
        count = _whole(request.query_params.get("count"), MOST_IMAGES)
        return await self._respond(lambda: {"grid": self._session.trusted_images(label, count)})

    async def issues(self, request: Request) -> Response:
        """Labels of people that the run doubts."""
        return await self._respond(lambda: {"issues": self._session.label_issues()})

    def picture(self, request: Request) -> Response:
        """An image by its number; no path of a request ever leads to a file."""
        part, number, size = (request.path_params[name] for name in ("part", "number", "size"))
        files = self._pictures.get(part, [])
        if size not in SIDES or not is_number(number) or int(number) >= len(files):
            raise HTTPException(404, "there is no such image")
        try:
            encode = partial(_encode, files[int(number)], SIDES[size])
            content = self._cache.get((part, number, size), lambda: call_within(PATIENCE, encode))
        except UnreadableImageError:
            raise HTTPException(404, "there is no such image") from None
        except TimeoutError:
            raise HTTPException(504, f"the disk does not answer within {PATIENCE:g} seconds") from None
        return Response(content, media_type="image/jpeg", headers={"cache-control": "private, max-age=600"})

    def rows(self, request: Request) -> Response:
        """All images of the run, in columns."""
        return _compress(self._gallery.rows())

    def answered(self, request: Request) -> Response:
        """The answers that count."""
        return _compress(self._gallery.answers())

    def likeness(self, request: Request) -> Response:
        """Likely classes of an image, and what it is like."""
        image = _whole(request.query_params.get("image"), len(self._session.inquiry.files) - 1)
        return _compress(self._gallery.likeness(image))

    def duplicates(self, request: Request) -> Response:
        """Pairs of near-duplicates."""
        return _compress(self._gallery.duplicates())

    def map(self, request: Request) -> Response:
        """Where each image lies on the map."""
        return _compress(self._gallery.map())

    async def answers(self, request: Request) -> Response:
        """Save answers."""
        body = await read_body(request)
        given = body.get("answers")
        if not isinstance(given, list) or not all(isinstance(one, dict) for one in given):
            raise HTTPException(400, "answers must be a list")

        def save() -> dict[str, Any]:
            act = self._session.answer(given, body.get("by", ""))
            self.has_answers = True
            return {"id": act}

        return await self._respond(save)

    async def undo(self, request: Request) -> Response:
        """Take answers back."""
        act = (await read_body(request)).get("id")
        return await self._respond(lambda: {"undone": self._session.log.undo(str(act))})

    async def more(self, request: Request) -> Response:
        """Ask more."""
        return await self._respond(lambda: {"added": self._session.ask_more()})

    async def _respond(self, work: Callable[[], dict[str, Any]]) -> Response:
        """The result of some work, and the state of the session after it."""

        def do() -> dict[str, Any]:
            return {**work(), "summary": self._session.summary(), "trusted": self._session.trusted_classes()}

        return await reply(do)


def _compress(reply: dict[str, Any]) -> Response:
    """A reply that may be long; every browser understands gzip."""
    content = gzip.compress(json.dumps(reply).encode("ascii"), 3)  # the name of a file need not be valid text
    return Response(
        content, media_type="application/json", headers={"cache-control": "no-store", "content-encoding": "gzip"}
    )


def _encode(path: Path, side: int) -> bytes:
    image = read_image(path)
    image.thumbnail((side, side), Image.Resampling.LANCZOS)
    jpeg = io.BytesIO()
    image.save(jpeg, "JPEG", quality=88)
    return jpeg.getvalue()


async def reply(work: Callable[[], dict[str, Any]]) -> Response:
    """What some work in a thread of its own returns, as JSON that no cache keeps."""
    body = json.dumps(await run_in_threadpool(work))  # in ASCII: the name of a file need not be valid text
    return Response(body, media_type="application/json", headers={"cache-control": "no-store"})


async def read_body(request: Request) -> dict[str, Any]:
    """A JSON table; HTTPException where it is none, or too large."""
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


def is_number(word: str) -> bool:
    """Whether a word of an address is a number of a sensible length."""
    return word.isascii() and word.isdigit() and len(word) < 10


def _whole(word: str | None, most: int) -> int:
    if word is None or not is_number(word) or int(word) > most:
        raise HTTPException(400, f"a number between 0 and {most} is needed")
    return int(word)


def _explain(request: Request, error: HTTPException) -> Response:
    return JSONResponse({"problem": str(error.detail)}, error.status_code)


def _say_nothing(request: Request, error: ClientDisconnect) -> Response:
    return Response(status_code=400)  # nobody is there to read it


def _explain_ours(request: Request, error: QurateError) -> Response:
    return JSONResponse({"problem": str(error)}, 500 if isinstance(error, RuntimeError) else 400)


HANDLERS: dict[Any, Callable[..., Any]] = {
    HTTPException: _explain,
    QurateError: _explain_ours,
    ClientDisconnect: _say_nothing,
}
"""What becomes of errors."""
