"""Everything that qurate parses, as a function of bytes: it must give data or raise one of our errors."""

from __future__ import annotations

import io
import json
import logging
import os
import shutil
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from hypothesis import strategies as st
from PIL import Image
from tests.data.tiny_suite import make_own
from tests.reliability.fuzz_inputs import ANY_BYTES, TEXTS, WORDS, damaged, tensors, tree
from tests.runs.written import write_run
from tests.selection.problem import blobs

from qurate.config import RunConfig, to_dict


@dataclass(frozen=True)
class Target:
    """One reader.

    Args:
        name: Of it.
        inputs: What it is fed.
        read: Called with an input; data, or a `QurateError`.
        inside: Folder that it may read and write in; None: it may read anywhere.
    """

    name: str
    inputs: st.SearchStrategy[Any]
    read: Callable[[Any], object]
    inside: Path | None = None


def write_finished(root: Path) -> Path:
    """A finished run with settings and answers, in a moment."""
    run = write_run(root)
    settings = {
        "qurate": "0.2.0",
        "train": "head",
        "backbone": "timm/test_resnet",
        "weights": "none",
        "backbone_sha256": "0" * 64,
        "check_helping": True,
        "data": "0" * 64,
        "labels": None,
        "previous": None,
        "places": {"source": str(root / "source"), "labeled": str(root / "labeled"), "unlabeled": str(root)},
        "started_in": str(root),
        "compared_in": None,
        "run": to_dict(RunConfig()),
    }
    (run / "config.json").write_text(json.dumps(settings))
    return run


@contextmanager
def make_targets(root: Path) -> Iterator[list[Target]]:
    """All readers, with what they need in a folder."""
    root.mkdir(exist_ok=True)
    found = [*_runs(root / "runs"), *_folders(root), *_lists(root / "lists"), *_answers(root), *_outcomes(root)]
    found += _weights(root / "weights")
    with _page(root / "page") as page:
        yield [*found, *page]


def _replacing(path: Path, read: Callable[[], object]) -> Callable[[bytes], object]:
    """Read with other content in a file, which is put back."""
    sound = path.read_bytes() if path.exists() else None

    def replaced(content: bytes) -> object:
        path.write_bytes(content)
        try:
            return read()
        finally:
            if sound is None:
                path.unlink(missing_ok=True)
            else:
                path.write_bytes(sound)

    return replaced


def _runs(root: Path) -> Iterator[Target]:
    from qurate.review.server import read_examples
    from qurate.runs.continue_from import read_previous
    from qurate.runs.image_sources import choose_places
    from qurate.runs.model import load
    from qurate.runs.suggestions import read_run_images

    root.mkdir()
    run = write_finished(root)
    image = next((root / "unlabeled").glob("*.png"))

    def predict() -> None:
        table = load(run).predict(image)
        assert table["probability"].between(0, 1).all(), table

    def go_on() -> None:
        previous = read_previous(run)
        previous.understand({"weights": "none"})
        previous.trusted([Path(file) for file in previous.predicted])
        assert previous.learned is not None
        choose_places(previous.settings, {})

    def read_tables() -> None:
        go_on()
        read_run_images(run)

    for name, kind, read in (
        ("model.json", tree, predict),
        ("model.safetensors", tensors, predict),
        ("config.json", tree, go_on),
        ("predictions.csv", damaged, read_tables),
        ("positives.csv", damaged, read_tables),
        ("examples.csv", damaged, lambda: read_examples(run)),
    ):
        path = run / name
        inputs = kind(path.read_bytes())
        yield Target(name, inputs, _replacing(path, read), root if name.startswith("model") else None)


