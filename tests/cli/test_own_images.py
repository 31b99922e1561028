"""The verbs for your own images as a person meets them."""

from __future__ import annotations

import json
import re
import shutil
import signal
import sys
import warnings
from pathlib import Path

import pandas as pd
import pytest
from tests.own_images import BACKBONE, make_folders, save_weights

from qurate.cli import VERBS, run_verb
from qurate.cli.terminal import name_options
from qurate.data.domains import DataWarning


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("own")
    make_folders(root)
    save_weights(root / "w.safetensors")
    return root


def command(place: Path, monkeypatch: pytest.MonkeyPatch, *words: str, cache: str = "") -> int:
    """The exit code of `qurate WORDS`; PLACE in them is the folder of the images."""
    monkeypatch.setenv("QURATE_CACHE", cache or str(place / "cache"))
    monkeypatch.setattr(sys, "argv", ["qurate", *[word.replace("PLACE", str(place)) for word in words]])
    try:
        run_verb()
    except SystemExit as stop:
        return int(stop.code or 0)
    return 0


ADAPT = (
    *("adapt", "--source", "PLACE/source", "--labeled", "PLACE/labeled", "--unlabeled", "PLACE/unlabeled"),
    *("--backbone", BACKBONE, "--weights", "PLACE/w.safetensors", "--steps", "15", "--rounds", "2"),
    *("--selector", "balanced", "--device", "cpu"),
)


