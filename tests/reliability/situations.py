"""Bad situations: two commands at once, disks that fill, a home that cannot be written, a server that is killed."""

from __future__ import annotations

import http.client
import json
import os
import random
import shutil
import signal
import subprocess
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.reliability.faults import Workshop
from tests.reliability.processes import Qurate
from tests.reliability.victims import Adapt, Benchmark, Victim


class CannotMountError(Exception):
    """Only root may mount a small disk."""


def two_adapt_with_one_cache(shop: Workshop) -> str:
    """Both embed the same images at once, into a cache that is empty."""
    victim = Adapt()
    wanted, _ = shop.reference(victim)
    cache = {"QURATE_CACHE": str(shop.root / "one-cache")}
    outs = [shop.root / f"one-cache-{i}" for i in range(2)]
    commands = [Qurate(victim.words(str(out)), shop.world, out.with_suffix(".txt"), cache, fresh=False) for out in outs]
    for out, command in zip(outs, commands, strict=True):
        if _ended_well(shop, command, "two adapt with one cache"):
            shop.compare(victim.result(out), wanted, f"two adapt with one cache, {out.name}")
    return ""


def two_adapt_with_one_out(shop: Workshop) -> str:
    """One of them does the work; the other says so, or ends with the same result."""
    return _two_at_once(shop, Adapt())


def two_benchmarks_with_one_out(shop: Workshop) -> str:
    """Likewise."""
    return _two_at_once(shop, Benchmark())


def _two_at_once(shop: Workshop, victim: Victim) -> str:
    wanted, _ = shop.reference(victim)
    out = shop.root / f"two-{victim.name}"
    commands = [shop.start(victim, out) for _ in range(2)]
    codes = [command.wait() for command in commands]
    where = f"two {victim.name} with one --out"
    for code, command in zip(codes, commands, strict=True):
        last = command.lines()[-1:]
        told = code == 2 and "".join(last).startswith("qurate: ")
        if "Traceback" in "\n".join(command.lines()) or not (code == 0 or told):
            shop.complain(f"{where}: exit code {code}, {last}")
    if 0 not in codes:
        shop.complain(f"{where}: none of them is done: {[command.lines()[-1:] for command in commands]}")
    else:
        shop.compare(victim.result(out), wanted, where)
    return ""