def _folders(root: Path) -> Iterator[Target]:
    """Unfinished runs, caches, settings and suites."""
    from qurate.data.suite_checks import check_suite
    from qurate.data.suites import load_suite
    from qurate.embedding.cache import EmbeddingCache
    from qurate.embedding.digests import hash_files
    from qurate.runs.folder import RunFolder
    from qurate.runtime.tensors import pack_tensors

    run = root / "begun"
    run.mkdir()
    folder = RunFolder(run)
    settings = json.dumps({"qurate": "1", "data": "0", "run": to_dict(RunConfig())}).encode()
    packed = pack_tensors({"trainer.a": torch.zeros(3), "rounds": torch.zeros(2, 2)}, rounds="1", steps="5", line="1")

    def resume() -> None:
        folder.claim(resume=True, force=False)
        folder.check(json.loads(settings), None)
        folder.standing()
        folder.processes_before()

    yield Target("config.json of a begun run", tree(settings), _replacing(run / "config.json", resume))
    for name in ("checkpoint.safetensors", "comparison.safetensors"):

        def go_on() -> None:
            folder.standing()
            folder.load()
            folder.load_folds(blobs(), (torch.tensor([0, 5]),))

        yield Target(name, tensors(packed), _replacing(run / name, go_on))

    cache = EmbeddingCache(root / "cache", "space", 4, required=True)
    cache.add([bytes(32)], torch.zeros(1, 4))
    (shard,) = (root / "cache").glob("*.safetensors")
    sound = shard.read_bytes()

    def look_up() -> None:
        own = EmbeddingCache(root / "cache", "space", 4)
        if not own.missing([bytes(32)]):
            own.take([bytes(32)])

    yield Target("shard of the cache", tensors(sound), _replacing(shard, look_up))

    hash_files([shard], root / "digests.sqlite")
    index = root / "digests.sqlite"
    os.utime(shard, (1, 1))
    yield Target("digests.sqlite", _database(), _replacing(index, lambda: hash_files([shard], index)))

    for name in ("c.json", "c.toml"):
        plain = json.dumps(to_dict(RunConfig())).encode() if name == "c.json" else b"seed = 1\n[method]\nname='tml'\n"
        inputs = ANY_BYTES | (tree(plain) if name == "c.json" else damaged(plain))
        path = root / name
        yield Target(f"settings, {name}", inputs, _replacing(path, lambda path=path: RunConfig.from_file(path)))  # type: ignore[misc]

    suite = root / "suite"
    make_own(suite)
    toml = suite / "ours.toml"
    yield Target(
        "suite",
        ANY_BYTES | damaged(toml.read_bytes()),
        _replacing(toml, lambda: check_suite(load_suite(str(toml)), suite).lines()),
    )


def _database() -> st.SearchStrategy[bytes]:
    import sqlite3

    with sqlite3.connect(":memory:") as database:
        database.execute(
            "CREATE TABLE digests "
            "(path TEXT PRIMARY KEY, size INTEGER, modified_ns INTEGER, changed_ns INTEGER, digest BLOB)"
        )
        database.execute("INSERT INTO digests VALUES ('a', 1, 1, 1, 'b')")
        database.commit()
        sound = database.serialize()
    return damaged(sound)


def _lists(root: Path) -> Iterator[Target]:
    from qurate.data.images import read_image
    from qurate.data.own_images import find_images, read_labeled, read_unlabeled
    from qurate.runtime.tables import read_csv, read_head, split_header, to_csv

    (root / "b").mkdir(parents=True)
    for name in ("a.png", "b/c.png"):
        Image.fromarray(np.zeros((4, 4, 3), np.uint8)).save(root / name)

    def read(path: Path) -> None:
        from qurate.errors import QurateError

        problems = []
        for one in (read_labeled, read_unlabeled):
            try:
                one(path, "source")
            except QurateError as error:
                problems.append(error)
        find_images(path)
        if problems:
            raise problems[0]

    def round_trip(path: Path) -> None:
        split_header(path, read_head(path))
        table = read_csv(path)
        path.write_bytes(to_csv(table))
        assert read_csv(path).equals(table)

    plain = {"list.txt": b"a.png x\nb/c.png y\n", "table.csv": b"path,label\na.png,x\nb/c.png,y\n"}
    for name, content in plain.items():
        path = root / name
        yield Target(name, ANY_BYTES | damaged(content), _replacing(path, lambda path=path: read(path)))  # type: ignore[misc]
    path = root / "any.csv"
    yield Target("table", ANY_BYTES | damaged(plain["table.csv"]), _replacing(path, lambda: round_trip(path)))
    for kind in ("PNG", "JPEG", "GIF", "TIFF", "WEBP", "BMP"):
        stream = io.BytesIO()
        Image.fromarray(np.arange(768, dtype=np.uint8).reshape(16, 16, 3)).save(stream, kind)
        image = root / f"image.{kind.lower()}"
        read_it = _replacing(image, lambda image=image: read_image(image, least=8))  # type: ignore[misc]
        yield Target(f"image, {kind}", damaged(stream.getvalue()), read_it)


