"""Every row of the table of bad inputs, run."""

from __future__ import annotations

import os
import re
import shlex
import signal
import subprocess
import sys
import traceback
import warnings
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

import pytest
from tests.reliability.bad_inputs import TABLE
from tests.reliability.rows import BadInput
from tests.reliability.world import copy_world, make_world, snapshot

from qurate.cli import VERBS, run_verb
from qurate.errors import QurateError

SECONDS = 180
"""After so long, on however busy a machine, an answer to a bad input is none."""
WORK = (
    *("qurate.selection.session.Session.train", "qurate.selection.answered.label_before_answers"),
    *("qurate.benchmark.cell.fit", "qurate.benchmark.executors.ProcessExecutor"),
)
"""What no bad input gets to."""
OF_PYTHON = re.compile(
    r"read_list|read_table|read_folder|read_unlabeled|match_classes|split_parts|check_data|path_column|label_column"
    r"|\b(missing|weights|force|resume|batch_size|root|device|precision)="
    r"|__init__|NoneType|object is not|argument after"
)
"""Words of the Python API, which are none of the command line's."""


@pytest.fixture(scope="session")
def world(tmp_path_factory: pytest.TempPathFactory, own_cache: None) -> Path:
    root = tmp_path_factory.mktemp("world") / "world"
    root.mkdir()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        make_world(root)
    return root


def test_the_table_is_large_its_rows_differ_and_every_verb_is_in_it() -> None:
    assert len(TABLE) >= 150
    assert [name for name, count in Counter(row.id for row in TABLE).items() if count > 1] == []
    lines = [row.given for row in TABLE if isinstance(row.given, str)]
    assert {line.split()[0] for line in lines} >= set(VERBS)


@pytest.mark.parametrize("row", [pytest.param(row, id=row.id) for row in TABLE])
def test_nothing_bad_goes_unsaid(
    row: BadInput, world: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    here = tmp_path / "here"
    copy_world(world, here)
    monkeypatch.chdir(here)
    monkeypatch.setenv("COLUMNS", "400")  # the parser's box cuts words at the end of a line
    if row.cache:
        monkeypatch.setenv("QURATE_CACHE", row.cache)
    row.damage()
    before = snapshot(here)
    if row.code == 2 and not row.works:
        for work in WORK:
            monkeypatch.setattr(work, _no_work)
    with _no_endless_wait(), warnings.catch_warnings():
        warnings.simplefilter("default")
        said = _call(row) if callable(row.given) else _type(row, row.given, monkeypatch, capfd)
    for words in row.says:
        assert words in said
    after = snapshot(here)
    changed = {name for name in before.keys() | after.keys() if before.get(name) != after.get(name)}
    allowed = row.may_write or "\0"
    assert {name for name in changed if not name.startswith(allowed) and Path(name).name != ".lock"} == set()


def _type(row: BadInput, line: str, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> str:
    """What a command line says, after its exit code and its form were looked at."""
    words = shlex.split(line)
    if row.fresh:
        done = subprocess.run(
            [sys.executable, "-m", "qurate", *words], capture_output=True, text=True, timeout=SECONDS, check=False
        )
        code, out, err = done.returncode, done.stdout, done.stderr
    else:
        code = _run_here(words, monkeypatch)
        out, err = capfd.readouterr()
    said = out + err
    assert "Traceback" not in said, said
    assert code == row.code, said
    if row.parser:
        return said
    assert not OF_PYTHON.search(said), said
    if code == 2:
        lines = [text for text in err.splitlines() if text.strip()]
        assert lines, "an error is said on standard error"
        assert lines[-1].startswith("qurate: "), err
    return said


def _run_here(words: list[str], monkeypatch: pytest.MonkeyPatch) -> int:
    monkeypatch.setattr(sys, "argv", ["qurate", *words])
    try:
        run_verb()
    except SystemExit as stop:
        return int(stop.code or 0)
    except BaseException:
        traceback.print_exc(limit=-2)
        return 1
    return 0


def _no_work(*_: object, **__: object) -> None:
    raise AssertionError("the work began before the input was judged")


def _call(row: BadInput) -> str:
    assert callable(row.given)
    with pytest.raises(row.error or QurateError) as caught:
        row.given()
    return str(caught.value)


@contextmanager
def _no_endless_wait() -> Iterator[None]:
    """A test that waits for ever is a failed one."""

    def give_up(_: int, __: FrameType | None) -> None:
        for pipe in Path.cwd().rglob("*"):
            if pipe.is_fifo():  # who waits for it, in whichever thread, goes on
                os.close(os.open(pipe, os.O_RDWR | os.O_NONBLOCK))
        raise TimeoutError(f"no answer within {SECONDS} s")

    before = signal.signal(signal.SIGALRM, give_up)
    signal.alarm(SECONDS)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def test_what_rows_damage_is_there(world: Path) -> None:
    """A finished run, one that was stopped in its training, one that was stopped in its comparison, a benchmark."""
    assert (world / "run/model.json").is_file()
    assert (world / "begun/checkpoint.safetensors").is_file()
    assert not (world / "begun/model.json").exists()
    assert (world / "half/comparison.safetensors").is_file()
    assert (world / "grid/results.csv").is_file()