def full_disk(shop: Workshop) -> str:
    """The disk of the run fills up while it trains; after there is room again, it is resumed."""
    victim = Adapt()
    wanted, lines = shop.reference(victim)
    try:
        with small_disk(shop.root / "full", mebibytes=230) as disk:
            command = shop.start(victim, disk / "run")
            command.wait_for_lines(max(1, lines // 3))  # at half of them a short run is nearly at its end
            command.disturb(signal.SIGSTOP)
            ballast = _fill(disk)
            command.disturb(signal.SIGCONT)
            code, said = command.wait(), command.lines()
            if code != 2 or "Traceback" in "\n".join(said) or "disk is full" not in said[-1]:
                shop.complain(f"full disk: exit code {code}, {said[-3:]}")
            ballast.unlink()
            shop.complete(victim, disk / "run", wanted, "full disk, then room")
    except CannotMountError as error:
        return f"skipped: {error}"
    return ""


def disk_that_fills_and_empties(shop: Workshop) -> str:
    """Room comes and goes while it runs: it ends well or says so in a line, and at last has the same result."""
    victim, rng = Adapt(), random.Random(f"{shop.seed} disk")
    wanted, _ = shop.reference(victim)
    stops = 0
    try:
        with small_disk(shop.root / "comes-and-goes", mebibytes=230) as disk:
            done = threading.Event()

            def fill_and_empty() -> None:
                while not done.wait(rng.uniform(0.2, 2)):
                    ballast = _fill(disk)
                    done.wait(rng.uniform(0.05, 1))
                    ballast.unlink()

            thread = threading.Thread(target=fill_and_empty)
            thread.start()
            try:
                for _ in range(6):
                    command = shop.start(victim, disk / "run")
                    code, said = command.wait(), command.lines()
                    if code == 0:
                        break
                    stops += 1
                    if code != 2 or "Traceback" in "\n".join(said) or not said[-1].startswith("qurate: "):
                        shop.complain(f"disk that fills and empties: exit code {code}, {said[-3:]}")
            finally:
                done.set()
                thread.join()
            shop.complete(victim, disk / "run", wanted, "disk that fills and empties")
    except CannotMountError as error:
        return f"skipped: {error}"
    return f"done, stopped {stops} times"


def files_of_tomorrow(shop: Workshop) -> str:
    """The clock went back by a day between a kill and the resumption, so all that is there is of tomorrow."""
    victim = Adapt(cold=True)
    wanted, lines = shop.reference(victim)
    out = shop.root / "tomorrow"
    shop.disturb(victim, out, signal.SIGKILL, max(1, lines // 2), 0.0, where="files of tomorrow", fresh=False)
    tomorrow = time.time() + 24 * 3600
    for path in (*out.rglob("*"), *out.with_name(f"{out.name}-cache").rglob("*")):
        os.utime(path, (tomorrow, tomorrow))
    shop.complete(victim, out, wanted, "files of tomorrow")
    return ""


def killed_page(shop: Workshop) -> str:
    """Four tabs answer while the server is killed, three times: what was acknowledged is in labels.csv."""
    from tests.review.served import Served
    from tests.runs.written import write_run

    from qurate.active.answers import AnswerLog

    root = shop.root / "page"
    root.mkdir()
    run = write_run(root)
    rng = random.Random(f"{shop.seed} review")
    acknowledged: list[tuple[str, int]] = []
    for _ in range(3):
        server = Served(run)

        def answer_until_it_ends(served: Served, seed: float) -> None:
            draw = random.Random(seed)
            try:
                while True:
                    given = [{"image": draw.randrange(18), "answer": "none"} for _ in range(draw.randint(1, 3))]
                    status, body, _ = served.request("POST", "answers", {"answers": given})
                    if status == 200:
                        acknowledged.append((json.loads(body)["id"], len(given)))
            except (OSError, ValueError, http.client.HTTPException):
                return

        tabs = [threading.Thread(target=answer_until_it_ends, args=(server, rng.random())) for _ in range(4)]
        for tab in tabs:
            tab.start()
        time.sleep(rng.uniform(0.3, 2))
        server.kill()
        for tab in tabs:
            tab.join()
        shop.counts.kills["open", "SIGKILL"] += 1
        there = Counter(row.id for row in AnswerLog(run / "labels.csv").rows())
        lost = [act for act, count in acknowledged if there[act] != count]
        shop.counts.survived += not lost
        if lost:
            shop.complain(f"killed page: {len(lost)} of {len(acknowledged)} acknowledged answers are lost")
    return f"done, {len(acknowledged)} acknowledged requests"


def full_disk_of_tables(shop: Workshop) -> str:
    """No room for a table, a report or the results of a benchmark: one line, and no half of a file."""
    lines = {
        "predict": "predict run unlabeled --out {}/p.csv",
        "evaluate": "evaluate run --labeled labeled --confusion {}/c.csv",
        "report": "report grid --out {}/report",
        "benchmark": f"{' '.join(Benchmark().words('{}/grid'))}",
        "export": "export run --out {}/m.onnx",
    }
    try:
        with small_disk(shop.root / "full-tables", mebibytes=1) as disk:
            _fill(disk)
            for verb, line in lines.items():
                _refused(shop, line.format(disk).split(), f"full disk, {verb}", allowed={"ballast"}, folder=disk)
    except CannotMountError as error:
        return f"skipped: {error}"
    return ""


def full_cache(shop: Workshop) -> str:
    """No room for embeddings: the run goes on without them, and says so."""
    try:
        with small_disk(shop.root / "full-cache", mebibytes=1) as disk:
            _fill(disk)
            _goes_on(shop, {"QURATE_CACHE": str(disk / "cache")}, "full cache")
    except CannotMountError as error:
        return f"skipped: {error}"
    return ""


def read_only_home(shop: Workshop) -> str:
    """A home that cannot be written: the run goes on without a cache, and says so."""
    home = shop.root / "home"
    try:
        with small_disk(home, mebibytes=1) as disk:
            subprocess.run(["mount", "-o", "remount,ro", str(disk)], check=True)
            _goes_on(shop, {"HOME": str(disk), "XDG_CACHE_HOME": "", "QURATE_CACHE": ""}, "read-only home")
    except CannotMountError:
        home.mkdir(exist_ok=True)
        home.chmod(0o555)
        _goes_on(shop, {"HOME": str(home), "XDG_CACHE_HOME": "", "QURATE_CACHE": ""}, "read-only home")
    return ""


def _goes_on(shop: Workshop, environment: dict[str, str], where: str) -> None:
    victim = Adapt()
    wanted, _ = shop.reference(victim)
    out = shop.root / f"{where} run".replace(" ", "-")
    command = Qurate(victim.words(str(out)), shop.world, out.with_suffix(".txt"), environment, fresh=False)
    if _ended_well(shop, command, where):
        if not any("warning" in line and "cache" in line for line in command.lines()):
            shop.complain(f"{where}: goes on without a word about the cache")
        shop.compare(victim.result(out), wanted, where)


def _refused(shop: Workshop, words: list[str], where: str, *, allowed: set[str], folder: Path) -> None:
    """One line, exit code 2, and nothing half-written."""
    said = shop.root / f"{where.replace(' ', '-').replace(',', '')}.txt"
    command = Qurate(words, shop.world, said, shop.cache, fresh="benchmark" in words)
    code, lines = command.wait(), command.lines()
    if code != 2 or "Traceback" in "\n".join(lines) or not lines[-1].startswith("qurate: "):
        shop.complain(f"{where}: exit code {code}, {lines[-3:]}")
    files = {path.name for path in folder.rglob("*") if path.is_file() and path.stat().st_size}
    if files - allowed:
        shop.complain(f"{where}: left {sorted(files - allowed)}")


def _ended_well(shop: Workshop, command: Qurate, where: str) -> bool:
    code = command.wait()
    if code != 0 or "Traceback" in "\n".join(command.lines()):
        shop.complain(f"{where}: exit code {code}, {command.lines()[-3:]}")
        return False
    return True


def _fill(disk: Path) -> Path:
    """Take all the room that is left."""
    ballast = disk / "ballast"
    with ballast.open("wb", buffering=0) as file:
        for size in (2**20, 2**12, 1):
            try:
                while file.write(b"\0" * size):
                    pass
            except OSError:
                continue
    return ballast


@contextmanager
def small_disk(path: Path, *, mebibytes: int) -> Iterator[Path]:
    """A disk of its own with so much room.

    Raises:
        CannotMountError: If this is not root, or mounting is not allowed.
    """
    path.mkdir(parents=True, exist_ok=True)
    if os.geteuid() != 0 or shutil.which("mount") is None:
        raise CannotMountError("only root may mount a small disk")
    size = f"size={mebibytes}m"
    done = subprocess.run(["mount", "-t", "tmpfs", "-o", size, "tmpfs", str(path)], capture_output=True, check=False)
    if done.returncode != 0:
        raise CannotMountError(done.stderr.decode(errors="replace").strip())
    try:
        yield path
    finally:
        subprocess.run(["umount", "-l", str(path)], check=False)


SITUATIONS: tuple[Callable[[Workshop], str], ...] = (
    two_adapt_with_one_cache,
    two_adapt_with_one_out,
    two_benchmarks_with_one_out,
    full_disk,
    disk_that_fills_and_empties,
    files_of_tomorrow,
    killed_page,
    full_disk_of_tables,
    full_cache,
    read_only_home,
)