def test_adapt_then_predict_evaluate_and_check(
    place: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    run = tmp_path / "run [1]"  # brackets mean something to rich
    assert command(place, monkeypatch, *ADAPT, "--out", str(run)) == 0
    out = capsys.readouterr().out
    for words in (
        "3 classes: 'blue', 'green tea', 'été'.",
        "Target: 9 labelled images (3 per class), 15 unlabelled.",
        "embedding: ",
        "round 2 of 2: ",
        "S+T on all labelled images: ",
        "On 9 labelled target images that neither was trained on (k-fold over the labelled images) the adapted model",
        "Compared with plain training (S+T), which learns from the labelled images alone, the adapted model's accuracy",
        "The model's probabilities are calibrated on 9 held-out images (temperature ",
        f"Open {run}/report.html in a browser",
    ):
        assert words in out
    table = tmp_path / "p.csv"
    assert command(place, monkeypatch, "predict", str(run), "PLACE/unlabeled", "--out", str(table)) == 0
    out = capsys.readouterr().out
    assert "15 images predicted, 0 unreadable." in out
    assert "The probabilities are calibrated on 9 held-out images" in out
    assert len(pd.read_csv(table)) == 15
    assert command(place, monkeypatch, "predict", str(run), "PLACE/unlabeled", "--out", str(table)) == 2
    assert "--force" in capsys.readouterr().err
    confusion = tmp_path / "c.csv"
    arguments = ("evaluate", str(run), "--labeled", "PLACE/labeled", "--confusion", str(confusion))
    assert command(place, monkeypatch, *arguments) == 0
    out = capsys.readouterr().out
    assert "balanced accuracy" in out
    assert re.search(r"expected calibration error [\d.]+ points \([\d.]+ before calibration\)\.", out)
    assert pd.read_csv(confusion).set_index("true class").to_numpy().sum() == 9
    assert command(place, monkeypatch, *arguments) == 2
    assert f"{confusion} exists. Choose another --confusion, or pass --force" in capsys.readouterr().err
    assert command(place, monkeypatch, *arguments, "--force") == 0
    capsys.readouterr()
    shutil.copytree(place / "labeled", tmp_path / "open")
    shutil.copytree(place / "unlabeled", tmp_path / "open" / "none")
    assert command(place, monkeypatch, "evaluate", str(run), "--labeled", str(tmp_path / "open")) == 0
    out = " ".join(capsys.readouterr().out.split())
    assert "on 9 images." in out
    assert re.search(r"15 more images are of no class \('none'\)\. An image of a class .* in [\d.]+% of pairs", out)
    assert command(place, monkeypatch, "check", *ADAPT[1:7]) == 0
    out = capsys.readouterr().out
    assert "checking images: " in out
    folders = " ".join(f"--{part} {place / part}" for part in ("source", "labeled", "unlabeled"))
    assert out.splitlines()[-1] == f"Next, to adapt to these images: qurate adapt {folders} --out run"


@pytest.mark.filterwarnings("default::qurate.data.domains.DataWarning")  # told, not raised, as it is for a user
def test_embed_ahead_then_no_verb_embeds_again(
    place: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "broken.jpg").write_bytes(b"not an image")
    network = ("--backbone", BACKBONE, "--weights", "PLACE/w.safetensors", "--cache", str(tmp_path / "cache"))
    everything = ("embed", "PLACE/source", "PLACE/labeled", "PLACE/unlabeled", str(tmp_path / "broken.jpg"), *network)
    assert command(place, monkeypatch, *everything) == 0
    out, err = capsys.readouterr()
    assert re.search(r"(\d+) embeddings, \1 of them new in \d+ s", out)
    assert "1 of " in err
    assert "broken.jpg" in err
    assert command(place, monkeypatch, *everything) == 0
    assert "embeddings, 0 of them new. Cache: " in capsys.readouterr().out
    assert command(place, monkeypatch, "embed") == 2
    assert "embed needs one or more IMAGES" in capsys.readouterr().err

    def refuse(*_: object) -> None:
        raise AssertionError("embedded again")

    place_cache, run = str(tmp_path / "cache"), str(tmp_path / "run")
    monkeypatch.setattr("qurate.embedding.embed.on_cores", refuse)
    for words in (
        (*ADAPT, "--selector", "dqn", "--out", run),
        ("predict", run, "PLACE/unlabeled", "--out", str(tmp_path / "p.csv")),
        ("evaluate", run, "--labeled", "PLACE/labeled"),
    ):
        assert command(place, monkeypatch, *words, cache=place_cache) == 0
    assert re.search(r"^Expected memory: about [\d.]+ GB\.$", capsys.readouterr().out, re.MULTILINE)


def test_the_config_of_a_run_repeats_it(
    place: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    first, again, alone, other = (tmp_path / name for name in ("first", "again", "alone", "other"))
    assert command(place, monkeypatch, *ADAPT, "--no-compare", "--out", str(first)) == 0
    parts, settings = ADAPT[:7], ("--config", str(first / "config.json"))
    assert command(place, monkeypatch, *parts, *settings, "--out", str(again)) == 0
    assert json.loads((again / "config.json").read_text()) == json.loads((first / "config.json").read_text())
    assert (again / "predictions.csv").read_bytes() == (first / "predictions.csv").read_bytes()
    assert command(place, monkeypatch, "adapt", *settings, "--out", str(alone)) == 0  # it knows where its images are
    assert (alone / "config.json").read_bytes() == (first / "config.json").read_bytes()
    assert (alone / "model.safetensors").read_bytes() == (first / "model.safetensors").read_bytes()
    changed = ("--seed", "3", "--steps", "7", "--rounds", "1")
    assert command(place, monkeypatch, *parts, *settings, *changed, "--out", str(other)) == 0
    run = json.loads((other / "config.json").read_text())["run"]
    assert (run["seed"], run["training"]["steps"], run["selection"]["rounds"]) == (3, 7, 1)
    capsys.readouterr()
    assert command(place, monkeypatch, *parts, *settings, "--selector", "dqn", "--out", str(tmp_path / "x")) == 2
    assert f"--selector cannot be given beside --config: edit {first}/config.json" in capsys.readouterr().err


def test_a_config_may_be_toml(place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file, run = tmp_path / "mine.toml", tmp_path / "run"
    file.write_text("seed = 4\n[network]\nbottleneck = 'normalized'\nfeatures = 16\n[training]\nsteps = 6\n")
    network = ("--backbone", BACKBONE, "--weights", "PLACE/w.safetensors")
    assert command(place, monkeypatch, *ADAPT[:7], *network, "--config", str(file), "--out", str(run)) == 0
    stored = json.loads((run / "config.json").read_text())
    assert (stored["run"]["seed"], stored["run"]["network"]["features"], stored["backbone"]) == (4, 16, BACKBONE)


def test_the_preset_of_the_paper_is_a_word_of_adapt(
    place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = [word for word in ADAPT if word not in ("--selector", "balanced")]
    few = ("--rounds", "1", "--no-compare", "--out", str(tmp_path))
    assert command(place, monkeypatch, *words, *few, "--preset", "paper", "--method", "TML_DQNPL") == 0
    assert '"optimizer": "sgd"' in (tmp_path / "config.json").read_text()


def test_errors_of_adapt_are_one_line_and_exit_code_2(
    place: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "model.safetensors").touch()
    for words, said in (
        ((*ADAPT, "--out", str(tmp_path / "file")), "--out must be a folder, got"),
        (
            (*ADAPT, "--out", str(tmp_path / "r"), "--source", "PLACE/nowhere"),
            "source must be a folder of class folders",
        ),
        ((*ADAPT, "--out", str(tmp_path / "r"), "--method", "best"), "method must be one of source_target, "),
        ((*ADAPT, "--out", str(tmp_path / "r"), "--weights", "nowhere.pth"), "no such weight file"),
        ((*ADAPT, "--out", "/proc/qurate"), "got /proc/qurate, where nothing can be written: "),
        (("predict", str(tmp_path), "PLACE/unlabeled", "--out", str(tmp_path / "p.csv")), "folder of a finished run"),
    ):
        assert command(place, monkeypatch, *words) == 2
        err = capsys.readouterr().err
        assert said in err
        assert err.count("\n") == 1


def test_a_warning_is_one_line(
    place: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def warn(run: Path) -> None:
        with warnings.catch_warnings(action="default"):
            warnings.warn("2 images are broken [sic].", DataWarning, stacklevel=1)

    monkeypatch.setitem(VERBS, "demo", warn)
    assert command(place, monkeypatch, "demo", "--run", "x") == 0
    assert capsys.readouterr().err == "qurate: warning: 2 images are broken [sic].\n"


def test_control_c_says_how_to_continue(
    place: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(*arguments: object, **more: object) -> None:
        raise KeyboardInterrupt

    run = tmp_path / "run"
    with monkeypatch.context() as patch:
        patch.setattr("qurate.runs.pipeline.compare_with_baseline", interrupt)
        assert command(place, patch, *ADAPT, "--out", str(run)) == 130
    assert capsys.readouterr().err == (
        f"qurate: stopped. The model in {run} is finished and can be used; the comparison is not. Re-run the command "
        "with --resume to continue.\n"
    )
    assert command(place, monkeypatch, *ADAPT, "--out", str(run), "--resume") == 0
    out = capsys.readouterr().out
    assert "pre-training" not in out
    assert "comparison" in out


def test_a_signal_is_one_line_whatever_becomes_of_it(
    place: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def stopped(run: Path) -> None:
        try:
            signal.raise_signal(signal.SIGTERM)
        except KeyboardInterrupt:
            raise KeyError(1) from None  # as a library may

    monkeypatch.setitem(VERBS, "demo", stopped)
    assert command(place, monkeypatch, "demo", "--run", "x") == 143
    assert capsys.readouterr().err == "qurate: stopped.\n"
    assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("adapt", "--source", "", "--labeled", "a"), "--source is empty; is a variable unset?"),
        (("predict", "", "a", "--out", "b"), "an argument is empty; is a variable unset?"),
        (("adapt", "--out=", "--source", "a"), "--out is empty; is a variable unset?"),
        ((*ADAPT, "--out", "r", "--seed", "-1"), "--seed must be between 0 and 4294967295, got -1"),
        ((*ADAPT, "--out", "r", "--steps", "0"), "--steps must be between 1 and 1000000, got 0"),
        ((*ADAPT, "--out", "r", "--rounds", "-3"), "--rounds must be between 1 and 1000000, got -3"),
        ((*ADAPT, "--out", "r", "--source", "PLACE/source/blue/0.png"), "0.png (an image)"),
        ((*ADAPT, "--out", "r", "--source", "PLACE/source/blue", "--unlabeled", "x" * 5000), "(does not exist)"),
        ((*ADAPT, "--out", "r", "--weights", "none"), "would embed with random weights. Pass --weights pretrained"),
        ((*ADAPT, "--out", "x" * 5000), "File name too long"),
        (("predict", "PLACE/nowhere", "PLACE/unlabeled", "--out", "p.csv"), "folder of a finished run"),
        (("evaluate", "PLACE/nowhere", "--labeled", "PLACE/nowhere"), "--labeled must be a folder of class folders"),
        (("export", "PLACE/nowhere"), "folder of a finished run"),
        (("embed", "PLACE/sour*"), "got none at"),
        (("embed", "PLACE/source", "--cache", "PLACE/w.safetensors"), "--cache must be a folder"),
    ],
)
def test_every_argument_is_judged_first(
    place: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    words: tuple[str, ...],
    said: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    assert command(place, monkeypatch, *words) == 2
    err = capsys.readouterr().err
    assert said in err
    assert err.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


def test_classes_that_differ_are_dropped_as_the_error_says(
    place: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copytree(place / "source", tmp_path / "source")
    shutil.copytree(place / "source" / "blue", tmp_path / "source" / "other")
    words = (*ADAPT, "--source", str(tmp_path / "source"), "--no-compare", "--out", str(tmp_path / "run"))
    assert command(place, monkeypatch, *words) == 2
    assert "or pass --missing drop to keep those that both have" in capsys.readouterr().err
    assert command(place, monkeypatch, *words, "--missing", "drop") == 0


@pytest.mark.filterwarnings("default::qurate.embedding.cache.EmbeddingCacheWarning")  # told, as it is for a user
def test_a_cache_that_cannot_be_written_is_done_without(
    place: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    run, cache = str(tmp_path / "run"), "/proc/qurate"
    assert command(place, monkeypatch, *ADAPT, "--no-compare", "--out", run, cache=cache) == 0
    out, err = capsys.readouterr()
    assert err.count("the embedding cache cannot be written") == err.count("\n") == 1
    assert "No comparison was made. The comparison with plain training (S+T) was switched off." in out
    table = str(tmp_path / "p.csv")
    assert command(place, monkeypatch, "predict", run, "PLACE/unlabeled", "--out", table, cache=cache) == 0
    assert capsys.readouterr().err.count("the embedding cache cannot be written") == 1
    network = ("--backbone", BACKBONE, "--weights", "PLACE/w.safetensors")
    assert command(place, monkeypatch, "embed", "PLACE/source", *network, cache=cache) == 2
    assert "the embedding cache cannot be written" in capsys.readouterr().err


def test_nothing_to_embed_is_an_error(
    place: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "a.jpg").write_text("no image")
    network = ("--backbone", BACKBONE, "--weights", "PLACE/w.safetensors")
    assert command(place, monkeypatch, "embed", str(tmp_path), *network) == 2
    assert "none of the 1 images can be read" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("message", "said"),
    [
        ("Pass `missing='drop'`, or choose another `out`.", "Pass --missing drop, or choose another --out."),
        ("`force=True` or `compare=False`, `weights=FILE`", "--force or --no-compare, --weights FILE"),
        ("`timm.list_models(pretrained=True)` lists them", "`timm.list_models(pretrained=True)` lists them"),
    ],
)
def test_errors_name_options(message: str, said: str) -> None:
    assert name_options(message) == said
