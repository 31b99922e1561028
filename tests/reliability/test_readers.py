"""Any bytes in a file that qurate reads give data or one of its errors, never another exception."""

from __future__ import annotations

import contextlib
import json
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.data.tiny_suite import make_own
from tests.reliability.world import ADAPT, run_line
from tests.selection.problem import blobs

from qurate.errors import QurateError

QUICK = settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
WORDS = st.sampled_from(
    [
        *("path", "label", "file", ",", "\n", "\r", '"', "'", "\t", " ", "\0", "\ufeff", "=", "-1", "0", "a.png", "b"),
        *("[", "]", "{", "}", ":", "title", "classes", "1e999", "nan", "domains", "../", "/", "\\", "é", "\ud7ff"),
        *("scenario", "method", "accuracy", "seed", "tml", "none", "true", "null", "99999999999999999999"),
    ]
)
TEXTS = st.lists(WORDS, max_size=30).map("".join)
ANY_BYTES = st.one_of(st.binary(max_size=200), TEXTS.map(lambda text: text.encode("utf-8", "surrogatepass")))
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=6,
)


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Path]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield tmp_path


def _is_answered(call: Callable[[], object]) -> None:
    """Data, or an error of ours."""
    with contextlib.suppress(QurateError):
        call()


@st.composite
def damaged(draw: st.DrawFn, sound: bytes) -> bytes:
    """A sound file that was cut, overwritten, repeated or added to in some place."""
    start = draw(st.integers(0, len(sound)))
    end = draw(st.integers(start, min(len(sound), start + 40)))
    return sound[:start] + draw(ANY_BYTES | st.just(b"")) + (sound[end:] if draw(st.booleans()) else b"")


@QUICK
@given(content=ANY_BYTES)
@pytest.mark.parametrize("name", ["list.txt", "table.csv"])
def test_lists_and_tables(name: str, content: bytes, place: Path) -> None:
    from qurate.data.own_images import find_images, read_labeled, read_unlabeled

    path = place / name
    path.write_bytes(content)
    for read in (read_labeled, read_unlabeled):
        _is_answered(lambda read=read: read(path, "source"))  # type: ignore[misc]
    _is_answered(lambda: find_images(path))


@QUICK
@given(content=ANY_BYTES)
@pytest.mark.parametrize("name", ["c.json", "c.toml"])
def test_settings(name: str, content: bytes, place: Path) -> None:
    from qurate.config import RunConfig

    (place / name).write_bytes(content)
    _is_answered(lambda: RunConfig.from_file(place / name))


@QUICK
@given(data=st.data())
def test_settings_of_any_values(data: st.DataObject) -> None:
    from qurate.config import RunConfig, to_dict

    stored = to_dict(RunConfig())
    changed = _changed(data, stored)
    _is_answered(lambda: RunConfig.from_dict(changed))


