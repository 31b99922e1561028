"""A run as a person follows it: bars in a terminal or a notebook, lines elsewhere, rates, tables."""

from __future__ import annotations

import importlib
import json
import os
import time
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol, Self

from rich.console import Console
from rich.progress import BarColumn, Progress, ProgressColumn, Task, TextColumn
from rich.table import Table
from rich.text import Text

from qurate.runtime.files import write_atomically


class RateColumn(ProgressColumn):
    """Steps per second."""

    def render(self, task: Task) -> Text:
        """The rate, once there is one."""
        rate = task.finished_speed or task.speed
        return Text("" if rate is None else f"{say_rate(rate)}/s", style="dim")


class LeftColumn(ProgressColumn):
    """Time left of the phase and of what comes after it: the field `left`."""

    def render(self, task: Task) -> Text:
        """As hours, minutes and seconds, once something is known."""
        if (left := task.fields.get("left")) is None:
            return Text("-:--:--", style="progress.remaining")
        seconds = round(left)
        return Text(f"{seconds // 3600}:{seconds // 60 % 60:02}:{seconds % 60:02} left", style="progress.remaining")


def say_rate(rate: float) -> str:
    """Whole numbers from ten on, else one digit after the point."""
    return f"{rate:.0f}" if rate >= 10 else f"{rate:.1f}"


def seconds_left(done: int, total: int, first: int, seconds: float, later: float = 0.0) -> float | None:
    """Expected seconds of the rest of a phase and of what comes after it; None where nothing is known.

    Args:
        done: How far the phase is.
        total: Where it ends.
        first: How far it was when it began; more than 0 where it was resumed.
        seconds: Since then. Nothing is known of its speed before a second is over.
        later: Expected seconds of what comes after it; of this phase too as long as nothing of it is done.
    """
    if done > first and seconds >= 1:
        return seconds * (total - done) / (done - first) + later
    return later if not done and later else None


def say_pace(rate: float, left: float) -> str:
    """How many steps per second something makes, and how many seconds are left.

    Example:
        >>> say_pace(64.0, 100.0)
        '64 per second, 2 min left'
    """
    time = f"{left:.0f} s" if left < 90 else f"{left / 60:.0f} min" if left < 5400 else f"{left / 3600:.1f} h"
    return f"{say_rate(rate)} per second, {time} left"


def say_time(seconds: float) -> str:
    """'about 40 seconds', 'about 7 minutes', 'about 3 hours'."""
    if seconds < 90:
        return f"about {max(10, 10 * round(seconds / 10))} seconds"
    if seconds < 5400:
        return f"about {round(seconds / 60)} minutes"
    return f"about {round(seconds / 3600)} hours"


def make_table(title: str, columns: Sequence[str], rows: Sequence[Sequence[str]]) -> Table:
    """A plain table, the first column left, the others right."""
    table = Table(title=title, title_justify="left", title_style="bold")
    for i, column in enumerate(columns):
        table.add_column(column, justify="left" if i == 0 else "right")
    for row in rows:
        table.add_row(*row)
    return table


_NOTEBOOK_SECONDS = 0.3
"""Least time between two pictures of a bar in a notebook, each of which is a message to the browser."""

_LOG_SECONDS = 60.0
"""Time between two lines on the same phase where there is neither a terminal nor a notebook."""


class Reporter(Protocol):
    """Receives messages and progress of a run."""

    def say(self, line: str) -> None:
        """A sentence."""
        ...

    def show(self, phase: str, done: int, total: int, *, later: float = 0.0) -> None:
        """How far a phase is, and the expected seconds of what comes after it."""
        ...


class PhaseBars:
    """Prints messages of a run and draws a bar for its phase.

    Args:
        console: Where to write.
    """

    def __init__(self, console: Console) -> None:
        self._console = console
        columns = (
            TextColumn("{task.description}", markup=False),
            BarColumn(bar_width=24),
            TextColumn("{task.completed:>5.0f}/{task.total:.0f}"),
            RateColumn(),
            LeftColumn(),
        )
        self._progress = Progress(*columns, console=console, transient=True, disable=not console.is_terminal)
        # One task for all phases: Ctrl-C may come in the middle of adding or removing one.
        self._task = self._progress.add_task("", start=False, total=1, visible=False)
        self._notebook = NotebookLine() if console.is_jupyter else None
        self._phase = ""
        self._began = 0.0
        self._logged = 0.0
        self._found = 0

    def __enter__(self) -> Self:
        self._progress.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._end(completed=error is None)
        self._progress.stop()

    def say(self, line: str) -> None:
        """A sentence, on a line of its own."""
        self._end(completed=True)
        self._print(line)

    def show(self, phase: str, done: int, total: int, *, later: float = 0.0) -> None:
        """How far a phase is; a new phase ends the one before. The time left counts what comes `later` too."""
        if phase != self._phase:
            self._end(completed=True)
            self._phase, self._began = phase, time.perf_counter()
            self._logged, self._found = self._began, done
            self._progress.reset(self._task, description=phase, total=total, visible=True)
        now = time.perf_counter()
        left = seconds_left(done, total, self._found, now - self._began, later)
        self._progress.update(self._task, completed=done, total=total, left=left)
        pace = ""
        if left is not None and done > self._found:
            pace = say_pace((done - self._found) / (now - self._began), left)
        if self._notebook is not None:
            full = 24 * done // max(1, total)
            self._notebook.draw(f"{phase} {'█' * full:░<24} {done}/{total}{pace and f', {pace}'}")
        elif not self._console.is_terminal and pace and done < total and now - self._logged >= _LOG_SECONDS:
            self._logged = now
            self._print(f"{phase}: {done} of {total}, {pace}")

    def _end(self, *, completed: bool) -> None:
        phase, self._phase = self._phase, ""  # first: Ctrl-C may come in between
        if not phase:
            return
        self._progress.update(self._task, visible=False)
        line = f"{phase}: {time.perf_counter() - self._began:.0f} s"
        if self._notebook is not None:
            self._notebook.end(line if completed else f"{line}, stopped")
        elif completed:
            self._print(line)

    def _print(self, line: str) -> None:
        self._console.print(line, markup=False, highlight=False, soft_wrap=True)


