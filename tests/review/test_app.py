"""What the application answers to clients that go away, to strange numbers, and where the disk fails it."""

from __future__ import annotations

import asyncio
import json
import os
import threading
import time
from pathlib import Path

import pytest
from starlette.types import ASGIApp
from tests.review.asked import answer, ask, make_app

from qurate.review.server import listen

uvicorn = pytest.importorskip("uvicorn", reason="the extra review is not installed")

NONE = json.dumps({"answers": [{"image": 0, "answer": "none"}]}).encode()


@pytest.fixture
def app(tmp_path: Path) -> ASGIApp:
    return make_app(tmp_path, patience=0.5)


@pytest.mark.parametrize("path", ["answers", "undo"])
def test_a_client_that_goes_away_in_the_middle_of_a_post_changes_nothing(app: ASGIApp, path: str) -> None:
    assert answer(app, "POST", path, NONE[:10], leaves=True)[0] == 400
    assert json.loads(answer(app)[1])["summary"]["answered"] == 0
    assert answer(app, "POST", "answers", NONE)[0] == 200


def test_a_new_class_is_saved_and_a_hostile_name_is_explained(app: ASGIApp) -> None:
    def name(text: str) -> tuple[int, dict[str, object]]:
        body = json.dumps({"answers": [{"image": 0, "answer": "label", "name": text}]}).encode()
        status, said = answer(app, "POST", "answers", body)
        return status, json.loads(said)

    status, said = name("mug")
    assert status == 200
    assert json.loads(answer(app)[1])["summary"]["added"] == [{"name": "mug", "images": 1}]
    for hostile in ("Mug", "a\nb", "x" * 256, "\ud800", "none", "\u202egum"):
        status, said = name(hostile)
        assert status == 400
        assert "class" in str(said["problem"])
    assert json.loads(answer(app)[1])["summary"]["added"] == [{"name": "mug", "images": 1}]


@pytest.mark.parametrize("number", ["9" * 5000, "9" * 20, "-1", "0x1", "٣", "1.0", " 1", ""])
def test_a_number_of_an_image_that_is_none_is_not_found(app: ASGIApp, number: str) -> None:
    assert answer(app, path=f"images/{number}/small")[0] == 404
    assert answer(app, path=f"trusted?label={number}&count=5")[0] == 400
    assert answer(app, path=f"question?tab=a&later={number},1")[0] == 200


@pytest.mark.parametrize("length", ["9" * 5000, "2000001", "-1", "1e3", "٣", ""])
def test_a_length_that_is_none_or_too_large_is_refused(app: ASGIApp, length: str) -> None:
    """Found by fuzzing: Python refuses to read a number of 5,000 digits."""
    assert answer(app, headers={"content-length": length})[0] == 403


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="there are no pipes here")
@pytest.mark.parametrize(("make", "why"), [(os.mkdir, "Is a directory"), (os.mkfifo, "not a regular file")])
def test_a_labels_file_that_becomes_something_else_is_said(
    app: ASGIApp, tmp_path: Path, make: object, why: str
) -> None:
    assert callable(make)
    make(tmp_path / "labels.csv")
    for method, path, body in (("GET", "start", b""), ("POST", "answers", NONE), ("POST", "more", b"{}")):
        status, said = answer(app, method, path, body)
        assert status == 500
        assert why in json.loads(said)["problem"]


def test_a_disk_that_stalls_holds_up_neither_other_requests_nor_the_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    app = make_app(tmp_path, patience=0.5)
    assert answer(app, "POST", "answers", NONE)[0] == 200
    never = threading.Event()
    monkeypatch.setattr("qurate.active.answers.parse_answers", lambda _: never.wait())
    (tmp_path / "labels.csv").write_bytes((tmp_path / "labels.csv").read_bytes() + b"\n")  # so that it is read again

    async def ask_at_once() -> list[tuple[int, bytes]]:
        return await asyncio.gather(*(ask(app) for _ in range(5)), ask(app, path="page.css"))

    *held_up, page = asyncio.run(asyncio.wait_for(ask_at_once(), 60))
    assert [status for status, _ in held_up] == [500] * 5
    assert "the disk does not answer within 0.5 seconds" in json.loads(held_up[0][1])["problem"]
    assert page[0] == 200
    server = uvicorn.Server(uvicorn.Config(app, http="h11", ws="none", lifespan="off", log_config=None))
    with listen(0) as own:
        thread = threading.Thread(target=server.run, kwargs={"sockets": [own]})
        thread.start()
        while not server.started:
            time.sleep(0.01)
        server.should_exit = True
        thread.join(60)
        assert not thread.is_alive()
    never.set()