def _answers(root: Path) -> Iterator[Target]:
    from qurate.active.answers import Answer, AnswerLog, read_answers

    path = root / "labels.csv"
    log = ",".join(Answer._fields) + '\n1,t,a.png,label,b,b,random,\n2,t,"b\nc,"".png",wrong,,b,check,Anna\n'
    table = "file,label,predicted,query_strategy\na.png,b,b,random\nc.png,,b,random\n"
    inputs = ANY_BYTES | damaged(log.encode()) | damaged(table.encode())
    yield Target("answers", inputs, _replacing(path, lambda: read_answers(path).fingerprint))

    def cut_and_go_on(given: tuple[list[str], int]) -> None:
        """What is acknowledged counts, whatever is cut off before it."""
        names, cut = given
        named = [name.encode("utf-8", "replace").decode() or "x" for name in names]
        path.unlink(missing_ok=True)
        kept = AnswerLog(path)
        acknowledged = []
        for number, name in enumerate(named):
            before = path.stat().st_size if path.exists() else 0
            kept.add([{"file": name, "answer": "label", "label": name, "predicted": "p", "asked": "random"}])
            if number % 3 == 1:  # this one was killed in the middle
                end = before + 1 + cut % max(1, path.stat().st_size - before - len(",random\n"))
                os.truncate(path, end)
            else:
                acknowledged.append(name)
        found = [row.file for row in AnswerLog(path).rows()]
        lost = [name for name in acknowledged if name not in found]
        assert not lost, (lost, path.read_bytes())
        path.unlink(missing_ok=True)

    names = st.lists(st.lists(WORDS, max_size=6).map("".join) | st.text(max_size=9), min_size=2, max_size=7)
    yield Target("answers after a kill", st.tuples(names, st.integers(0, 10_000)), cut_and_go_on)


HEAD = (
    "scenario,method,selector,shots,seed,model_selection,accuracy,balanced_accuracy,positives,positives_accuracy,"
    "seconds,config,commit\n"
)
ROW = "typeset:handwritten,ent,none,3,0,last,0.5,0.5,,,1.5,abc,def\n"
ROUNDS = "scenario,method,selector,shots,seed,round,accuracy,positives,positives_accuracy,coverage\n"
ROUND = "typeset:handwritten,ent,random,3,0,0,0.5,0,,0\n"


def _outcomes(root: Path) -> Iterator[Target]:
    from qurate.benchmark.outcome import read_outcome

    folder = root / "grid"
    folder.mkdir()
    sound = {
        "results.csv": (HEAD + ROW).encode(),
        "rounds.csv": (ROUNDS + ROUND).encode(),
        "benchmark.json": b'{"suite": "digits", "cells": ["x"], "steps": 5}\n',
    }
    for name, content in sound.items():
        (folder / name).write_bytes(content)
    for name, content in sound.items():
        inputs = tree(content) if name.endswith("json") else damaged(content)
        yield Target(name, inputs, _replacing(folder / name, lambda: read_outcome(folder)))


def _weights(root: Path) -> Iterator[Target]:
    import safetensors.torch
    from torch import nn

    from qurate.networks.backbones import load_weights

    root.mkdir()
    module = nn.Linear(2, 2)
    sound = safetensors.torch.save(module.state_dict())
    stream = io.BytesIO()
    torch.save(module.state_dict(), stream)
    for name, inputs in (("w.safetensors", tensors(sound)), ("w.pth", damaged(stream.getvalue()))):
        path = root / name
        yield Target(f"weights, {name}", inputs, _replacing(path, lambda path=path: load_weights(module, path)), root)  # type: ignore[misc]


