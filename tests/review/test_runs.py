"""Runs on the server: how far they are, those that it starts, and two of them side by side."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from tests.own_images import make_folders
from tests.review.asked import PORT, TOKEN, answer, open_runs
from tests.review.served import Served
from tests.review.test_session import make_session
from tests.runs.written import write_run

from qurate.active.answers import read_answers
from qurate.runs.files import COMPARISON_FILE, PROGRESS_FILE
from qurate.runtime.progress import ProgressFile, Silence, process_start

pytest.importorskip("uvicorn", reason="the extra review is not installed")


class Started:
    """In place of a process."""

    def __init__(self, words: list[str]) -> None:
        self.words, self.exit_code, self.said = tuple(words), None, ["a line"]


@pytest.fixture
def runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    from qurate.review.app import ReviewPage

    monkeypatch.setattr("qurate.review.runs.AdaptProcess", Started)
    folder = tmp_path / "run"
    folder.mkdir()
    return open_runs(folder, ReviewPage(make_session(folder), []))


def get(runs: Any, path: str = "status", body: object = None) -> tuple[int, dict[str, Any]]:
    """Status and reply."""
    method, content = ("GET", b"") if body is None else ("POST", json.dumps(body).encode())
    status, said = answer(runs.guarded(TOKEN, PORT), method, path, content)
    return status, json.loads(said)


def write_progress(folder: Path, process: int, began: str) -> None:
    content = {"process": process, "process_began": began, "phase": "training", "done": 3, "total": 9}
    (folder / PROGRESS_FILE).write_text(json.dumps({**content, "seconds_left": None, "lines": ["one", "two"]}))


def test_a_run_is_at_work_as_long_as_the_process_of_its_progress_file_is(runs: Any, tmp_path: Path) -> None:
    own = os.getpid()
    write_progress(tmp_path / "run", own, process_start(own))
    status, said = get(runs)
    assert (status, said["state"], said["phase"], said["lines"]) == (200, "working", "training", ["one", "two"])
    if sys.platform == "linux":
        write_progress(tmp_path / "run", own, "1")
        assert get(runs)[1]["state"] == "stopped", "another process has the number now"
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    write_progress(tmp_path / "run", gone.pid, "")
    assert get(runs)[1]["state"] == "stopped"
    for damaged in ("", "{", "[]", '{"process": "x"}', '{"process": -1, "lines": [], "phase": "", "done": 0}'):
        (tmp_path / "run" / PROGRESS_FILE).write_text(damaged)
        assert get(runs)[1]["state"] == "stopped"
    (tmp_path / "run" / "model.json").write_text("{}")
    assert get(runs)[1]["state"] == "finished"


def test_progress_is_in_the_folder_until_the_run_ends_and_a_folder_made_for_it_goes_too(tmp_path: Path) -> None:
    from qurate.runtime.progress import read_progress

    path = tmp_path / "new" / PROGRESS_FILE
    with suppress(KeyError), ProgressFile(Silence(), path) as progress:
        progress.say("Reading the images ...")
        progress.show("embedding", 1, 10)
        found = read_progress(path)
        assert found is not None
        assert (found["phase"], found["done"], found["total"], found["alive"]) == ("embedding", 1, 10, True)
        assert found["seconds_left"] is None
        progress.show("writing the results", 0, 1, later=70.0)
        found = read_progress(path)
        assert found is not None
        assert found["seconds_left"] == 70.0
        progress.say("next")
        found = read_progress(path)
        assert found is not None
        assert (found["lines"], found["phase"]) == (
            ["Reading the images ...", "embedding: 0 s", "writing the results: 0 s", "next"],
            "",
        )
        raise KeyError
    assert not path.parent.exists()
    path.parent.mkdir()
    with ProgressFile(Silence(), path):
        (path.parent / "config.json").write_text("{}")
    assert [file.name for file in path.parent.iterdir()] == ["config.json"]


def test_learning_starts_one_run_beside_this_one_and_a_reload_finds_it(runs: Any, tmp_path: Path) -> None:
    status, said = get(runs, "learn", {})
    assert (status, said) == (200, {"run": 1})
    process = runs._runs[1].process
    assert process.words == (f"--from={tmp_path / 'run'}", f"--out={tmp_path / 'run-2'}")
    assert get(runs)[1]["next"] == [1]
    status, said = get(runs, "learn", {})
    assert (status, said["problem"]) == (409, "a run is at work already; wait until it is finished")
    process.exit_code = -9
    stopped = runs._runs[1].status(None)
    assert (stopped["state"], stopped["resumable"], stopped["lines"]) == ("stopped", True, ["a line"])
    (tmp_path / "run-2").mkdir()
    write_progress(tmp_path / "run-2", 2**22 + 1, "")
    assert get(runs, "/1/resume", {})[0] == 200
    started = runs._runs[1].status(None)
    assert (started["state"], started["phase"]) == ("working", None), "nothing of the process that was killed"
    assert runs._runs[1].process.words == (*process.words, "--resume")
    assert get(runs, "/1/resume", {})[0] == 409, "it goes on"
    runs._runs[1].process.exit_code = 0
    assert get(runs, "resume", {})[0] == 409, "nothing says how it was started"
    assert get(runs, "learn", {}) == (200, {"run": 2})
    assert get(runs)[1]["next"] == [1, 2], "a newer run does not hide an older one"
    assert get(runs, "/1/resume", {})[0] == 409, "another run is at work"


def test_two_tabs_start_one_run_and_open_a_run_once(runs: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Slow(Started):
        def __init__(self, words: list[str]) -> None:
            time.sleep(0.2)
            super().__init__(words)

    monkeypatch.setattr("qurate.review.runs.AdaptProcess", Slow)
    with ThreadPoolExecutor(2) as pool:
        assert sorted(status for status, _ in pool.map(lambda _: get(runs, "learn", {}), range(2))) == [200, 409]
    assert len(runs._runs) == 2
    switch = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        with ThreadPoolExecutor(8) as pool:
            numbers = list(pool.map(lambda i: runs.add(tmp_path / f"other-{i // 8}"), range(160)))
    finally:
        sys.setswitchinterval(switch)
    assert len(runs._runs) == 2 + len(set(numbers)) == 22


def test_a_model_that_was_written_again_is_loaded_again(tmp_path: Path) -> None:
    from qurate.review.app import ReviewPage
    from qurate.review.runs import OpenRuns

    pages = [ReviewPage(make_session(tmp_path), []) for _ in range(2)]
    (tmp_path / "model.json").write_text("{}")
    (tmp_path / COMPARISON_FILE).write_text("{}")
    left = iter(pages[1:])
    runs = OpenRuns(lambda folder, on_progress: next(left))
    runs.add(tmp_path, pages[0])
    own = os.getpid()
    write_progress(tmp_path, own, process_start(own))
    os.utime(tmp_path / "model.json", ns=(1, 1))
    assert get(runs)[1]["ready"], "the page stays until the run is finished"
    (tmp_path / PROGRESS_FILE).unlink()
    (tmp_path / COMPARISON_FILE).unlink()
    assert get(runs)[1]["state"] == "finished"
    until = time.monotonic() + 30
    while not get(runs)[1]["ready"] and time.monotonic() < until:
        time.sleep(0.01)
    assert runs.opened[0].page is pages[1]


def test_a_model_is_loaded_for_the_page_of_its_own_run_only(runs: Any, tmp_path: Path) -> None:
    (tmp_path / "run-2").mkdir()
    (tmp_path / "run-2" / "config.json").write_text(json.dumps({"continued_from": str(tmp_path / "run")}))
    (tmp_path / "run-2" / "model.json").write_text("{}")
    assert get(runs)[1]["next"] == [1]
    found = get(runs, "/1/status?load=0")[1]
    assert (found["state"], found["loaded"], found["problem"]) == ("finished", None, "")
    assert get(runs, "/1/status")[1]["loaded"] is not None


def test_the_last_words_are_about_all_runs(runs: Any, tmp_path: Path) -> None:
    from qurate.cli.asking import _after_page, _is_begun

    run, second = tmp_path / "run", tmp_path / "run-2"
    assert _after_page(None, None) == "Nothing was started."
    assert _after_page(run, runs) == "No answers were given."
    assert get(runs, "answers", {"answers": [{"image": 3, "answer": "none"}]})[0] == 200
    saved = f"All answers are saved in {run / 'labels.csv'}."
    assert (
        _after_page(run, runs) == f"{saved} Next, to learn from the answers: qurate adapt --from {run} --out {second}"
    )
    get(runs, "learn", {})
    second.mkdir()
    words = _after_page(run, runs)
    assert words.startswith(f"{saved} The run in {second} goes on. Next, to label")
    runs._runs[1].process.exit_code = 0
    assert _after_page(None, runs).startswith(f"{saved} The run in {second} has ended. Next, to label")

    (run / "model.json").write_text("{}")
    (run / COMPARISON_FILE).write_text("{}")
    assert not _is_begun(run), "its model can be used"
    write_progress(run, os.getpid(), process_start(os.getpid()))
    assert _is_begun(run), "its model will be written again"


def test_what_cannot_be_loaded_is_said_and_tried_again_when_the_page_is(tmp_path: Path) -> None:
    from qurate.review.app import ReviewPage
    from qurate.review.runs import OpenRuns

    (tmp_path / "model.json").write_text("{}")
    page, tried = ReviewPage(make_session(tmp_path), []), []

    def load(folder: Path, on_progress: object) -> ReviewPage:
        tried.append(folder)
        if len(tried) == 1:
            raise ZeroDivisionError("by zero")
        return page

    def wait_for(what: str) -> dict[str, Any]:
        until = time.monotonic() + 30
        while not (found := get(runs)[1])[what] and time.monotonic() < until:
            time.sleep(0.01)
        return found

    runs = OpenRuns(load)
    runs.add(tmp_path)
    problem = wait_for("problem")["problem"]
    assert problem == "The model cannot be loaded. ZeroDivisionError: by zero. Mend it and reload this page."
    assert (get(runs)[1]["ready"], len(tried)) == (False, 1), "not with every question"
    answer(runs.guarded(TOKEN, PORT), "GET", "")
    found = wait_for("ready")
    assert (found["ready"], found["problem"]) == (True, "")


def test_a_run_that_stopped_says_the_command_that_continues_it(runs: Any, tmp_path: Path) -> None:
    run = tmp_path / "run"
    places = {name: str(tmp_path) for name in ("source", "labeled", "unlabeled")}
    (run / "config.json").write_text(json.dumps({"places": places}))
    found = get(runs)[1]
    assert (found["state"], found["usable"]) == ("stopped", False)
    assert found["standing"].endswith(
        f"Continue it here, or in a terminal: qurate adapt --config={run}/config.json --out={run} --resume"
    )
    assert found["resumable"]
    (run / "config.json").write_text(json.dumps({"places": places, "labels": "of a file"}))
    assert (get(runs)[1]["resumable"], get(runs, "resume", {})[0]) == (False, 409), "the file is not known"
    (run / "config.json").write_text(json.dumps({"places": places | {"source": str(tmp_path / "gone")}}))
    assert not get(runs)[1]["resumable"]
    before, other = tmp_path / "before", tmp_path / "other.csv"
    before.mkdir()
    (before / "labels.csv").write_text("file,label\n1.png,pen\n")
    other.write_text("file,label\n2.png,pen\n")
    kept = {"places": places, "continued_from": str(before)}
    (run / "config.json").write_text(json.dumps({**kept, "labels": read_answers(other).fingerprint}))
    found = get(runs)[1]
    assert not found["resumable"], "answers of another file than that of the run before"
    assert "Re-run the command with --resume" in found["standing"]
    labels = read_answers(before / "labels.csv").fingerprint
    (run / "config.json").write_text(json.dumps({**kept, "labels": labels}))
    (run / "model.json").write_text("{}")
    (run / COMPARISON_FILE).write_bytes(b"")
    found = get(runs)[1]
    assert (found["state"], found["usable"]) == ("stopped", True)
    assert "the comparison is not" in found["standing"]
    images = ["--source", places["source"], *(f"--{name}={places[name]}" for name in ("labeled", "unlabeled"))]
    words = [f"--from={before}", *images, "--missing=error", f"--out={run}", "--resume"]
    assert found["standing"].endswith(f"qurate adapt {' '.join(words)}")
    of_model = {name: str(tmp_path) for name in ("from_model", "labeled", "unlabeled")}
    (run / "config.json").write_text(json.dumps({**kept, "places": of_model, "labels": labels}))
    assert get(runs)[1]["standing"].endswith(f"qurate adapt {' '.join([words[0], *words[3:]])}"), "no source is named"
    (run / "config.json").write_text(json.dumps({**kept, "labels": labels}))
    assert get(runs, "resume", {}) == (200, {"run": 0})
    assert runs._runs[0].process.words == tuple(words)


def test_a_run_that_another_server_started_is_found_by_its_settings(runs: Any, tmp_path: Path) -> None:
    for name, before in (("run-7", tmp_path / "run"), ("other", tmp_path / "elsewhere")):
        (tmp_path / name).mkdir()
        (tmp_path / name / "config.json").write_text(json.dumps({"continued_from": str(before)}))
    assert get(runs)[1]["next"] == [1]
    assert runs._runs[1].folder == tmp_path / "run-7"
    assert len(runs._runs) == 2


def test_two_runs_side_by_side(runs: Any, tmp_path: Path) -> None:
    def write(folder: Path, labels: str, problems: str, **answers: list[str]) -> None:
        folder.mkdir(exist_ok=True)
        files = [f"{i}.png" for i in range(len(labels))]
        table = pd.DataFrame({"file": files, "label": [*labels], "problem": [*problems], **answers})
        table.replace(" ", "").to_csv(folder / "predictions.csv", index=False)

    write(tmp_path / "before", "aaabbbaaaa", " " * 8 + "x ")
    write(tmp_path / "run", "aabbbcbbb ", " " * 9 + "x", answer=[""] * 6 + ["label", "none", "", ""])
    values = {"images": 20, "before": 0.5, "now": 0.7, "low": 0.05, "high": 0.35}
    rows = [(f"improvement_{name}", "", value) for name, value in values.items()]
    pd.DataFrame(rows, columns=["what", "round", "value"]).to_csv(tmp_path / "run" / "metrics.csv", index=False)
    assert get(runs, "changes") == (200, {"changes": None, "why": ""})
    (tmp_path / "run" / "config.json").write_text(json.dumps({"continued_from": str(tmp_path / "before")}))
    found = get(runs, "changes")[1]["changes"]
    assert (found["before"], found["now"], found["images"], found["changed"]) == ("before", "run", 6, 2)
    assert found["left_out"] == {"answered": 2, "problem": 2}
    assert found["improvement"] == values
    assert "so use the new model" in found["words"]
    assert {one["name"]: (one["before"], one["gone"], one["come"], one["now"]) for one in found["classes"]} == {
        "a": (3, 1, 0, 2),
        "b": (3, 1, 1, 3),
        "c": (0, 0, 1, 1),
    }
    assert {"from": "a", "to": "b", "images": 1} in found["moves"]
    (tmp_path / "before").rename(tmp_path / "moved")
    status, found = get(runs, "changes")
    assert (status, found["changes"]) == (200, None)
    assert f"about {tmp_path / 'before'}, but the two cannot be shown side by side" in found["why"]


def test_the_report_is_shown_in_a_frame_of_the_page_only_and_runs_nothing(tmp_path: Path) -> None:
    run = write_run(tmp_path)
    (run / "report.html").write_text("<p>fine</p>")
    server = Served(run)
    status, body, headers = server.request("GET", "report")
    assert (status, body) == (200, b"<p>fine</p>")
    assert "frame-ancestors 'self'" in headers["content-security-policy"]
    assert "script-src" not in headers["content-security-policy"]
    assert headers["x-frame-options"] == "SAMEORIGIN"
    assert server.request("GET", "status")[2]["x-frame-options"] == "DENY"
    server.kill()


def test_a_run_that_is_started_here_outlives_the_server_and_never_overwrites(tmp_path: Path) -> None:
    places = {name: str(place) for name, place in make_folders(tmp_path).items()}
    server, out = Served(None), tmp_path / "new"
    wrong = {**places, "unlabeled": str(tmp_path / "nowhere"), "out": str(out)}
    query = "&".join(f"{name}={place}" for name, place in wrong.items())
    checked = json.loads(server.request("GET", f"check?{query}")[1])
    assert (checked["ok"], any("nowhere" in line for line in checked["lines"])) == (False, True)
    for body, says in (({**places, "out": str(tmp_path)}, "nothing is overwritten"), (places, "out: a folder")):
        status, said, _ = server.request("POST", "begin", body)
        assert (status, says in json.loads(said)["problem"]) == (400, True)
    status, said, _ = server.request("POST", "begin", {**places, "out": str(out)})
    assert (status, json.loads(said)) == (200, {"run": 0})
    until = time.monotonic() + 300
    while not (out / PROGRESS_FILE).is_file() and time.monotonic() < until:
        time.sleep(0.2)
    process = json.loads((out / PROGRESS_FILE).read_text())["process"]
    server.kill()
    again = Served(out)
    assert json.loads(again.request("GET", "status")[1])["state"] == "working"
    assert again.request("GET", "question?tab=a")[0] == 503
    os.kill(process, signal.SIGKILL)
    while (found := json.loads(again.request("GET", "status")[1]))["state"] == "working" and time.monotonic() < until:
        time.sleep(0.2)
    assert found["state"] == "stopped"
    assert found["standing"]
    again.kill()
