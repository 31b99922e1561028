"""Disturb qurate at random moments and see whether anything is lost.

    python tests/reliability/faults.py --minutes 30 --seed 0

Commands are killed (SIGKILL), asked to end (SIGTERM) and interrupted (SIGINT, as by Ctrl-C) at random moments, resumed,
disturbed again, and resumed until they are done. Results must be those of an undisturbed command to the last bit.
"""

from __future__ import annotations

import argparse
import itertools
import random
import signal
import sys
import tempfile
import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from tests.reliability.processes import Qurate
from tests.reliability.victims import (
    Adapt,
    Benchmark,
    ClockBack,
    Embed,
    Report,
    SlowDisk,
    Victim,
    WholeNetwork,
    differences,
)
from tests.reliability.world import make_world

SIGNALS = {signal.SIGKILL: -9, signal.SIGTERM: 143, signal.SIGINT: 130}
"""Signals and the exit codes that answer them."""
MIX = (
    *(Adapt(), Adapt(cold=True), SlowDisk(), Embed(), WholeNetwork(), ClockBack()),
    *(Adapt(), WholeNetwork(devices=2), Benchmark(), Adapt(cold=True), Report()),
)
"""What is disturbed, in turn; every `RAY_EVERY`-th benchmark is on Ray."""
RAY_EVERY = 8


@dataclass
class Counts:
    """What was tried and what came of it."""

    kills: Counter[tuple[str, str]] = field(default_factory=Counter)
    survived: int = 0
    compared: int = 0
    identical: int = 0
    problems: list[str] = field(default_factory=list)

    def lines(self) -> list[str]:
        """The report."""
        total = sum(self.kills.values())
        by = [f"  {count:5d}  {name} of {victim}" for (victim, name), count in sorted(self.kills.items())]
        return [
            f"{total} kills tried, {self.survived} survived.",
            *by,
            f"{self.compared} results compared, {self.identical} identical.",
            f"{len(self.problems)} problems.",
            *(f"  {problem}" for problem in self.problems),
        ]


class Workshop:
    """A world, the undisturbed results in it, and the counts.

    Args:
        root: Folder for everything.
        seed: Decides what is disturbed, when and how.
    """

    def __init__(self, root: Path, seed: int) -> None:
        self.root, self.world, self.seed = root, root / "world", seed
        self.counts = Counts()
        self._references: dict[str, tuple[dict[str, object], int]] = {}
        self._lock = threading.Lock()
        self.cache = {"QURATE_CACHE": str(root / "cache")}
        if not self.world.is_dir():
            self.world.mkdir(parents=True)
            make_world(self.world)

    def start(self, victim: Victim, out: Path, *, fresh: bool = False) -> Qurate:
        """The command of a victim; what it says goes to the disk of the workshop, which is never full."""
        said = self.root / f"{out.name}-{time.monotonic_ns()}.txt"
        environment = {**self.cache, **victim.environment(out)}
        return Qurate(victim.words(str(out)), self.world, said, environment, fresh=fresh or victim.fresh)

    def reference(self, victim: Victim) -> tuple[dict[str, object], int]:
        """The result of an undisturbed command, and how many lines it says."""
        with self._lock:
            if victim.name not in self._references:
                out = self.root / f"reference {victim.name}".replace(" ", "-")
                command = self.start(victim, out)
                if command.wait() != 0:
                    raise RuntimeError(f"undisturbed, {victim.name} fails: {command.lines()[-3:]}")
                self._references[victim.name] = victim.result(out), len(command.lines())
            return self._references[victim.name]

    def trial(self, victim: Victim, number: int) -> None:
        """Disturb a command up to three times, let it end, and compare its result."""
        rng = random.Random(f"{self.seed} {number}")
        wanted, lines = self.reference(victim)
        out = self.root / f"trial-{number}"
        signals = rng.choices(list(SIGNALS), k=rng.choice((1, 1, 2, 3)))
        for which in signals:
            moment = rng.randint(1, lines), rng.choice((0.0, rng.uniform(0, 0.1), rng.uniform(0, 1.0)))
            if self.disturb(victim, out, which, *moment, where=f"trial {number}", fresh=rng.random() < 0.2):
                break
        self.complete(victim, out, wanted, f"trial {number} ({victim.name}, {[s.name for s in signals]})")

    def disturb(
        self, victim: Victim, out: Path, which: signal.Signals, line: int, delay: float, *, where: str, fresh: bool
    ) -> bool:
        """Send a signal some seconds after a line was said; whether the command was done before it came."""
        command = self.start(victim, out, fresh=fresh)
        if not command.wait_for_lines(line):
            return self._ended_by_itself(command, where)
        time.sleep(delay)
        command.disturb(which)
        code = command.wait()
        if code == 0:
            return True
        said, clean = command.lines(), command.wait_for_workers()
        problem = _judge(which, code, said) or ("" if clean else "its workers live on")
        with self._lock:
            self.counts.kills[victim.name, which.name] += 1
            self.counts.survived += not problem
        if problem:
            self.complain(f"{where}: {victim.name}, {which.name} after line {line} and {delay:.3f} s: {problem}")
        return False

    def _ended_by_itself(self, command: Qurate, where: str) -> bool:
        code = command.wait()
        if code != 0:
            self.complain(f"{where}: exit code {code} undisturbed: {command.lines()[-3:]}")
        return code == 0

    def complete(self, victim: Victim, out: Path, wanted: dict[str, object], where: str) -> None:
        """Resume until it is done, and compare."""
        command = self.start(victim, out)
        code = command.wait()
        if code != 0 or "Traceback" in "\n".join(command.lines()):
            self.complain(f"{where}: cannot be resumed, exit code {code}: {command.lines()[-3:]}")
            return
        self.compare(victim.result(out), wanted, where)

    def compare(self, found: dict[str, object], wanted: dict[str, object], where: str) -> None:
        """Count a result, and whether it is the undisturbed one."""
        other = differences(found, wanted)
        with self._lock:
            self.counts.compared += 1
            self.counts.identical += not other
        if other:
            self.complain(f"{where}: another result than undisturbed in {', '.join(other[:5])}")

    def complain(self, problem: str) -> None:
        """Count something that must not be, and say it."""
        print(f"PROBLEM {problem}", flush=True)
        with self._lock:
            self.counts.problems.append(problem)