@QUICK
@given(data=st.data())
def test_suites(data: st.DataObject, place: Path) -> None:
    from qurate.data.checks import check_suite
    from qurate.data.suites import load_suite

    if not (place / "ours.toml").exists():
        make_own(place)
        (place / "sound").write_bytes((place / "ours.toml").read_bytes())
    path = place / "ours.toml"
    path.write_bytes(data.draw(damaged((place / "sound").read_bytes())))
    _is_answered(lambda: check_suite(load_suite(str(path)), place).lines())


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run, and its files as they were."""
    from tests.own_images import make_folders, save_weights

    root = tmp_path_factory.mktemp("finished")
    make_folders(root)
    save_weights(root / "w.safetensors")
    with warnings.catch_warnings(), pytest.MonkeyPatch.context() as patch:
        warnings.simplefilter("ignore")
        patch.chdir(root)
        run_line(f"{ADAPT} --no-compare")
    return root / "new"


@QUICK
@given(data=st.data())
@pytest.mark.parametrize("name", ["model.json", "model.safetensors"])
def test_run_folders(name: str, data: st.DataObject, finished: Path) -> None:
    from qurate import load as load_model

    path = finished / name
    sound = path.read_bytes()
    try:
        path.write_bytes(data.draw(damaged(sound)))
        _is_answered(lambda: load_model(finished))
        if name == "model.json":
            path.write_text(json.dumps(_changed(data, json.loads(sound))))
            _is_answered(lambda: load_model(finished))
    finally:
        path.write_bytes(sound)


@QUICK
@given(data=st.data())
@pytest.mark.parametrize("name", ["config.json", "predictions.csv", "positives.csv"])
def test_runs_to_go_on_from(name: str, data: st.DataObject, finished: Path) -> None:
    from qurate.runs.continue_from import read_previous
    from qurate.runs.image_sources import choose_places

    def read() -> None:
        previous = read_previous(finished)
        previous.understand({})
        previous.trusted([Path(file) for file in previous.predicted])
        assert previous.learned is not None
        choose_places(previous.settings, {})

    path = finished / name
    sound = path.read_bytes()
    try:
        path.write_bytes(data.draw(damaged(sound)))
        _is_answered(read)
        if name == "config.json":
            path.write_text(json.dumps(_changed(data, json.loads(sound))))
            _is_answered(read)
    finally:
        path.write_bytes(sound)


@QUICK
@given(data=st.data(), content=ANY_BYTES)
def test_answers(data: st.DataObject, content: bytes, place: Path) -> None:
    from qurate.active.answers import Answer, read_answers

    log = ",".join(Answer._fields) + "\n1,t,a.png,label,b,b,random\n2,t,b.png,wrong,,b,check\n"
    table = "file,label,predicted,asker\na.png,b,b,random\n"
    path = place / "labels.csv"
    for whole in (content, data.draw(damaged(log.encode())), data.draw(damaged(table.encode()))):
        path.write_bytes(whole)
        _is_answered(lambda: read_answers(path).fingerprint)


@QUICK
@given(content=ANY_BYTES, stored=JSON)
def test_progress_of_a_run(content: bytes, stored: Any, place: Path) -> None:
    from qurate.runs.folder import RunFolder

    folder = RunFolder(place)
    for text in (content, json.dumps(stored).encode()):
        (place / "config.json").write_bytes(text)
        _is_answered(lambda: folder.check({"qurate": "1", "run": {"seed": 0}}))
        _is_answered(lambda: folder.claim(resume=True, force=False))
        (place / "checkpoint.safetensors").write_bytes(text)
        _is_answered(folder.load)
        (place / "comparison.safetensors").write_bytes(text)
        _is_answered(lambda: folder.load_folds(blobs(), (torch.tensor([0, 5]),)))


ROW = "typeset:handwritten,ent,none,3,0,last,0.5,0.5,,,1.5,abc,def\n"
HEAD = (
    "scenario,method,selector,shots,seed,model_selection,accuracy,balanced_accuracy,positives,positives_accuracy,"
    "seconds,config,commit\n"
)
ROUNDS = "scenario,method,selector,shots,seed,round,accuracy,positives,positives_accuracy,coverage\n"
ROUND = "typeset:handwritten,ent,random,3,0,0,0.5,0,,0\n"


@QUICK
@given(data=st.data())
@pytest.mark.parametrize("name", ["results.csv", "rounds.csv", "benchmark.json"])
def test_results(name: str, data: st.DataObject, place: Path) -> None:
    from qurate.benchmark.outcome import read_outcome

    sound = {
        "results.csv": (HEAD + ROW).encode(),
        "rounds.csv": (ROUNDS + ROUND).encode(),
        "benchmark.json": b'{"suite": "digits", "cells": ["x"], "steps": 5}\n',
    }
    for file, content in sound.items():
        (place / file).write_bytes(content)
    read_outcome(place)
    (place / name).write_bytes(data.draw(damaged(sound[name])))
    _is_answered(lambda: read_outcome(place))


def _changed(data: st.DataObject, stored: dict[str, Any]) -> dict[str, Any]:
    """A table in which one value, at any depth, is any other."""
    name = data.draw(st.sampled_from(sorted(stored)))
    value = stored[name]
    if isinstance(value, dict) and value and data.draw(st.booleans()):
        return {**stored, name: _changed(data, value)}
    return {**stored, name: data.draw(JSON)}
