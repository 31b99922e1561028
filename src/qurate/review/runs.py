"""The runs that are open on the server, each under its number, and the processes that it starts for new ones."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from importlib.resources import files
from pathlib import Path
from typing import Any

from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from qurate.active.answers import LABELS_FILE, AnswersFile, read_answers
from qurate.data.checks import check_data
from qurate.data.images import OnProgress
from qurate.errors import QurateError
from qurate.review.app import HANDLERS, ReviewPage, is_number, read_body, reply
from qurate.review.changes import describe_changes, run_before, runs_after
from qurate.review.guard import Guard
from qurate.runs.files import COMPARISON_FILE, PROGRESS_FILE, REPORT_FILE
from qurate.runs.folder import RunFolder
from qurate.runs.image_sources import PARTS as IMAGE_PARTS
from qurate.runs.image_sources import choose_places, start_folder_of
from qurate.runs.model_json import ABOUT_FILE, file_of
from qurate.runtime.commands import NextStep, free_name, learn_from
from qurate.runtime.paths import is_file
from qurate.runtime.progress import read_progress

_SCRIPTS = ("answer", "images", "page", "runs", "shared")
PARTS = {
    "": "text/html",
    "page.css": "text/css",
    "images.css": "text/css",
    **{f"{name}.js": "text/javascript" for name in _SCRIPTS},
}
"""Files of the page, and their media types."""
OWN = ("status", "report", "learn", "changes", "resume", *PARTS)
"""What is answered about a run before its model is loaded."""
CHECK_SECONDS = 20.0
"""Time in which images are looked at while a person types. Our choice."""
LONGEST_PATH = 4096
"""Letters of a path that a person types."""
MOST_SAID = 4000
"""Bytes of the end of what a process printed that are shown."""
_REPORT_HEADERS = {
    "content-security-policy": (
        "default-src 'none'; style-src 'unsafe-inline'; img-src data:; base-uri 'none'; form-action 'none'; "
        "frame-ancestors 'self'"
    ),
    "x-frame-options": "SAMEORIGIN",
    "cache-control": "no-cache",
}
"""The report is shown in a frame of the page; it runs no script."""

Load = Callable[[Path, OnProgress], ReviewPage]


class AdaptProcess:
    """`qurate adapt` in a process that goes on when the server ends; progress is in the folder of its run.

    Args:
        words: After `qurate adapt`.
    """

    def __init__(self, words: Sequence[str]) -> None:
        self.words = tuple(words)
        self._output = tempfile.TemporaryFile()  # noqa: SIM115  # as long as the run; a pipe would end with the server
        self._process = subprocess.Popen(
            [sys.executable, "-m", "qurate", "adapt", *words],
            stdin=subprocess.DEVNULL,
            stdout=self._output,
            stderr=subprocess.STDOUT,
            start_new_session=True,  # Ctrl-C is for the server
            env={**os.environ, "PYTHONUNBUFFERED": "1"},
        )

    @property
    def exit_code(self) -> int | None:
        """None while it works."""
        return self._process.poll()

    @property
    def said(self) -> list[str]:
        """The last lines of what it printed."""
        size = os.fstat(self._output.fileno()).st_size
        end = os.pread(self._output.fileno(), MOST_SAID, max(0, size - MOST_SAID))
        return end.decode("utf-8", errors="replace").splitlines()[-12:]


class OpenRun:
    """A run on the page.

    Args:
        folder: Its folder, which a process may still have to make.
        page: Its images and questions; None until the model is loaded.
        process: What works on it, if this server started that.
    """

    def __init__(self, folder: Path, page: ReviewPage | None = None, process: AdaptProcess | None = None) -> None:
        self.folder, self.page, self.process = folder, page, process
        self.loaded: tuple[int, int] | None = None
        self.problem = ""
        self._written = None if page is None else self._model_time()
        self._lock = threading.Lock()

    def status(self, load: Load | None = None) -> dict[str, Any]:
        """How far the run is: its state is 'working', 'finished', 'stopped' or 'absent'.

        Args:
            load: Begins to load what is finished; nothing is loaded without it.
        """
        progress = read_progress(self.folder / PROGRESS_FILE)
        if progress is not None and not progress["alive"]:  # of a process that was killed
            progress = None
        code = None if self.process is None else self.process.exit_code
        works = self.process is not None and code is None
        has_model = is_file(file_of(self.folder, ABOUT_FILE))
        is_pending = is_file(self.folder / COMPARISON_FILE)
        if works or (progress is not None and code is None):
            state = "working"
        elif has_model and not is_pending:
            state = "finished"
        else:
            state = "stopped" if self.folder.is_dir() or self.process is not None else "absent"
        if load is not None and has_model and state != "working":
            self._begin_loading(load)
        shown = {key: (progress or {}).get(key) for key in ("phase", "done", "total", "seconds_left", "lines")}
        if state != "working":
            shown |= {"phase": "", "lines": [] if self.process is None else self.process.said}
        return {
            **shown,
            "title": self.folder.absolute().name,
            "folder": str(self.folder),
            "state": state,
            "standing": "" if state in ("working", "finished") else self._standing(),
            "resumable": state == "stopped" and bool(self.continuing()),
            "usable": has_model,
            "has_report": is_file(file_of(self.folder, REPORT_FILE)),
            "ready": self.page is not None,
            "loaded": self.loaded,
            "problem": self.problem,
        }

    def _standing(self) -> str:
        if not self.folder.is_dir():
            return "Nothing was written." if self.process is not None else f"There is no run in {self.folder}."
        standing = RunFolder(self.folder).standing()
        if words := self.continuing():
            again = f"Continue it here, or in a terminal: {NextStep('', ('adapt', *words)).command}"
            return standing.replace("Re-run the command with `resume=True` to continue.", again)
        return standing.replace("`resume=True`", "--resume")

    def continuing(self) -> list[str]:
        """What continues the run, after `qurate adapt`; empty where its settings do not tell that."""
        if self.process is not None:
            words = [word for word in self.process.words if word != "--resume"]
            return [*words, "--resume"] if self.folder.is_dir() else words
        kept = RunFolder(self.folder)
        try:
            settings = kept.kept_settings()
            if settings is None:
                return []
            places = choose_places(settings, {})  # refused where the images are gone
            named, labels = settings.get("continued_from"), settings.get("labels")
            before = Path(named) if isinstance(named, str) and named else None
            if labels and (before is None or labels != _answers_about(before).fingerprint):
                return []  # whose file is not known
        except QurateError:
            return []
        out = [f"--out={self.folder}", "--resume"]
        if before is None:
            return [f"--config={kept.kept_config}", *out]
        source = ["--source", *map(str, places.sources)] if places.sources else []  # none where a model stands for it
        others = (f"--{name}={getattr(places, name)}" for name in ("labeled", "unlabeled", "missing"))
        return [f"--from={before}", *source, *others, *out]

    def _model_time(self) -> int | None:
        """When the model was written; the comparison of a run writes it again."""
        try:
            return file_of(self.folder, ABOUT_FILE).stat().st_mtime_ns
        except OSError:
            return None

    def _begin_loading(self, load: Load) -> None:
        with self._lock:
            if self.page is not None and self._written != self._model_time():
                self.page = self.loaded = None
            if self.page is None and self.loaded is None:
                self.loaded = (0, 0)
                threading.Thread(target=self._load, args=(load,), daemon=True).start()

    def _load(self, load: Load) -> None:
        def follow(done: int, total: int) -> None:
            self.loaded = (done, total)

        self._written = self._model_time()
        try:
            self.page = load(self.folder, follow)
        except Exception as error:  # whatever it is, the page must say it, for nobody else can
            said = str(error) if isinstance(error, QurateError) else f"{type(error).__name__}: {error}."
            self.problem = f"The model cannot be loaded. {said} Mend it and reload this page."

    def try_again(self) -> None:
        """Load once more what could not be loaded, at the next question about the status."""
        with self._lock:
            if self.problem:
                self.problem, self.loaded = "", None


class OpenRuns:
    """Answers all requests: about runs by their number, and of the form that starts one.

    Args:
        load: Makes the page of a finished run.
    """

    def __init__(self, load: Load) -> None:
        self._load = load
        self._runs: list[OpenRun] = []
        self._lock = threading.RLock()  # for the list, and so that two requests do not both start a run
        self._checked = 0
        at, one = "/{token}/", "/{token}/{run}/"
        routes = [
            Route(f"{at}check", self.check),
            Route(f"{at}begin", self.begin, methods=["POST"]),
            Route(f"{one}status", self.status),
            Route(f"{one}report", self.report),
            Route(f"{one}changes", self.changes),
            Route(f"{one}learn", self.learn, methods=["POST"]),
            Route(f"{one}resume", self.resume, methods=["POST"]),
            *(Route(place + name, self.part) for name in PARTS for place in (at, one)),
        ]
        self._app = Starlette(routes=routes, exception_handlers=HANDLERS)

    def add(self, folder: Path, page: ReviewPage | None = None, process: AdaptProcess | None = None) -> int:
        """Open a run, unless it is open; its number."""
        with self._lock:
            for number, run in enumerate(self._runs):
                if run.folder.absolute() == folder.absolute():
                    run.process = process or run.process
                    return number
            self._runs.append(OpenRun(folder, page, process))
            return len(self._runs) - 1

    def _start(self, choose: Callable[[], tuple[Path, Sequence[str]]]) -> dict[str, Any]:
        """Start a process unless one works; its run.

        Args:
            choose: Gives the folder of the run and the words after `qurate adapt`; called while nothing else can start.
        """
        with self._lock:
            if self.working:
                raise HTTPException(409, "a run is at work already; wait until it is finished")
            folder, words = choose()
            return {"run": self.add(folder, None, AdaptProcess(words))}

    @property
    def opened(self) -> list[OpenRun]:
        """All runs, by their numbers."""
        return list(self._runs)

    @property
    def working(self) -> list[Path]:
        """Folders of runs that this server started and that go on."""
        return [run.folder for run in self._runs if run.process is not None and run.process.exit_code is None]

    def guarded(self, token: str, port: int) -> ASGIApp:
        """The application, behind its guard."""
        return Guard(self, token, port)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """An ASGI application: what is about the images of a run goes to the page of the run."""
        _, token, number, *rest = (*scope["path"].split("/", 3), "", "")[:4]
        if not is_number(number) or rest[0] in OWN:
            await self._app(scope, receive, send)
            return
        app: ASGIApp = JSONResponse({"problem": "there is no such run"}, 404)
        if int(number) < len(self._runs):
            page = self._runs[int(number)].page
            app = JSONResponse({"problem": "The model of this run is not loaded yet."}, 503)
            if page is not None:
                app, path = page.app, f"/{token}/{rest[0]}"
                scope = {**scope, "path": path, "raw_path": path.encode("utf-8", "surrogatepass")}
        await app(scope, receive, send)

    async def part(self, request: Request) -> Response:
        """A file of the page."""
        run, name = self._run(request), request.url.path.rsplit("/", 1)[1]
        if run is not None and not name:  # the page is loaded, perhaps again
            run.try_again()
        content = files("qurate.review").joinpath("page", name or "index.html").read_bytes()
        return Response(content, media_type=PARTS[name], headers={"cache-control": "no-cache"})

    async def status(self, request: Request) -> Response:
        """How far a run is, and which runs learned from the answers about it, the newest last.

        Its model is loaded unless the page of another run asks, with `load=0`.
        """
        run = self._run(request)
        assert run is not None
        load = None if request.query_params.get("load") == "0" else self._load

        def look() -> dict[str, Any]:
            numbers = list(dict.fromkeys(self.add(one) for one in (*runs_after(run.folder), *self._learning(run))))
            return {**run.status(load), "next": numbers}

        return await reply(look)

    def _learning(self, run: OpenRun) -> list[Path]:
        """Runs that were started here to learn from answers about a run; their settings may not be written yet."""
        words = f"--from={run.folder}"
        return [one.folder for one in self._runs if one.process is not None and words in one.process.words]

    async def report(self, request: Request) -> Response:
        """The report of a run, for a frame of the page."""
        run = self._run(request)
        assert run is not None
        try:
            content = await run_in_threadpool(file_of(run.folder, REPORT_FILE).read_bytes)
        except OSError:
            raise HTTPException(404, "there is no report yet") from None
        return Response(content, media_type="text/html", headers=_REPORT_HEADERS)

    async def changes(self, request: Request) -> Response:
        """A run beside the run before it."""
        run = self._run(request)
        assert run is not None

        def look() -> dict[str, Any]:
            before = run_before(run.folder)
            if before is None:
                return {"changes": None, "why": ""}
            try:
                return {"changes": describe_changes(before, run.folder), "why": ""}
            except (QurateError, OSError) as error:
                why = f"This run learned from answers about {before}, but the two cannot be shown side by side: {error}"
                return {"changes": None, "why": why}

        return await reply(look)

    async def learn(self, request: Request) -> Response:
        """Start a run that learns from the answers about a run."""
        run = self._run(request)
        assert run is not None
        await read_body(request)

        def choose() -> tuple[Path, Sequence[str]]:
            out = Path(learn_from(run.folder).words[-1])
            return out, [f"--from={run.folder}", f"--out={out}"]

        return await reply(partial(self._start, choose))

    async def resume(self, request: Request) -> Response:
        """Continue a run that has stopped."""
        run = self._run(request)
        assert run is not None
        await read_body(request)

        def choose() -> tuple[Path, Sequence[str]]:
            if not run.status()["resumable"]:
                raise HTTPException(409, "the run has not stopped, or its settings do not say how to continue it")
            return run.folder, run.continuing()

        return await reply(partial(self._start, choose))

    async def check(self, request: Request) -> Response:
        """What is wrong with the folders of the form, as `qurate check` says it; a later question ends an earlier."""
        places = {name: _folder(request.query_params.get(name, "")) for name in (*IMAGE_PARTS, "out")}
        self._checked += 1
        number = self._checked
        return await reply(partial(self._check, places, number))

    def _check(self, places: Mapping[str, Path | None], number: int) -> dict[str, Any]:
        time_is_up = threading.Event()
        timer = threading.Timer(CHECK_SECONDS, time_is_up.set)
        timer.daemon = True

        def go_on(done: int, total: int) -> None:
            if time_is_up.is_set() or number != self._checked:
                raise _TooLongError(done, total)

        given = {name: place for name, place in places.items() if name != "out"}
        lines, is_fine = [], False
        if missing := [name for name, place in given.items() if place is None]:
            lines.append(f"Still to be filled in: {', '.join(missing)}.")
        else:
            timer.start()
            try:
                report = check_data(**{name: str(place) for name, place in given.items()}, on_progress=go_on)
                lines, is_fine = report.lines(), report.ok
            except _TooLongError as error:
                lines = [
                    f"{error.args[0]} of {error.args[1]} images were looked at, and nothing is known of the others; "
                    "`qurate check` looks at all of them."
                ]
                is_fine = True
            finally:
                timer.cancel()
        if problem := _why_not_there(places["out"]):
            lines, is_fine = [*lines, problem], False
        return {"lines": lines, "ok": is_fine, "suggested": free_name("run")}

    async def begin(self, request: Request) -> Response:
        """Start a run on three folders."""
        given = await read_body(request)
        places = {name: _folder(given.get(name)) for name in (*IMAGE_PARTS, "out")}

        def choose() -> tuple[Path, Sequence[str]]:
            if missing := [name for name, place in places.items() if place is None]:
                raise HTTPException(400, f"{', '.join(missing)}: a folder is needed")
            if problem := _why_not_there(places["out"]):
                raise HTTPException(400, problem)
            out = places["out"]
            assert out is not None
            return out, [f"--{name}={place}" for name, place in places.items()]

        return await reply(partial(self._start, choose))

    def _run(self, request: Request) -> OpenRun | None:
        """The run of an address; None for one without a number."""
        number = request.path_params.get("run")
        if number is None:
            return None
        if not is_number(number) or int(number) >= len(self._runs):
            raise HTTPException(404, "there is no such run")
        return self._runs[int(number)]


class _TooLongError(QurateError, RuntimeError):
    """Looking at images was ended."""


def _answers_about(run: Path) -> AnswersFile:
    """The answers about a run, as one that learns from them reads them."""
    return read_answers(run / LABELS_FILE).start_from(start_folder_of(run))


def _folder(text: object) -> Path | None:
    """What a person typed as a place; None where it is empty or can be none."""
    if not isinstance(text, str) or not text.strip() or len(text) > LONGEST_PATH or "\0" in text:
        return None
    try:
        return Path(text.strip()).expanduser()
    except RuntimeError:  # no such user
        return None


def _why_not_there(out: Path | None) -> str:
    """Why no run can begin in a folder; empty where one can."""
    if out is None:
        return "Still to be filled in: the folder for the run."
    try:
        if os.path.lexists(out) and not (out.is_dir() and not any(out.iterdir())):
            return f"{out}: there is something already. Choose another folder for the run; nothing is overwritten."
    except OSError as error:
        return f"{out}: cannot be read ({error.strerror}). Choose another folder for the run."
    return ""
