"""Only pages that the server gave out itself can talk to it, and no path leads to a file."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.review.served import Served
from tests.runs.written import write_run


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    pytest.importorskip("uvicorn", reason="the extra review is not installed")
    served = Served(write_run(tmp_path_factory.mktemp("guard")))
    yield served
    served.kill()


ANSWER = {"answers": [{"image": 0, "answer": "none"}]}


def test_the_page_and_its_parts_are_given_to_who_knows_the_token(server: Served) -> None:
    from qurate.review.runs import PARTS

    for path, kind in PARTS.items():
        status, body, headers = server.request("GET", path)
        assert (status, headers["content-type"].partition(";")[0]) == (200, kind)
        assert body
        assert "script-src 'self'" in headers["content-security-policy"]
        assert headers["x-content-type-options"] == "nosniff"
        assert "server" not in headers
    status, body, headers = server.request("GET", "images/0/small")
    assert (status, headers["content-type"], body[:2]) == (200, "image/jpeg", b"\xff\xd8")
    assert len(server.token) >= 40


@pytest.mark.parametrize(
    "path", ["/", "/start", "/wrong-token/", "/wrong-token/start", "//start", "/page.js", "/%2e%2e/"]
)
def test_without_the_token_everything_is_refused(server: Served, path: str) -> None:
    status, body, _ = server.request("GET", path)
    assert (status, b"token" in body) == (403, True)


@pytest.mark.parametrize(
    "headers",
    [
        {"Host": "evil.example"},
        {"Host": "evil.example:80"},
        {"Host": "127.0.0.1"},
        {"Host": ""},
        {"Origin": "http://evil.example"},
        {"Origin": "null"},
        {"Sec-Fetch-Site": "cross-site"},
        {"Sec-Fetch-Site": "same-site"},
    ],
)
@pytest.mark.parametrize("method", ["GET", "POST"])
def test_another_host_origin_or_site_is_refused_even_with_the_token(
    server: Served, method: str, headers: dict[str, str]
) -> None:
    body = ANSWER if method == "POST" else None
    status, said, _ = server.request(method, "answers" if body else "start", body, **headers)
    assert status == 403
    assert said.startswith(b"Refused: ")


@pytest.mark.parametrize("path", ["answers", "undo", "more", "learn", "resume", "../begin"])
def test_a_post_without_an_origin_or_from_another_starts_and_saves_nothing(server: Served, path: str) -> None:
    place = f"/{server.token}/{path.removeprefix('../')}" if path.startswith("..") else path
    assert server.request("POST", place)[0] == 403
    assert server.request("POST", place, {}, Origin="http://evil.example")[0] == 403
    assert server.request("POST", place, {}, Sec_Fetch_Site="cross-site")[0] == 403
    assert server.request("POST", f"/wrong/{path.removeprefix('../')}", {})[0] == 403
    assert server.request("GET", place)[0] == 405
    assert json.loads(server.request("GET", "status")[1])["next"] == []


@pytest.mark.parametrize("path", ["status", "report", "changes", "learn", "question", "", "page.js"])
@pytest.mark.parametrize("number", ["1", "9" * 5000, "-1", "x", "٣"])
def test_a_run_that_is_not_open_is_not_found(server: Served, path: str, number: str) -> None:
    from urllib.parse import quote

    assert server.request("GET", f"/{server.token}/{quote(number)}/{path}")[0] in (404, 405)


@pytest.mark.parametrize("method", ["PUT", "DELETE", "OPTIONS", "PATCH"])
def test_other_methods_are_refused(server: Served, method: str) -> None:
    assert server.request(method, "start")[0] == 403


@pytest.mark.parametrize(
    "path",
    [
        "images/../../../etc/passwd",
        "images/%2e%2e%2f%2e%2e%2fetc%2fpasswd/small",
        "../../etc/passwd",
        "page/../session.py",
        "session.py",
        "images//etc/passwd",
        "images/0/huge",
        "images/18/small",
        "images/-1/small",
        "images/99999999999999999999/small",
        "secrets/0/small",
        "examples/999/small",
    ],
)
def test_no_path_leads_to_a_file_that_is_none_of_the_pages(server: Served, path: str) -> None:
    status, body, _ = server.request("GET", path)
    assert status == 404
    assert b"root" not in body


@pytest.mark.parametrize(
    ("body", "status"),
    [
        ([], 400),
        ({}, 400),
        ({"answers": []}, 400),
        ({"answers": [3]}, 400),
        ({"answers": [{"image": 18, "answer": "none"}]}, 400),
        ({"answers": [{"image": -1, "answer": "none"}]}, 400),
        ({"answers": [{"image": True, "answer": "none"}]}, 400),
        ({"answers": [{"image": 0, "answer": "undo"}]}, 400),
        ({"answers": [{"image": 0, "answer": "label", "label": 3}]}, 400),
        ({"answers": [{"image": 0, "answer": "label", "label": "blue"}]}, 400),
        ({"answers": [{"image": 0, "answer": "none"}, {"image": 0, "answer": "maybe"}]}, 400),
    ],
)
def test_an_answer_that_makes_no_sense_is_refused_and_nothing_is_saved(server: Served, body: Any, status: int) -> None:
    before = json.loads(server.request("GET", "start")[1])["summary"]["answered"]
    found, said, _ = server.request("POST", "answers", body)
    assert found == status
    assert json.loads(said)["problem"]
    assert json.loads(server.request("GET", "start")[1])["summary"]["answered"] == before


def test_a_body_of_another_kind_or_size_is_refused(server: Served) -> None:
    from qurate.review.guard import MOST_BYTES

    assert server.request("POST", "answers", ANSWER, Content_Type="text/plain")[0] == 415
    assert server.request("POST", "answers", ANSWER, Content_Length=str(MOST_BYTES + 1))[0] == 403
    for words in ("label=3&count=5", "label=0&count=999", "label=x&count=5", "label=0", "label=-1&count=5"):
        assert server.request("GET", f"trusted?{words}")[0] == 400


def test_it_listens_on_the_loopback_address_only(server: Served) -> None:
    listening = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    own = [words[1] for words in listening if words[3] == "0A" and int(words[1].split(":")[1], 16) == server.port]
    assert own == [f"0100007F:{server.port:04X}"]
    six = Path("/proc/net/tcp6")
    assert not six.is_file() or f":{server.port:04X} 0000" not in six.read_text()


def test_the_guard_itself_wants_one_host_and_compares_the_whole_token() -> None:
    pytest.importorskip("starlette", reason="the extra review is not installed")
    from qurate.review.guard import Guard

    guard = Guard(None, "secret", 81)  # type: ignore[arg-type]

    def judge(path: str, *hosts: str) -> str:
        headers = [(b"host", host.encode()) for host in hosts]
        return guard.why_refused({"path": path, "method": "GET", "headers": headers})

    assert judge("/secret/", "127.0.0.1:81") == judge("/secret/x", "localhost:81") == ""
    for path in ("/secre/", "/secrets/", "/x/secret/", "", "/SECRET/"):
        assert "token" in judge(path, "127.0.0.1:81")
    assert "host" in judge("/secret/")
    assert "host" in judge("/secret/", "127.0.0.1:81", "evil.example")