class NotebookLine:
    """A line of a notebook's output that can be written again; needs IPython, which a notebook has, and no widgets."""

    def __init__(self) -> None:
        self._handle: Any = None
        self._drawn = 0.0

    def draw(self, text: str) -> None:
        """Write the line, unless it was written just now."""
        now = time.perf_counter()
        if now - self._drawn >= _NOTEBOOK_SECONDS:
            self._write(text)
            self._drawn = now

    def end(self, text: str) -> None:
        """Write the line for the last time; the next one is another."""
        self._write(text)
        self._handle, self._drawn = None, 0.0

    def _write(self, text: str) -> None:
        if self._handle is None:
            ipython: Any = importlib.import_module("IPython.display")
            self._handle = ipython.display({"text/plain": text}, raw=True, display_id=True)
        else:
            self._handle.update({"text/plain": text}, raw=True)


class Silence:
    """Says and shows nothing."""

    def say(self, line: str) -> None:
        """Nothing."""

    def show(self, phase: str, done: int, total: int, *, later: float = 0.0) -> None:
        """Nothing."""


@contextmanager
def follow(progress: bool) -> Iterator[Reporter]:
    """What shows a run to a person for the length of the block, or silence."""
    if not progress:
        yield Silence()
        return
    with PhaseBars(Console()) as bars:
        yield bars


_FILE_SECONDS = 0.5
"""Least time between two writings of a progress file."""
_FILE_LINES = 40
"""Messages that a progress file keeps."""


class ProgressFile:
    """Passes on what a run reports, and keeps it in a file as long as the run goes on: `qurate open` shows it.

    Args:
        reporter: Told everything.
        path: The file; the folder is made. Both are gone when the run ends, unless something else is in the folder. A
            kill leaves them, and then the process of the file is gone.
    """

    def __init__(self, reporter: Reporter, path: Path) -> None:
        self._reporter, self._path = reporter, path
        self._lines: deque[str] = deque(maxlen=_FILE_LINES)
        self._phase, self._done, self._total, self._found = "", 0, 0, 0
        self._began, self._written, self._later = 0.0, 0.0, 0.0
        self._is_new = not path.parent.exists()

    def __enter__(self) -> Self:
        self._write()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with suppress(OSError):
            self._path.unlink(missing_ok=True)
            if self._is_new:
                self._path.parent.rmdir()  # only where it is empty

    def say(self, line: str) -> None:
        """A sentence."""
        self._end()
        self._lines.append(line)
        self._reporter.say(line)
        self._write()

    def show(self, phase: str, done: int, total: int, *, later: float = 0.0) -> None:
        """How far a phase is, and the expected seconds of what comes after it."""
        if phase != self._phase:
            self._end()
            self._phase, self._began, self._found, self._written = phase, time.monotonic(), done, 0.0
        self._done, self._total, self._later = done, total, later
        self._reporter.show(phase, done, total, later=later)
        if time.monotonic() - self._written >= _FILE_SECONDS:
            self._write()

    def _end(self) -> None:
        """Keep how long a phase took."""
        if self._phase:
            self._lines.append(f"{self._phase}: {time.monotonic() - self._began:.0f} s")
        self._phase = ""

    def _write(self) -> None:
        self._written = time.monotonic()
        took = self._written - self._began
        left = seconds_left(self._done, self._total, self._found, took, self._later) if self._phase else None
        content = {
            "process": os.getpid(),
            "process_began": process_start(os.getpid()),
            "phase": self._phase,
            "done": self._done,
            "total": self._total,
            "seconds_left": left,
            "lines": list(self._lines),
        }
        with suppress(OSError):  # the run is worth more than the news of it
            write_atomically(self._path, json.dumps(content))


def read_progress(path: Path) -> dict[str, Any] | None:
    """What a progress file says, and as `alive` whether its process goes on; None where there is no sound file."""
    try:
        found = json.loads(path.read_bytes())
        process, lines = found["process"], found["lines"]
        numbers = [process, found["done"], found["total"], found["seconds_left"] or 0]
        is_sound = all(type(x) in (int, float) for x in numbers) and process > 0 and isinstance(found["phase"], str)
        is_sound = is_sound and isinstance(lines, list) and all(isinstance(line, str) for line in lines)
    except (OSError, ValueError, RecursionError, KeyError, TypeError):
        return None
    return {**found, "alive": _is_alive(int(process), found.get("process_began"))} if is_sound else None


def process_start(process: int) -> str:
    """When a process began, in ticks of the system, which tells it from a later one of the same number; else empty."""
    with suppress(OSError, IndexError):
        return Path(f"/proc/{process}/stat").read_text(errors="replace").rpartition(")")[2].split()[19]
    return ""


def _is_alive(process: int, began: object) -> bool:
    try:
        os.kill(process, 0)
    except PermissionError:
        pass
    except (OSError, OverflowError):
        return False
    return process_start(process) == began