def _judge(which: signal.Signals, code: int, said: list[str]) -> str:
    """What is wrong with the end of a disturbed command; empty if nothing is."""
    wanted = SIGNALS[which]
    text = "\n".join(said)
    if code != wanted:
        return f"exit code {code}, not {wanted}; it said {said[-3:]}"
    if which == signal.SIGKILL:
        return ""
    if "Traceback" in text or "Exception ignored" in text:
        return f"a traceback: {said[-6:]}"
    if not said or not said[-1].startswith("qurate: stopped."):
        return f"its last line is not 'qurate: stopped. ...': {said[-3:]}"
    return "" if "re-run" in said[-1].lower() else f"it does not say how to go on: {said[-1]}"


def run_trials(shop: Workshop, minutes: float, workers: int = 2) -> None:
    """Trials until the time is over, several at once."""
    end, numbers = time.monotonic() + 60 * minutes, itertools.count()
    lock = threading.Lock()

    def work() -> None:
        while time.monotonic() < end:
            with lock:
                number = next(numbers)
            turn, victim = divmod(number, len(MIX))
            chosen = MIX[victim]
            if isinstance(chosen, Benchmark) and turn % RAY_EVERY == RAY_EVERY - 1:
                chosen = Benchmark(ray=True)
            try:
                shop.trial(chosen, number)
            except Exception as error:  # a trial that fails is a problem, and the next one begins
                shop.complain(f"trial {number} ({chosen.name}): {type(error).__name__}: {error}")
            if number % 10 == 9:
                print(
                    f"{number + 1} trials: {shop.counts.lines()[0]} {len(shop.counts.problems)} problems.", flush=True
                )

    with ThreadPoolExecutor(workers) as pool:
        for future in [pool.submit(work) for _ in range(workers)]:
            future.result()


def main() -> None:
    """The long round."""
    from tests.reliability.situations import SITUATIONS

    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--minutes", type=float, default=30)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    signal.signal(signal.SIGINT, signal.default_int_handler)  # nohup and `&` make commands ignore it
    with tempfile.TemporaryDirectory(prefix="qurate-faults-") as root:
        shop = Workshop(Path(root), given.seed)
        for situation in SITUATIONS:
            print(f"{situation.__name__}: {situation(shop) or 'done'}", flush=True)
        run_trials(shop, given.minutes)
        print("\n".join(shop.counts.lines()))
    sys.exit(bool(shop.counts.problems))


if __name__ == "__main__":
    main()
