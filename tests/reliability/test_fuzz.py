"""A short round of `fuzz.py`: the same inputs every time, a few seconds for all readers together."""

from __future__ import annotations

import mmap
import os
import sys
import tempfile
import warnings
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from tests.reliability.fuzz import Counts, OutOfBoundsError, bounds, fuzz, try_once
from tests.reliability.fuzz_targets import Target, make_targets

from qurate.errors import DataError

pytest.importorskip("uvicorn", reason="the extra review is not installed")
QUICK = settings(
    max_examples=25,
    derandomize=True,
    database=None,
    phases=(Phase.generate, Phase.shrink),
    suppress_health_check=list(HealthCheck),
)
NAMES = (
    *("model.json", "model.safetensors", "config.json", "predictions.csv", "positives.csv"),
    *("examples.csv", "config.json of a begun run", "checkpoint.safetensors", "comparison.safetensors"),
    *("shard of the cache", "digests.sqlite", "settings, c.json", "settings, c.toml", "suite", "list.txt", "table.csv"),
    *("table", "image, PNG", "image, JPEG", "image, GIF", "image, TIFF", "image, WEBP", "image, BMP", "answers"),
    *("answers after a kill", "results.csv", "rounds.csv", "benchmark.json", "weights, w.safetensors"),
    *("weights, w.pth", "requests", "raw requests"),
)
"""Of all readers; pytest wants them before there is a folder to make them in."""


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("fuzz").resolve()


@pytest.fixture(scope="module")
def targets(root: Path) -> Iterator[dict[str, Target]]:
    with pytest.MonkeyPatch.context() as patch, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        patch.setenv("QURATE_CACHE", str(root / "user-cache"))
        with make_targets(root) as found:
            yield {target.name: target for target in found}


@pytest.mark.parametrize("name", NAMES)
def test_any_input_ends_in_data_or_in_an_error_of_ours(name: str, targets: dict[str, Target], root: Path) -> None:
    target, counts = targets[name], Counts()

    @QUICK
    @given(target.inputs)
    def run(content: object) -> None:
        try_once(target, content, root, counts)

    run()
    assert counts.tries[name, "bad"] == 0


def test_every_reader_is_tried(targets: dict[str, Target]) -> None:
    assert set(targets) == set(NAMES)


def _refuse(_: object) -> None:
    raise DataError("no")


def _fail(_: object) -> None:
    raise KeyError("absent")


def _stray(_: object) -> None:
    with tempfile.TemporaryFile("wb", dir=Path(__file__).parent):
        pass


def _hang(_: object) -> None:
    while True:
        pass


def _grow(_: object) -> None:
    with mmap.mmap(-1, 700 * 2**20) as block:  # not from the heap, which may have as much to reuse
        for place in range(0, len(block), mmap.PAGESIZE):
            block[place] = 1


@pytest.mark.parametrize(
    ("read", "kind", "says"),
    [
        (lambda _: 5, "fine", ""),
        (_refuse, "clear", ""),
        (_fail, "bad", "KeyError"),
        (_stray, "bad", "writes"),
        (_hang, "bad", "took more than 0.2 seconds"),
        (lambda _: os.system("true"), "bad", "os.system"),
    ],
)
def test_the_counts_can_fail(
    read: object, kind: str, says: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tests.reliability.fuzz.SECONDS", 0.2)
    assert callable(read)
    counts = Counts()
    fuzz(Target("it", st.just(b""), read), tmp_path, counts, examples=1, seed=0)
    assert counts.tries["it", kind] > 0
    assert says in " ".join(counts.problems)


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux says how much memory was taken")
def test_memory_is_bounded(tmp_path: Path) -> None:
    with pytest.raises(OutOfBoundsError, match="MiB"), bounds(tmp_path, None):
        _grow(b"")
