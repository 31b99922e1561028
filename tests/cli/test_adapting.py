"""`qurate adapt --from` as a person meets it."""

from __future__ import annotations

import shutil
from pathlib import Path

import pandas as pd
import pytest
from tests.cli.test_cli import run as run_apart
from tests.cli.test_own_images import ADAPT, command
from tests.cli.test_own_images import place as place
from tests.own_images import BACKBONE
from tests.report.run_pages import Page
from tests.runs.written import write_run

import qurate
from qurate.active.answers import AnswerLog
from qurate.runs.suggestions import make_inquiry, read_run_images
from qurate.runtime.tables import to_csv


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


def test_a_new_target_without_the_source_and_then_its_answers(
    place: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    run, other, better = (str(tmp_path / name) for name in ("run", "other", "better"))
    assert command(place, monkeypatch, *ADAPT, "--no-compare", "--out", run) == 0
    target = ("--labeled", "PLACE/labeled", "--unlabeled", "PLACE/unlabeled")
    few = ("--steps", "15", "--rounds", "2", "--selector", "balanced", "--device", "cpu")
    capsys.readouterr()
    assert command(place, monkeypatch, "adapt", "--from-model", run, *target, *few, "--out", other) == 0
    out = capsys.readouterr().out
    said = f"No source images were used: 18 embeddings were drawn from the class statistics of the model in {run}."
    for words in (said, "Target: 9 labelled images (3 per class), 15 unlabelled.", "On 9 labelled target images"):
        assert words in out
    assert "Source: " not in out
    assert said in (Path(other) / "report.html").read_text(encoding="utf-8")
    assert command(place, monkeypatch, "adapt", "--from", other, "--out", better) == 2
    assert f"{other}/labels.csv: there is no such file" in capsys.readouterr().err
    file = pd.read_csv(f"{other}/predictions.csv")["file"][0]
    answer = {"file": file, "answer": "label", "label": "blue", "predicted": "blue", "asked": "random"}
    AnswerLog(Path(other) / "labels.csv").add([answer])
    assert command(place, monkeypatch, "adapt", "--from", other, "--out", better) == 0
    out = capsys.readouterr().out
    assert (
        f"No source images were used: 18 embeddings were drawn from the class statistics of the model in {other}."
        in out
    )
    assert "People answered about 1 image: 1 got a class and joined the labelled images." in out
    assert command(place, monkeypatch, "adapt", "--from-model", run, "--from", other, *target, "--out", "new") == 2
    assert "--from-model cannot be given beside --from" in capsys.readouterr().err


def test_before_any_run_suggest_gives_the_first_images_to_label_and_adapt_takes_its_table(
    place: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(place)
    first, run = tmp_path / "first.csv", str(tmp_path / "run")
    names = sorted(one.name for one in (place / "source").iterdir() if one.is_dir())
    shutil.copytree(place / "source" / names[0], place / "more" / names[0])
    places = ("--source", "source", "more", "--unlabeled", "unlabeled")
    model = ("--backbone", BACKBONE, "--weights", "w.safetensors")
    assert command(place, monkeypatch, "suggest", *places, "--count", "9", "--out", str(first), *model) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "9 images to label first, 0 of them drawn at random." in said
    assert "if a class has none, add a row with a file and the class." in said
    assert f"adapt --source source more --labeled {first} --unlabeled unlabeled --backbone {BACKBONE}" in said
    table = pd.read_csv(first, dtype=str, keep_default_na=False)
    assert all((tmp_path / file).is_file() for file in table["file"])  # from the folder of the table, as adapt reads it
    table["label"] = [*names, *names, "", "", ""]
    table.to_csv(first, index=False)
    words = ["adapt", *places, "--labeled", str(first), *model, "--steps", "4", "--rounds", "1", "--no-compare"]
    assert command(place, monkeypatch, *words, "--out", run) == 0
    out = " ".join(capsys.readouterr().out.split())
    assert "labeled: 3 files left out, no class is given:" in out
    assert "6 images are also in labeled, by content, and left out of training." in out
    assert {*pd.read_csv(f"{run}/predictions.csv")["label"]} <= set(names)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--source", "source"), "suggest needs RUN, the folder of a finished run; or, before any run,"),
        ((), "suggest needs RUN, the folder of a finished run; or, before any run,"),
        (("run", "--source", "source", "--unlabeled", "unlabeled"), "suggest needs RUN, the folder of a finished run"),
        (("run", "--backbone", "fast"), "--backbone is for --source and --unlabeled: a run has its own backbone."),
        (("--source", "nowhere", "--unlabeled", "unlabeled"), "--source must be"),
        (("--source", "source", "nowhere", "--unlabeled", "unlabeled"), "--source must be"),
        (("--source", "source", "source", "--unlabeled", "unlabeled"), "is given twice"),
    ],
)
def test_suggest_is_about_a_run_or_about_images_before_any(
    words: tuple[str, ...],
    said: str,
    place: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(place)
    assert command(place, monkeypatch, "suggest", *words, "--count", "3", "--out", "table.csv") == 2
    assert said in " ".join(capsys.readouterr().err.split())


def test_the_page_and_suggest_have_one_list_and_suggest_needs_no_torch(
    place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run = tmp_path / "my run"
    assert command(place, monkeypatch, *ADAPT, "--out", str(run)) == 0
    said = capsys.readouterr().out.splitlines()
    assert said[-2:] == [
        f"Next, to label the images that help most, on a page: qurate open '{run}'",
        f"Next, to use the model on other images: qurate predict '{run}' IMAGES --out predictions.csv",
    ]
    page = Page((run / "report.html").read_text(encoding="utf-8"))
    shown = [image["alt"].split(",")[0] for image in page.all("img") if ", perhaps " in image["alt"]]
    out = tmp_path / "to label.csv"
    code, lines, _, loaded = run_apart("suggest", str(run), "--count", "12", "--out", str(out))
    assert (code, "torch" in loaded) == (0, False)
    assert f"qurate adapt --from '{run}' --labels '{out}' --out '{run}-2'" in lines
    table = pd.read_csv(out)
    assert [Path(file).name for file in table["file"]] == shown[:12]
    (run / "suggestions.csv").unlink()
    live = qurate.load(run).suggest(12)
    assert live["file"].tolist() == table["file"].tolist()
    assert live["why"].tolist() == table["why"].tolist()
    answer = {"file": table["file"][0], "answer": "none", "label": "", "predicted": "blue", "asked": "density"}
    AnswerLog(run / "labels.csv").add([answer])
    better = tmp_path / "better"
    assert command(place, monkeypatch, "adapt", "--from", str(run), "--out", str(better)) == 0
    kept = pd.read_csv(better / "suggestions.csv")
    assert table["file"][0] not in set(kept["file"])
    (better / "suggestions.csv").unlink()
    assert qurate.load(better).suggest(12)["file"].tolist() == kept["file"][:12].tolist()


def test_a_new_answer_changes_what_is_asked_next(tmp_path: Path) -> None:
    run = write_run(tmp_path)
    model = qurate.load(run)
    asked = model.suggest(18)
    (run / "suggestions.csv").write_bytes(to_csv(asked.iloc[::-1]))  # another order, to tell it from one just made
    assert model.suggest(3)["file"].tolist() == asked["file"][::-1][:3].tolist()
    assert model.suggest(3, random_share=0.5)["query_strategy"].tolist().count("random") == 2
    answer = {"file": asked["file"][0], "answer": "none", "label": "", "predicted": "blue", "asked": "density"}
    AnswerLog(run / "labels.csv").add([answer])
    after = model.suggest(18)["file"].tolist()
    assert sorted(after) == sorted(asked["file"][1:])
    assert after != asked["file"][:0:-1].tolist()
    (run / "labels.csv").unlink()
    (run / "suggestions.csv").write_text("file\n")  # of another version, or damaged
    assert model.suggest(3)["file"].tolist() == asked["file"][:3].tolist()


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
