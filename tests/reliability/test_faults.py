"""A short round of `faults.py`: a few signals at seeded moments, two commands at once, full and read-only disks."""

from __future__ import annotations

import os
import random
import re
import signal
import subprocess
import sys
import time
import warnings
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.reliability.faults import Workshop
from tests.reliability.situations import (
    full_cache,
    full_disk,
    read_only_home,
    two_adapt_with_one_cache,
    two_adapt_with_one_out,
)
from tests.reliability.victims import Adapt, Benchmark, Embed, Report, Victim, WholeNetwork
from tests.reliability.world import PLACES

KILL, TERM, INT = signal.SIGKILL, signal.SIGTERM, signal.SIGINT


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory) -> Workshop:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return Workshop(tmp_path_factory.mktemp("shop"), seed=0)


@pytest.mark.parametrize(
    ("victim", "moments"),
    [
        # In the reading and embedding of images, in the training, in the comparison.
        (Adapt(cold=True), [(KILL, 0.3), (TERM, 0.45), (INT, 0.7)]),
        (Adapt(), [(INT, 0.35), (KILL, 0.65), (TERM, 0.8)]),
        (Embed(), [(TERM, 0.4), (KILL, 0.4)]),
        (Benchmark(seeds="0"), [(TERM, 0.6)]),
        (Report(), [(INT, 0.01)]),
    ],
    ids=lambda given: given.name if isinstance(given, Victim) else "",
)
def test_a_disturbed_command_is_resumed_to_the_same_result(
    shop: Workshop, victim: Victim, moments: list[tuple[signal.Signals, float]]
) -> None:
    before = len(shop.counts.problems), shop.counts.compared
    wanted, lines = shop.reference(victim)
    out = shop.root / f"short-{victim.name}".replace(" ", "-")
    for which, share in moments:
        shop.disturb(victim, out, which, max(1, round(share * lines)), 0.0, where="short round", fresh=False)
    shop.complete(victim, out, wanted, f"short round, {victim.name}")
    assert shop.counts.problems[before[0] :] == []
    assert shop.counts.compared == before[1] + 1


def test_a_whole_network_is_resumed_from_ten_random_moments_of_its_training(shop: Workshop) -> None:
    victim, rng, before = WholeNetwork(), random.Random(0), len(shop.counts.problems)
    wanted, lines = shop.reference(victim)
    survived = shop.counts.survived
    for number in range(5):
        out = shop.root / f"whole-{number}"
        for which in rng.sample((KILL, TERM), 2):
            line, delay = rng.randint(lines // 3, lines // 2), rng.uniform(0, 1)
            shop.disturb(victim, out, which, line, delay, where=f"ten moments, {number}", fresh=False)
        shop.complete(victim, out, wanted, f"ten moments, {number}")
    assert shop.counts.problems[before:] == []
    assert shop.counts.survived - survived >= 5  # a command may be done before the signal comes


def test_sigterm_to_all_processes_at_once_is_kept_in_spite_of_workers(shop: Workshop) -> None:
    """As clusters preempt: the processes that decode images hear it too."""
    words = f"adapt {PLACES} --config whole.json --steps 3000 --checkpoint-steps 1000000 --workers 1 --no-compare"
    out = shop.root / "preempted"
    run = subprocess.Popen(
        (sys.executable, "-m", "qurate", *words.split(), "--out", str(out)),
        cwd=shop.world,
        env={**os.environ, **shop.cache},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    assert run.stdout is not None
    said = next(line for line in run.stdout if line.startswith("Expected memory"))
    children = Path(f"/proc/{run.pid}/task/{run.pid}/children")
    end = time.monotonic() + 120
    while not children.read_text().split():
        assert time.monotonic() < end, said
        time.sleep(0.01)
    time.sleep(1)
    os.killpg(run.pid, signal.SIGTERM)
    rest = run.stdout.read()
    run.stdout.close()
    assert run.wait() == 143, rest
    assert re.search(r"The first [0-9]+ steps of pre-training are kept", rest), rest


@pytest.mark.parametrize(
    "situation",
    [two_adapt_with_one_cache, two_adapt_with_one_out, full_disk, full_cache, read_only_home],
    ids=lambda situation: situation.__name__,
)
def test_a_bad_situation_costs_nothing(shop: Workshop, situation: Callable[[Workshop], str]) -> None:
    before = len(shop.counts.problems)
    if reason := situation(shop):
        pytest.skip(reason)
    assert shop.counts.problems[before:] == []


def test_a_workshop_complains_of_what_is_lost(shop: Workshop, tmp_path: Path) -> None:
    """The counts can fail: another result, and a command that cannot be resumed."""
    mine = Workshop(shop.root, seed=0)
    mine.compare({"a": b"1"}, {"a": b"2"}, "here")
    mine.complete(Report(), shop.world / "note.txt", {}, "there")
    assert (mine.counts.compared, mine.counts.identical) == (1, 0)
    assert [problem.partition(":")[0] for problem in mine.counts.problems] == ["here", "there"]