class _Faults(logging.Handler):
    """Messages of the server about faults of ours."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[logging.LogRecord] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.found.append(record)


@contextmanager
def _page(root: Path) -> Iterator[list[Target]]:
    """The application of the page, in this process and behind a socket."""
    import uvicorn
    from tests.review.asked import PORT, TOKEN, answer, make_app

    from qurate.review.server import _is_our_fault, listen

    root.mkdir()
    app = make_app(root)
    own = listen(0)
    port = own.getsockname()[1]
    app_there: Any = make_app(root)
    app_there._hosts = {f"127.0.0.1:{port}"}
    server = uvicorn.Server(
        uvicorn.Config(app_there, http="h11", ws="none", lifespan="off", log_config=None, timeout_graceful_shutdown=1)
    )
    logger, faults = logging.getLogger("uvicorn.error"), _Faults()
    logger.addFilter(_is_our_fault)
    logger.addHandler(faults)
    logger.propagate = False
    thread = threading.Thread(target=server.run, kwargs={"sockets": [own]})
    thread.start()
    while not server.started:
        time.sleep(0.01)

    def call(given: dict[str, Any]) -> None:
        (root / "labels.csv").unlink(missing_ok=True)
        status, _ = answer(app, **given)
        assert status < 500, status

    def send(content: bytes) -> None:
        (root / "labels.csv").unlink(missing_ok=True)
        content = content.replace(b"TOKEN", TOKEN.encode()).replace(b"PORT", str(port).encode())
        with socket.create_connection(("127.0.0.1", port), timeout=10) as client:
            try:
                client.sendall(content)
                client.shutdown(socket.SHUT_WR)
                said = client.recv(100)
                while client.recv(65536):
                    pass
            except ConnectionError:
                said = b""
        assert not said or said.startswith(b"HTTP/1.1 "), said
        assert not faults.found, faults.found.pop().exc_info
        assert not said or said[9:10] != b"5", said

    answers = st.fixed_dictionaries(
        {"image": st.integers(-2, 50) | JSON_WORDS, "answer": st.sampled_from(["label", "none", "wrong", "undo", 5])},
        optional={"label": st.integers(-2, 15) | JSON_WORDS, "name": TEXTS | JSON_WORDS},
    )
    bodies = st.one_of(
        ANY_BYTES,
        st.lists(answers, max_size=3).map(lambda given: json.dumps({"answers": given}).encode()),
        st.fixed_dictionaries({"id": JSON_WORDS}).map(lambda given: json.dumps(given).encode()),
    )
    places = st.sampled_from(
        ["", "start", "question", "trusted", "answers", "undo", "more", "page.css", "images/0/small"]
    )
    queries = st.sampled_from(["", "?tab=a", "?label=0&count=5", "?later=1,2", "?label=99999999999999999999&count=1"])
    paths = st.builds("".join, st.tuples(places | TEXTS, queries | TEXTS.map("?{}".format)))
    headers = st.dictionaries(
        st.sampled_from(["host", "origin", "content-type", "content-length", "sec-fetch-site", "x"]),
        st.sampled_from(["", "0", "9" * 5000, "text/plain", "null", f"127.0.0.1:{PORT}", "same-origin"]) | TEXTS,
        max_size=2,
    )
    methods = st.sampled_from(["GET", "POST", "POST", "HEAD", "PUT", "OPTIONS", "", "GET\n"])
    requests = st.fixed_dictionaries(
        {"method": methods, "path": paths, "body": bodies, "headers": headers, "leaves": st.booleans()}
    )
    whole = b"POST /TOKEN/0/answers HTTP/1.1\r\nHost: 127.0.0.1:PORT\r\nOrigin: http://127.0.0.1:PORT\r\n"
    whole += (
        b'Content-Type: application/json\r\nContent-Length: 46\r\n\r\n{"answers": [{"image": 1, "answer": "none"}]}\n'
    )
    get = b"GET /TOKEN/question?tab=a HTTP/1.1\r\nHost: 127.0.0.1:PORT\r\nConnection: close\r\n\r\n"
    try:
        yield [Target("requests", requests, call), Target("raw requests", damaged(whole) | damaged(get * 2), send)]
    finally:
        logger.removeHandler(faults)
        logger.removeFilter(_is_our_fault)
        logger.propagate = True
        server.should_exit = True
        thread.join(30)
        own.close()
        shutil.rmtree(root, ignore_errors=True)


JSON_WORDS: st.SearchStrategy[Any] = st.sampled_from(
    [None, True, "a", "", 10**30, -1, 1.5, [], {}, "0", "\udc80", "x" * 3000]
)
