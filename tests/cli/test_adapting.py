"""`qurate adapt --from` as a person meets it."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import pytest
from tests.cli.test_own_images import ADAPT, command
from tests.cli.test_own_images import place as place

import qurate
from qurate.active.answers import AnswerLog
from qurate.runs.suggestions import make_inquiry, read_run_images


def test_suggest_answer_and_go_on(
    place: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    run, better, third = (str(tmp_path / name) for name in ("run", "better", "third"))
    assert command(place, monkeypatch, *ADAPT, "--no-compare", "--out", run) == 0
    assert command(place, monkeypatch, "adapt", "--from", run, "--out", better) == 2
    assert f"{run}/labels.csv: there is no such file" in capsys.readouterr().err
    to_label = tmp_path / "to_label.csv"
    asks = ("suggest", run, "--count", "4", "--random-share", "0.5", "--out", str(to_label))
    assert command(place, monkeypatch, *asks) == 0
    table = pd.read_csv(to_label, dtype=str)
    table["label"] = [table["runner_up"][0], *table["predicted"][1:]]
    table.to_csv(to_label, index=False)
    capsys.readouterr()
    assert command(place, monkeypatch, "adapt", "--from", run, "--labels", str(to_label), "--out", better) == 0
    out = capsys.readouterr().out
    for words in (
        f"4 answers to learn from, 4 with a class. They are about {run}.",
        "round 2 of 2: ",
        f"No comparison was made. This run learns from answers about {run} and repeats neither its",
        "People answered about 4 images: 4 got a class and joined the labelled images.",
        "The model that was asked had been right on 3 of 4 images (75",
        f"Model, predictions and tables: {better}",
    ):
        assert words in out
    assert "comparison: " not in out  # no such phase
    file = next(iter(sorted(set(pd.read_csv(f"{run}/predictions.csv")["file"]) - set(table["file"]))))
    answer = {"file": file, "answer": "none", "label": "", "predicted": "blue", "asked": "check"}
    AnswerLog(Path(better) / "labels.csv").add([answer])
    assert command(place, monkeypatch, "adapt", "--from", better, "--out", third) == 0
    out = capsys.readouterr().out
    assert "1 answer to learn from, 0 with a class, and 4 that the run before had learned from." in out
    assert "People answered about 1 image: 1 is of no class." in out
    assert command(place, monkeypatch, "adapt", "--from", better, "--out", third) == 2
    assert "--force" in capsys.readouterr().err
    assert command(place, monkeypatch, "adapt", "--from", better, "--out", better, "--force") == 2
    assert "--out must be another folder than --from" in capsys.readouterr().err


def test_a_run_with_relative_paths_can_be_used_from_any_folder(
    place: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    run, better, again = (str(tmp_path / name) for name in ("run", "better", "again"))
    monkeypatch.chdir(place)
    here = [word.replace("PLACE/", "") for word in ADAPT]
    assert command(place, monkeypatch, *here, "--no-compare", "--out", run) == 0
    named = list(pd.read_csv(f"{run}/predictions.csv")["file"])
    assert all(file.startswith("unlabeled/") for file in named), "as they were given"
    monkeypatch.chdir(tmp_path)
    assert command(place, monkeypatch, "suggest", run, "--count", "3", "--out", "to_label.csv") == 0
    table = pd.read_csv("to_label.csv", dtype=str)
    assert set(table["file"]) < set(named)
    inquiry = make_inquiry(qurate.load(run), read_run_images(Path(run)))
    assert all(path.is_file() for path in inquiry.paths)
    assert list(inquiry.files) == named
    table.assign(label=table["predicted"]).to_csv("to_label.csv", index=False)
    assert command(place, monkeypatch, "adapt", "--from", run, "--labels", "to_label.csv", "--out", better) == 0
    assert "3 answers to learn from, 3 with a class." in capsys.readouterr().out
    assert command(place, monkeypatch, "adapt", "--config", f"{run}/config.json", "--out", again) == 0
    assert Path(again, "model.safetensors").read_bytes() == Path(run, "model.safetensors").read_bytes()
    server = pytest.importorskip("qurate.review.server", reason="needs the extra: pip install 'qurate[review]'")
    assert all(example.file.is_file() for example in server.read_examples(Path(run)))
