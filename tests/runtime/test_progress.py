"""What a person sees of a run, wherever they sit."""

from __future__ import annotations

import io
import re
import sys
from types import SimpleNamespace
from typing import Any

import pytest
from rich.console import Console

from qurate.runtime import progress
from qurate.runtime.progress import PhaseBars, follow, say_pace, seconds_left


def show_a_run(console: Console) -> None:
    with PhaseBars(console) as bars:
        bars.say("3 classes: [blue], red.")
        for done in range(5):
            bars.show("embedding [1]", done, 4)
        bars.show("pre-training", 1, 10)


def test_a_terminal_has_bars_and_a_line_for_each_phase() -> None:
    file = io.StringIO()
    show_a_run(Console(file=file, force_terminal=True, force_jupyter=False, width=100))
    seen = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", file.getvalue())
    assert "3 classes: [blue], red." in seen
    assert re.search(r"pre-training ━+ +[01]/10", seen)
    assert "embedding [1]: 0 s" in seen
    assert "pre-training: 0 s" in seen


def test_elsewhere_there_is_a_line_for_each_phase() -> None:
    file = io.StringIO()
    show_a_run(Console(file=file, force_terminal=False, force_jupyter=False, width=100))
    assert file.getvalue() == "3 classes: [blue], red.\nembedding [1]: 0 s\npre-training: 0 s\n"


def test_a_long_phase_has_a_line_now_and_then_with_its_pace(monkeypatch: pytest.MonkeyPatch) -> None:
    file, clock = io.StringIO(), [0.0]
    monkeypatch.setattr(progress, "time", SimpleNamespace(perf_counter=lambda: clock[0]))
    with PhaseBars(Console(file=file, force_terminal=False, force_jupyter=False, width=100)) as bars:
        for second in range(151):
            clock[0] = float(second)
            bars.show("embedding", 40_000 + 400 * second, 100_000)  # 40,000 were there already
    assert file.getvalue().splitlines() == [
        "embedding: 64000 of 100000, 400 per second, 2 min left",
        "embedding: 88000 of 100000, 400 per second, 30 s left",
        "embedding: 150 s",
    ]


@pytest.mark.parametrize(
    ("done", "first", "seconds", "later", "left"),
    [
        (0, 0, 5.0, 0.0, None),
        (10, 0, 0.5, 9.0, None),
        (10, 0, 4.0, 0.0, 4.0),
        (15, 10, 4.0, 0.0, 4.0),  # it was resumed
        (10, 0, 4.0, 56.0, 60.0),
        (0, 0, 0.0, 75.0, 75.0),  # its own time is in it
        (10, 10, 5.0, 75.0, None),
    ],
)
def test_the_time_left_is_known_once_something_is_done_or_expected(
    done: int, first: int, seconds: float, later: float, left: float | None
) -> None:
    assert seconds_left(done, 20, first, seconds, later) == left


@pytest.mark.parametrize(
    ("rate", "left", "said"),
    [
        (2.5, 4.0, "2.5 per second, 4 s left"),
        (64.0, 100.0, "64 per second, 2 min left"),
        (5.0, 19_980.0, "5.0 per second, 5.5 h left"),
    ],
)
def test_a_pace_in_words(rate: float, left: float, said: str) -> None:
    assert say_pace(rate, left) == said


def test_the_time_left_counts_what_comes_later() -> None:
    file = io.StringIO()
    with PhaseBars(Console(file=file, force_terminal=True, force_jupyter=False, width=100)) as bars:
        bars.show("writing the results", 0, 1, later=75.0)
        bars._progress.refresh()
    seen = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", file.getvalue())
    assert re.search(r"writing the results ━+ +0/1 +0:01:15 left", seen)


def test_a_notebook_has_one_line_for_each_phase_that_is_written_again(monkeypatch: pytest.MonkeyPatch) -> None:
    shown: list[list[str]] = []

    def display(what: Any, **options: Any) -> Any:
        text = what["text/plain"] if isinstance(what, dict) else what._repr_mimebundle_([], [])["text/plain"]
        shown.append([text.strip()])
        line = shown[-1]
        return SimpleNamespace(update=lambda again, raw: line.append(again["text/plain"]))

    module = SimpleNamespace(display=display)
    monkeypatch.setitem(sys.modules, "IPython", SimpleNamespace(display=module))
    monkeypatch.setitem(sys.modules, "IPython.display", module)
    monkeypatch.setattr(progress, "_NOTEBOOK_SECONDS", 0.0)
    show_a_run(Console(force_jupyter=True))
    said, embedding, training = shown
    assert said == ["3 classes: [blue], red."]
    assert embedding[2] == "embedding [1] ████████████░░░░░░░░░░░░ 2/4"
    assert embedding[-1] == "embedding [1]: 0 s"
    assert training == ["pre-training ██░░░░░░░░░░░░░░░░░░░░░░ 1/10", "pre-training: 0 s"]


def test_an_interrupted_phase_is_not_said_to_be_done() -> None:
    file = io.StringIO()

    def stop() -> None:
        with PhaseBars(Console(file=file, force_terminal=False, force_jupyter=False)) as bars:
            bars.show("embedding", 1, 4)
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        stop()
    assert file.getvalue() == ""


def test_silence_says_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    with follow(False) as reporter:
        reporter.say("a line")
        reporter.show("a phase", 1, 2)
    assert capsys.readouterr().out == ""
