from __future__ import annotations

import dataclasses
import subprocess
import sys
from pathlib import Path

import pytest

from qurate.benchmark.demo import digits_config
from qurate.benchmark.results import read_results
from qurate.cli import demo, main
from qurate.config import RunConfig


def test_demo_prints_a_table_and_writes_results(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def short(method: str, *, selector: str, seed: int) -> RunConfig:
        config = digits_config(method, selector=selector, seed=seed, steps=12)
        episode = dataclasses.replace(config.selection.episode, actions=4)
        return dataclasses.replace(config, selection=dataclasses.replace(config.selection, rounds=2, episode=episode))

    monkeypatch.setattr("qurate.benchmark.demo.digits_config", short)
    demo(out=tmp_path / "out", seed=1)
    printed = capsys.readouterr().out
    assert "30 labelled (3 a class)" in " ".join(printed.split())
    for title in ("S+T", "ENT", "MME", "TML", "TML_SPL", "TML_DQNPL"):
        assert title in printed
    table = read_results(tmp_path / "out" / "results.csv")
    assert list(table["method"]) == ["source_target", "ent", "mme", "tml", "tml", "tml"]
    assert list(table["selector"]) == ["none"] * 4 + ["confidence", "dqn"]
    assert list(table["positives"].isna()) == [True] * 4 + [False] * 2
    assert 0 <= table["positives_accuracy"].iloc[-1] <= 1
    with pytest.raises(FileExistsError, match="--force"):
        demo(out=tmp_path / "out")


def test_a_known_error_is_one_line_and_exit_code_2(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "results.csv").touch()
    monkeypatch.setattr(sys, "argv", ["qurate", "demo", "--out", str(tmp_path)])
    with pytest.raises(SystemExit) as stop:
        main()
    assert stop.value.code == 2
    assert "Choose another --out" in " ".join(capsys.readouterr().err.split())


def test_the_command_is_installed_and_helps() -> None:
    result = subprocess.run([sys.executable, "-m", "qurate", "--help"], capture_output=True, text=True, check=True)
    assert "demo" in result.stdout
