"""`qurate demo` and `qurate benchmark` as a person meets them."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.benchmark.tiny_grid import InlineExecutor, SmallRunner, run_grid, tiny_grid
from tests.data.tiny_suite import make_listed
from tests.own_images import save_weights

from qurate.benchmark.cell import Cell, CellResult
from qurate.benchmark.executors import Executor
from qurate.benchmark.folder import BenchmarkFolder
from qurate.benchmark.progress import TimeEstimate, estimate
from qurate.benchmark.results import read_results
from qurate.cli import run_verb
from qurate.cli.benchmarks import demo
from qurate.data.suites import load_suite
from qurate.errors import QurateError
from qurate.runtime.progress import say_time

WORDS = ("benchmark", "--suite", "digits", "--methods", "ent", "--seeds", "0", "--steps", "6", "--device", "cpu")


def command(monkeypatch: pytest.MonkeyPatch, *words: str, worker: SmallRunner | None = None) -> int:
    """The exit code; cells run in this process."""

    def executor(given: object, gpus: str | None) -> Executor:
        return InlineExecutor(worker or given)  # type: ignore[arg-type]  # the command's worker

    monkeypatch.setattr("qurate.benchmark.executors.ProcessExecutor", executor)
    monkeypatch.setattr(sys, "argv", ["qurate", *words])
    try:
        run_verb()
    except SystemExit as stop:
        return int(stop.code or 0)
    return 0


def test_demo_prints_a_table_and_writes_results(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    demo(out=tmp_path / "out", seed=1, steps=12)
    printed = capsys.readouterr().out
    assert "30 labelled (3 per class)" in " ".join(printed.split())
    for title in ("S+T", "ENT", "MME", "TML", "TML_SPL", "TML + adaptive", "TML_DQNPL*"):
        assert title in printed
    table = read_results(tmp_path / "out" / "results.csv")
    assert list(table["method"]) == ["source_target", "ent", "mme", "tml", "tml", "tml", "tml"]
    assert list(table["selector"]) == ["none"] * 4 + ["confidence", "adaptive", "dqn"]
    assert list(table["positives"].isna()) == [True] * 4 + [False] * 3
    assert list(table["positives_accuracy"].isna()) == [True] * 4 + [False] * 3
    with pytest.raises(QurateError, match="force=True"):
        demo(out=tmp_path / "out")


def test_a_known_error_is_one_line_and_exit_code_2(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "results.csv").touch()
    monkeypatch.setattr(sys, "argv", ["qurate", "demo", "--out", str(tmp_path)])
    with pytest.raises(SystemExit) as stop:
        run_verb()
    assert stop.value.code == 2
    assert "Choose another --out" in " ".join(capsys.readouterr().err.split())


def test_each_imbalance_is_run_and_named_and_a_wrong_one_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    words = (*WORDS, "--selectors", "none", "--out", str(tmp_path), "--imbalance")
    assert command(monkeypatch, *words, "1,20", worker=SmallRunner()) == 0
    out = capsys.readouterr().out
    assert "1/2  typeset:handwritten 3-shot ent none seed 0: " in out
    assert "2/2  typeset:handwritten 3-shot imbalance 20 ent none seed 0: " in out
    assert list(read_results(tmp_path / "results.csv")["imbalance"]) == [1, 20]
    assert command(monkeypatch, *words, "0", worker=SmallRunner()) == 2
    assert "--imbalance must be between 1 and" in " ".join(capsys.readouterr().err.split())


def test_hidden_classes_are_run_and_named_and_too_many_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    words = (*WORDS, "--selectors", "none", "--out", str(tmp_path))
    hidden = ("--unknown", "0,4", "--missing-classes", "1")
    assert command(monkeypatch, *words, *hidden, worker=SmallRunner()) == 0
    out = capsys.readouterr().out
    assert "1/2  typeset:handwritten 3-shot missing 1 ent none seed 0: " in out
    assert "2/2  typeset:handwritten 3-shot unknown 4 missing 1 ent none seed 0: " in out
    results = read_results(tmp_path / "results.csv")
    assert (list(results["unknown"]), list(results["missing_classes"])) == ([0, 4], [1, 1])
    assert command(monkeypatch, *words, "--unknown", "9", worker=SmallRunner()) == 2
    assert "--unknown and --missing-classes: of 10 classes at least two" in " ".join(capsys.readouterr().err.split())


def test_a_benchmark_prints_its_cells_and_says_what_it_compared(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    words = (*WORDS, "--selectors", "none,random", "--model-selection", "last,snd", "--out", str(tmp_path))
    assert command(monkeypatch, *words, worker=SmallRunner()) == 0
    out = capsys.readouterr().out
    assert "Digits: 2 cells, 0 of them already finished." in out
    assert "1/2  typeset:handwritten 3-shot ent none seed 0: " in out
    assert f"Results: {tmp_path}/results.csv" in out
    facts = json.loads((tmp_path / "benchmark.json").read_text())
    assert (facts["suite"], facts["suite_title"], facts["protocol"], facts["backbone"]) == (
        *("digits", "Digits"),
        *("drawn", "digits"),
    )
    assert facts["model_selection"]["last"] == "the last model"
    assert len((tmp_path / "results.csv").read_text().splitlines()) == 1 + 4
    assert command(monkeypatch, *words, worker=SmallRunner()) == 0
    out = capsys.readouterr().out
    assert "Digits: 2 cells, 2 of them already finished." in out
    assert "of other commands" not in out
    one = tuple("none" if word == "none,random" else word for word in words)
    assert command(monkeypatch, *one, worker=SmallRunner()) == 0
    assert "Not in it: 1 finished cell of other commands or versions in this folder." in " ".join(
        capsys.readouterr().out.split()
    )


def test_failed_cells_are_told_at_the_end_with_exit_code_1(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    class Broken(SmallRunner):
        def read(self, cell: object) -> object:  # type: ignore[override]
            raise OSError("the disk is gone")

    assert command(monkeypatch, *WORDS, "--selectors", "none", "--out", str(tmp_path), worker=Broken()) == 1
    out = capsys.readouterr().out
    assert "FAILED: OSError: the disk is gone" in out
    assert "error.txt" in out
    assert "1 of 1 cell failed. Re-run the command to try them again." in out


def test_control_c_says_how_to_resume(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    class Stopped(SmallRunner):
        def run(self, cell: object) -> CellResult:
            raise KeyboardInterrupt

    assert command(monkeypatch, *WORDS, "--selectors", "none", "--out", str(tmp_path), worker=Stopped()) == 130
    assert capsys.readouterr().err == "qurate: stopped. Finished: 0 of 1 cell. Re-run the command to resume.\n"


def test_a_dry_run_lists_cells_and_runs_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    words = (*WORDS, "--selectors", "none,random", "--out", str(tmp_path / "out"))
    assert command(monkeypatch, *words, "--dry-run") == 0
    out = capsys.readouterr().out
    assert out.count("typeset:handwritten 3-shot ent") == 2
    assert "2 cells to run: about" in out
    assert "2 by a few training steps on this machine" in out
    assert not (tmp_path / "out").exists()
    assert command(monkeypatch, *words, worker=SmallRunner()) == 0
    capsys.readouterr()
    assert command(monkeypatch, *words, "--dry-run") == 0
    assert "All are finished." in capsys.readouterr().out


def test_the_estimate_takes_what_finished_cells_took_and_counts_shared_pre_training_once(tmp_path: Path) -> None:
    done = tiny_grid(seeds=(0,))
    run_grid(done, tmp_path)
    known = [(cell, {"none": 10.0, "random": 25.0}[cell.selector]) for cell in done.cells()]
    assert [cell for cell, _ in BenchmarkFolder(tmp_path).seconds(done.cells())] == done.cells()
    found = estimate(tiny_grid(seeds=(1, 2)).cells(), known, None)
    assert found.of_cells == (10.0, 15.0) * 4
    assert found.measured == 8
    assert found.whole(processes=2) == 4 * 25.0 / 2
    assert found.whole(processes=100) == 4 * 25.0 / 8  # no more processes than cells
    found = estimate(tiny_grid(seeds=(1, 2), calibrate=True).cells(), known, None)
    plain = [cell.config.training.steps / cell.config.total_steps for cell in done.cells()[:2]]
    whole = [10.0 * (1 + 3 + 4 * plain[0]), 15.0 + 25.0 * (3 + 4 * plain[1])]  # three folds of both, and S+T
    assert found.of_cells == tuple(whole) * 4


def test_fits_are_not_timed_by_a_sample(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["ent,knn" if word == "ent" else word for word in WORDS]
    assert command(monkeypatch, *words, "--selectors", "none", "--out", str(tmp_path / "out"), "--dry-run") == 0
    out = capsys.readouterr().out
    assert "knn none seed 0: time unknown" in out
    assert "1 by a few training steps on this machine; 1 not counted, of methods that take no training steps" in out
    cells = tiny_grid(methods=("knn",), selectors=("none",), seeds=(0, 1)).cells()
    assert estimate(cells[1:], [(cells[0], 4.0)], None).of_cells == (4.0,)


@pytest.mark.parametrize(
    ("seconds", "said"), [(3, "about 10 seconds"), (42, "about 40 seconds"), (400, "about 7 minutes"), (9e3, "2 hours")]
)
def test_times_are_said_roughly(seconds: float, said: str) -> None:
    assert said in say_time(seconds)


def test_the_estimate_counts_the_run_that_query_strategies_share_once(tmp_path: Path) -> None:
    def grid(*seeds: int) -> list[Cell]:
        about: dict[str, Any] = {"methods": ("ent",), "selectors": ("random",), "ask": 6, "ask_rounds": 2}
        return tiny_grid(query_strategy=("none", "random", "density"), seeds=seeds, **about).cells()

    (first, *_) = grid(0)
    assert first.config.training.steps == 6
    assert (first.config.selection.rounds, first.config.selection.round_steps) == (4, 1)
    learning = 2 * (2 + 4) / (6 + 4 + 2 * (2 + 4))  # the share of two runs in a third of the steps, rounded up
    found = estimate(grid(1, 2), [(first, 18.0)], None)
    assert found.of_cells == pytest.approx((18.0, 18.0 * learning, 18.0 * learning) * 2)
    assert found.measured == 6


def test_a_benchmark_that_asks_says_what_it_asked_for_and_is_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    asking = ("--selectors", "random", "--ask", "4", "--ask-rounds", "2", "--query-strategy", "Density,none")
    words = (*WORDS, *asking, "--out", str(tmp_path / "out"))
    assert command(monkeypatch, *words, "--dry-run") == 0
    assert "ent random asking density for 4 in 2 seed 0: about" in capsys.readouterr().out
    assert command(monkeypatch, *words, worker=SmallRunner()) == 0
    assert re.search(r"2/2 .* asking density for 4 in 2 seed 0: .*% after 4 labels \(last\)", capsys.readouterr().out)
    table = read_results(tmp_path / "out" / "results.csv")
    assert list(zip(table["query_strategy"], table["asked"], strict=True)) == [
        (strategy, number) for strategy in ("none", "density") for number in (0, 2, 4)
    ]
    assert command(monkeypatch, "report", str(tmp_path / "out")) == 0
    assert "4 labels asked, on images that nobody asked about" in (tmp_path / "out/report/tables.md").read_text()


def test_images_are_embedded_once_and_cells_train_on_the_embeddings(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    make_listed(tmp_path)
    save_weights(tmp_path / "w.safetensors")
    monkeypatch.setenv("QURATE_CACHE", str(tmp_path / "cache"))
    out = tmp_path / "out"
    words = (
        *("benchmark", "--suite", str(tmp_path / "tiny.toml"), "--data", str(tmp_path), "--out", str(out)),
        *("--weights", str(tmp_path / "w.safetensors"), "--methods", "tml", "--selectors", "none,balanced"),
        *("--seeds", "0", "--steps", "6", "--model-selection", "last,validation", "--device", "cpu"),
    )
    assert command(monkeypatch, *words) == 0, capsys.readouterr().out
    assert "embedding: " in capsys.readouterr().out
    facts = json.loads((out / "benchmark.json").read_text())
    assert facts["weights"].startswith("w.safetensors sha256:")
    assert "inside the unlabelled test list" in facts["model_selection"]["validation"]
    assert len((out / "results.csv").read_text().splitlines()) == 1 + 4


def test_results_of_others_are_left_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "results.csv").write_text("years of work")
    assert command(monkeypatch, "benchmark", "--suite", "digits", "--out", str(tmp_path)) == 2
    assert "results.csv was not written by `qurate benchmark`. Choose another --out." in capsys.readouterr().err
    assert (tmp_path / "results.csv").read_text() == "years of work"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--suite", "office-31"), "--suite must be one of digits, domainnet126"),
        (("--suite", "office31"), "--data must be the folder of Office-31, got none"),
        (("--suite", "digits", "--shots", "three"), "--shots must be integers with commas between them, got 'three'"),
        (("--suite", "digits", "--selectors", "best"), "selector must be one of none, confidence"),
        (("--suite", "digits", "--methods", "best"), "method must be one of source_target, "),
        (
            ("--suite", "digits", "--presets", "print"),
            "preset must be one of qurate, paper, got 'p",
        ),
        (("--suite", "digits", "--presets", ","), "--presets must be a comma-separated list of at least one, got none"),
        (
            ("--suite", "digits", "--scenarios", " "),
            "--scenarios must be a comma-separated list of at least one, got none",
        ),
        (("--suite", "digits", "--methods", ""), "--methods is empty; is a variable unset?"),
        (("--suite", "digits", "--shots", "0"), "--shots must be between 1 and 4294967295, got '0'"),
        (("--suite", "digits", "--shots", "500"), "shots must be an integer between 1 and 173, got 500"),
        (("--suite", "digits", "--seeds", "0,-1"), "--seeds must be between 0 and 4294967295, got '0,-1'"),
        (("--suite", "digits", "--seeds", "9" * 5000), "--seeds must be integers with commas between them"),
        (("--suite", "digits", "--steps", "-5"), "--steps must be between 1 and 1000000, got -5"),
        (("--suite", "digits", "--steps", "0"), "--steps must be between 1 and 1000000, got 0"),
        (("--suite", "digits", "--processes", "-1"), "--processes must be between 1 and 1000000000, got -1"),
        (("--suite", "digits", "--processes", "0"), "--processes must be between 1 and 1000000000, got 0"),
        (("--suite", "office31", "--data", "nowhere"), "--data must be a folder, got nowhere, where there is none"),
        (("--suite", "office31", "--data", ".", "--backbone", "timm/x"), "There is no backbone 'timm/x'"),
        (("--suite", "digits", "--ask", "0"), "--ask must be between 1 and 1000000000, got 0"),
        (("--suite", "digits", "--query-strategy", "density"), "--query-strategy needs --ask, the number of labels"),
        (("--suite", "digits", "--ask-rounds", "2"), "--ask-rounds needs --ask, the number of labels"),
        (
            ("--suite", "digits", "--ask", "6", "--query-strategy", "me"),
            "--query-strategy: query strategy must be one of random, probability",
        ),
        (("--suite", "digits", "--ask", "7", "--ask-rounds", "2"), "--ask must be a multiple of --ask-rounds"),
        (("--suite", "digits", "--ask", "6", "--calibrate"), "--ask and --calibrate cannot be combined"),
        (
            ("--suite", "digits", "--ask", "6"),
            "query strategy 'check' asks about trusted pseudo-labels, and selectors 'none'",
        ),
        (("--suite", "digits", "--selectors", "dqn_paper"), "is chosen by --selectors dqn and --presets paper"),
    ],
)
def test_a_wrong_word_is_one_line_and_exit_code_2(
    tmp_path: Path,
    words: tuple[str, ...],
    said: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert command(monkeypatch, "benchmark", *words, "--out", str(tmp_path)) == 2
    err = capsys.readouterr().err
    assert said in err
    assert err.count("\n") == 1


def test_rows_of_the_paper_and_presets_are_words_of_the_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    methods = ("--methods", "s+t,TML_SPL,tml_dqnpl", "--selectors", "None", "--presets", "qurate,paper")
    words = ("benchmark", "--suite", "digits", *methods, "--seeds", "0", "--out", str(tmp_path), "--dry-run")
    monkeypatch.setattr(
        "qurate.benchmark.progress.estimate", lambda cells, *_: TimeEstimate((1.0,) * len(cells), 0.0, 0)
    )
    assert command(monkeypatch, *words) == 0
    found = re.findall(r"3-shot (\S+) (\S+) seed 0", capsys.readouterr().out)
    rows = "confidence", "confidence_paper", "dqn_paper", "dqn"
    assert found == [("source_target", "none"), *(("tml", row) for row in rows)]


def test_check_takes_folders_or_a_suite(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    assert command(monkeypatch, "check", "--suite", "digits") == 0
    assert "nothing to check" in capsys.readouterr().out
    assert command(monkeypatch, "check", "--suite", "office31", "--data", "/nowhere") == 1
    assert load_suite("office31").published in capsys.readouterr().out
    assert command(monkeypatch, "check", "--suite", "digits", "--source", "x") == 2
    assert "together, or --suite with its --data" in capsys.readouterr().err


@pytest.mark.parametrize("verb", ["demo", "benchmark", "report"])
def test_a_file_in_place_of_a_folder_is_refused_before_anything_is_loaded(
    verb: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").write_text("mine")
    words = {"report": (str(tmp_path),), "benchmark": ("--suite", "digits"), "demo": ()}[verb]
    for module in ("load_torch", "announce_loading"):
        monkeypatch.setattr(f"qurate.cli.benchmarks.{module}", lambda *_: pytest.fail("loaded"))
    assert command(monkeypatch, verb, *words, "--out", str(tmp_path / "file")) == 2
    assert "--out must be a folder, got" in capsys.readouterr().err
    assert command(monkeypatch, verb, *words, "--out", str(tmp_path / "file" / "below")) == 2
    assert command(monkeypatch, verb, *words, "--out", "x" * 5000) == 2
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


@pytest.mark.parametrize("seed", ["-1", "99999999999999999999"])
def test_a_seed_out_of_range_is_refused_by_the_demo(
    seed: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert command(monkeypatch, "demo", "--out", str(tmp_path / "out"), "--seed", seed) == 2
    assert f"--seed must be between 0 and 4294967295, got {seed}" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()
