"""Commands that make sense next."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest

from qurate.runtime.commands import NextStep, free_name, learn_from


def test_a_command_is_quoted_for_the_shell() -> None:
    words = ("open", "it's $HOME; a run")
    assert shlex.split(NextStep("answer", words).command) == ["qurate", *words]
    assert NextStep("answer", words).line.startswith("Next, to answer: qurate open '")


@pytest.mark.parametrize(
    ("there", "wanted", "found"),
    [
        ((), "run", "run"),
        (("run",), "run", "run-2"),
        (("run", "run-2"), "run", "run-3"),
        (("run-7",), "run-7", "run-8"),
        (("my-run",), "my-run", "my-run-2"),
        (("run-²",), "run-²", "run-²-2"),
    ],
)
def test_a_name_that_is_free(
    there: tuple[str, ...], wanted: str, found: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in there:
        (tmp_path / name).mkdir()
    assert free_name(wanted) == found


def test_a_run_that_learns_goes_beside_the_one_that_it_learns_from(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = tmp_path / "run"
    run.mkdir()
    monkeypatch.chdir(run)
    assert learn_from(".").words == ("adapt", "--from", ".", "--out", f"{run}-2")
    words = ("--from", str(run), "--labels", "a.csv", "--out", f"{run}-2")
    assert learn_from(run, "--labels", "a.csv").words == ("adapt", *words)
