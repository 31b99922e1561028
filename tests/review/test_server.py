"""The server as a person starts and stops it."""

from __future__ import annotations

import json
import os
import signal
import socket
import sys
from pathlib import Path

import pandas as pd
import pytest
from tests.review.served import Served
from tests.runs.written import write_run

from qurate.active.answers import AnswerLog
from qurate.errors import ConfigError
from qurate.runtime.tables import to_csv

pytest.importorskip("uvicorn", reason="the extra review is not installed")


def test_it_stops_by_a_signal_with_one_line_and_all_answers_saved(tmp_path: Path) -> None:
    run = write_run(tmp_path)
    (run / "examples.csv").unlink()  # as in a run of an earlier version
    server = Served(run)
    started = json.loads(server.request("GET", "start")[1])
    assert started["examples"] == [[], [], []]
    question = json.loads(server.request("GET", "question?tab=a")[1])["question"]
    body = {"answers": [{"image": question["image"], "answer": "label", "label": 2}]}
    assert server.request("POST", "answers", body)[0] == 200
    server.process.send_signal(signal.SIGTERM)
    said = server.end()
    assert server.process.returncode == 143
    learn = f"qurate adapt --from {run} --out {run}-2"
    assert started["command"] == learn
    saved = f"stopped. All answers are saved in {run / 'labels.csv'}."
    assert said.rstrip().endswith(f"{saved} Next, to learn from the answers: {learn}")
    assert [answer.label for answer in AnswerLog(run / "labels.csv").current().values()] == ["été"]


@pytest.mark.skipif(sys.platform != "linux", reason="names of files are valid text elsewhere")
def test_a_name_that_is_no_valid_text_is_shown(tmp_path: Path) -> None:
    run = write_run(tmp_path, unlabeled=1)
    table = pd.read_csv(run / "predictions.csv")
    for number, file in enumerate(table["file"]):
        strange = Path(file).with_name(f"caf\udce9{number}.png")
        Path(file).rename(strange)
        table.loc[number, "file"] = str(strange)
    (run / "predictions.csv").write_bytes(to_csv(table))
    (run / "positives.csv").write_bytes(to_csv(pd.read_csv(run / "positives.csv").head(0)))
    server = Served(run, "--query-strategy", "random")
    status, body, *_ = server.request("GET", "question?tab=a")
    server.kill()
    assert status == 200
    assert "caf\udce9" in json.loads(body)["question"]["file"]


def test_a_port_that_is_taken_is_refused_in_words() -> None:
    from qurate.review.server import listen

    with listen(0) as first:
        first.listen()
        port = first.getsockname()[1]
        with pytest.raises(ConfigError, match=rf"`port={port}` cannot be used \(Address already in use\)"):
            listen(port)


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="there are no pipes here")
def test_ctrl_c_ends_it_with_uploads_in_flight_and_a_labels_file_that_blocks(tmp_path: Path) -> None:
    server = Served(write_run(tmp_path))
    head = f"POST /{server.token}/answers HTTP/1.1\r\nHost: 127.0.0.1:{server.port}\r\nContent-Length: 1000\r\n"
    head += f"Origin: http://127.0.0.1:{server.port}\r\nContent-Type: application/json\r\n\r\n"
    for _ in range(2):  # clients that go away
        with socket.create_connection(("127.0.0.1", server.port)) as gone:
            gone.sendall(f"{head}{{".encode())
    with socket.create_connection(("127.0.0.1", server.port)) as odd:
        odd.sendall(b"\0\xff no HTTP\r\n\r\n")
    uploads = [socket.create_connection(("127.0.0.1", server.port)) for _ in range(3)]
    for upload in uploads:
        upload.sendall(f"{head}{{".encode())
    os.mkfifo(tmp_path / "run" / "labels.csv")
    status, body, _ = server.request("GET", "start")
    assert (status, b"not a regular file" in body) == (500, True)
    assert server.request("GET", f"images/{'9' * 5000}/small")[0] == 404
    server.process.send_signal(signal.SIGINT)
    said = server.end()
    for upload in uploads:
        upload.close()
    assert server.process.returncode == 130
    after = said.partition("as it is given.")[2].strip().splitlines()
    assert len(after) == 1, after
    assert after[0].startswith("qurate: stopped. All answers are saved in")
