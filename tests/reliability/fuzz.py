"""Feed every reader with hostile inputs for some minutes, within bounds of time, memory and places.

    python -m tests.reliability.fuzz --minutes 30 --seed 0

A try is 'fine' (data), 'clear' (a `QurateError`) or 'bad': another exception, too slow, too much memory, a file written
or a network asked outside of its folder.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import signal
import sys
import tempfile
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any

import hypothesis
from hypothesis import HealthCheck, Phase, given, settings
from tests.reliability.fuzz_targets import Target, make_targets

from qurate.errors import QurateError

SECONDS = 20.0
"""Most CPU time for one try; ten times as long by the clock, for the machine may be busy."""
MEBIBYTES = 600
"""Most that a try may add to the memory of the process."""
_CHANGES = {"os.remove": 1, "os.rename": 2, "os.mkdir": 1, "os.rmdir": 1, "os.link": 2, "os.symlink": 2, "os.chmod": 1}
"""Events of Python that change files, and how many of their arguments are paths."""
_FORBIDDEN = ("socket.connect", "socket.getaddrinfo", "subprocess.Popen", "os.system", "os.exec", "os.posix_spawn")


class TooSlowError(BaseException):
    """Raised in a try that takes too long."""


class OutOfBoundsError(AssertionError):
    """A try that took too much, or went where it must not."""


class Watch:
    """Notes what a try writes, asks and starts. There is one, for Python keeps its hooks for ever."""

    def __init__(self) -> None:
        self.inside: tuple[str, ...] = ()
        self.reads: tuple[str, ...] | None = None
        self.strayed: list[str] = []
        self.on = False
        sys.addaudithook(self._hear)

    def _hear(self, event: str, arguments: tuple[Any, ...]) -> None:
        if not self.on:
            return
        if event == "open":
            path, mode, flags = arguments
            writes = bool(flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC)) if mode is None else mode != "r"
            self._judge(event, path, writes=writes and mode not in ("rb", "r"))
        elif event in _CHANGES:
            for path in arguments[: _CHANGES[event]]:
                self._judge(event, path, writes=True)
        elif event in _FORBIDDEN and "127.0.0.1" not in repr(arguments):
            self.strayed.append(f"{event} {arguments!r}")

    def _judge(self, event: str, path: Any, *, writes: bool) -> None:
        if isinstance(path, int) or path is None:
            return
        named = os.path.abspath(os.fsdecode(path))  # noqa: PTH100  # no object of pathlib in a hook
        allowed = self.inside if writes else self.reads
        if allowed is not None and not named.startswith((*allowed, "/dev/null")):
            self.strayed.append(f"{event} {'writes' if writes else 'reads'} {named}")


_watch: list[Watch] = []
_CODE = [place for place in (*sys.path, sys.prefix, sys.base_prefix, str(Path(__file__).parents[2])) if place]
_BESIDE = (*_CODE, *(os.path.realpath(place) for place in _CODE), "/usr/lib", "/proc", "/sys")
"""Where code is."""


@contextlib.contextmanager
def bounds(root: Path, inside: Path | None) -> Iterator[None]:
    """Limits for the block.

    Args:
        root: Folder that may be written in.
        inside: Folder that nothing outside of may be read, but for code; None: anything may.

    Raises:
        OutOfBoundsError: If one was passed.
    """
    if not _watch:
        _watch.append(Watch())
    watch = _watch[0]
    watch.inside, watch.strayed = (str(root), tempfile.gettempdir() + "/torchinductor"), []
    watch.reads = None if inside is None else (str(inside), str(root / "user-cache"), *_BESIDE)

    late: list[int] = []

    def stop(number: int, frame: FrameType | None) -> None:
        late.append(number)
        raise TooSlowError

    timers = {signal.SIGPROF: (signal.ITIMER_PROF, SECONDS), signal.SIGALRM: (signal.ITIMER_REAL, 10 * SECONDS)}
    before, handlers = _memory("VmRSS"), {each: signal.signal(each, stop) for each in timers}
    with contextlib.suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")  # so that the peak is of this try
    for timer, seconds in timers.values():
        signal.setitimer(timer, seconds, 1)  # again, for Python drops an exception in a callback
    watch.on = True
    try:
        yield
    except TooSlowError:
        pass
    finally:
        watch.on = False
        for each, (timer, _) in timers.items():
            signal.setitimer(timer, 0)
            signal.signal(each, handlers[each])
    if late:
        raise OutOfBoundsError(f"took more than {SECONDS:g} seconds")
    if (took := _memory("VmHWM") - before) > MEBIBYTES:
        raise OutOfBoundsError(f"took {took} MiB")
    if watch.strayed:
        raise OutOfBoundsError("; ".join(watch.strayed[:3]))


def _memory(name: str) -> int:
    """Memory of this process in MiB: 'VmRSS' now, 'VmHWM' at most; 0 where the system does not say."""
    try:
        lines = Path("/proc/self/status").read_text(encoding="utf-8").splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) // 1024 for line in lines if line.startswith(name)), 0)


@dataclass
class Counts:
    """Tries by target and outcome, and what was bad."""

    tries: Counter[tuple[str, str]] = field(default_factory=Counter)
    problems: list[str] = field(default_factory=list)

    def lines(self) -> list[str]:
        """The report."""
        kinds = ("fine", "clear", "bad")
        names = list(dict.fromkeys(name for name, _ in self.tries))
        rows = [f"{name:28s}" + "".join(f"{self.tries[name, kind]:9d}" for kind in kinds) for name in names]
        total = [sum(self.tries[name, kind] for name in names) for kind in kinds]
        head = f"{'':28s}" + "".join(f"{kind:>9s}" for kind in kinds)
        return [head, *rows, f"{f'{sum(total)} tries':28s}" + "".join(f"{count:9d}" for count in total), *self.problems]


def try_once(target: Target, content: Any, root: Path, counts: Counts) -> None:
    """Feed a reader, and count what comes of it; what is bad is raised."""
    kind = "bad"
    try:
        with warnings.catch_warnings(), bounds(root, target.inside):
            warnings.simplefilter("ignore")
            target.read(content)
        kind = "fine"
    except QurateError:
        kind = "clear"
    finally:
        counts.tries[target.name, kind] += 1


def fuzz(target: Target, root: Path, counts: Counts, *, examples: int, seed: int) -> None:
    """So many tries of a reader; after a bad one the smallest input that is bad is noted."""
    phases = (Phase.generate, Phase.target, Phase.shrink)

    @hypothesis.seed(seed)
    @settings(
        max_examples=examples, deadline=None, database=None, phases=phases, suppress_health_check=list(HealthCheck)
    )
    @given(target.inputs)
    def run(content: Any) -> None:
        try_once(target, content, root, counts)

    call: Callable[[], None] = run
    try:
        call()
    except BaseException as error:
        if isinstance(error, KeyboardInterrupt):
            raise
        notes = " ".join(getattr(error, "__notes__", []))
        said = f"{type(error).__name__}: {str(error)[:2000]}\n    {notes[:4000]}"
        counts.problems.append(f"BAD {target.name}, seed {seed}: {said}")
        print(counts.problems[-1], flush=True)


def main() -> None:
    """The long round."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--minutes", type=float, default=30)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", default="", help="targets whose name holds this")
    asked = parser.parse_args()
    counts, end, seed = Counts(), time.monotonic() + 60 * asked.minutes, asked.seed * 1_000_000
    with tempfile.TemporaryDirectory(prefix="qurate-fuzz-") as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        root = Path(folder).resolve()
        os.environ["QURATE_CACHE"] = str(root / "user-cache")
        with make_targets(root) as targets:
            chosen = [target for target in targets if asked.only in target.name]
            while time.monotonic() < end:
                for target in chosen:
                    if time.monotonic() < end:
                        fuzz(target, root, counts, examples=100, seed=seed)
                seed += 1
                if seed % 20 == 0:
                    print(counts.lines()[-1 - len(counts.problems)], flush=True)
    print("\n".join(counts.lines()))
    sys.exit(bool(counts.problems))


if __name__ == "__main__":
    main()
