"""Run folders: nothing lost, nothing half written, the same bits after a kill."""

from __future__ import annotations

import errno
import json
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from tests.own_images import BACKBONE, make_folders, paint, save_weights, small_config

import qurate
from qurate.errors import QurateError, RunError
from qurate.runs.adapt import run_adaptation
from qurate.runs.files import CURVES_FOLDER, lock_run
from qurate.runs.folder import RunFolder, RunWarning, read_checkpoint
from qurate.runs.setup import RunOutcome
from qurate.runtime.files import write_atomically
from qurate.runtime.progress import Reporter


class KilledError(Exception):
    """Raised where a process would have been killed."""


class Watcher:
    """Notes phases; raises in the given phase, when this many of its steps are done."""

    def __init__(self, phase: str = "", done: int = 0) -> None:
        self.kill_at = (phase, done)
        self.lines: list[str] = []
        self.phases: list[str] = []

    def say(self, line: str) -> None:
        self.lines.append(line)

    def show(self, phase: str, done: int, total: int, *, later: float = 0.0) -> None:
        self.phases += [phase] if phase not in self.phases else []
        if (phase, done) == self.kill_at:
            raise KilledError


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    root = tmp_path_factory.mktemp("own")
    return {**make_folders(root), "weights": save_weights(root / "w.safetensors"), "cache": root / "cache"}


def run(place: dict[str, Any], out: Path, reporter: Reporter | None = None, **arguments: Any) -> RunOutcome:
    config = arguments.pop("config", None) or small_config()
    return run_adaptation({**place, "backbone": BACKBONE, "config": config, "out": out, **arguments}, reporter)


def contents(folder: Path) -> dict[str, bytes]:
    """All that must be the same; times and the page, which shows them, may differ."""
    kept = [file for file in (*folder.iterdir(), *folder.glob("baseline/*")) if file.is_file()]
    named = ("report.html", "README.md")  # they name the folder, and the time that it took
    files = {str(file.relative_to(folder)): file.read_bytes() for file in kept if file.name not in named}
    lines = files["metrics.csv"].splitlines()
    return {**files, "metrics.csv": b"\n".join(line for line in lines if not line.startswith(b"seconds"))}


def test_a_killed_run_resumes_to_the_same_files(place: dict[str, Any], tmp_path: Path) -> None:
    watcher = Watcher()
    done = run(place, tmp_path / "whole", watcher)
    assert done.record is not None
    assert done.model.comparison == done.record.comparison == qurate.load(tmp_path / "whole").comparison is not None
    names = [
        "README.md",
        "config.json",
        "examples.csv",
        "label_issues.csv",
        "metrics.csv",
        "model.json",
        "model.safetensors",
        "positives.csv",
        "predictions.csv",
        "suggestions.csv",
    ]
    left = {file.name for file in (tmp_path / "whole").iterdir()}
    assert left - {CURVES_FOLDER} == {*names, "report.html", "baseline"}  # the curves are an extra
    examples = pd.read_csv(tmp_path / "whole" / "examples.csv")
    assert (
        examples.groupby(["part", "label"]).size().tolist() == [3] * 3 + [4] * 3
    )  # all labelled, and of 6 in the source
    assert watcher.phases == [
        "embedding",
        "S+T on all labelled images",
        *(f"S+T, fold {number} of 3" for number in (1, 2, 3)),
        "pre-training",
        "round 1 of 2",
        "round 2 of 2",
        "writing the results",
        *(f"comparison, fold {number} of 3" for number in (1, 2, 3)),
    ]
    whole = contents(tmp_path / "whole")
    for number, kill_at in enumerate(
        (
            ("embedding", 42),  # all are in the cache
            ("pre-training", 7),
            ("round 1 of 2", 0),
            ("round 2 of 2", 3),
            ("S+T on all labelled images", 3),
            ("S+T, fold 3 of 3", 9),
            ("comparison, fold 1 of 3", 1),
            ("writing the results", 0),
        )
    ):
        out = tmp_path / f"killed{number}"
        with pytest.raises(KilledError):
            run(place, out, Watcher(*kill_at))
        assert RunFolder(out).finished == kill_at[0].startswith("comparison"), kill_at
        run(place, out, resume=True)
        assert contents(out) == whole, kill_at


def test_a_killed_run_with_flagged_images_finds_the_folds_of_plain_training_again(tmp_path: Path) -> None:
    """Images of no class are left out of D_u after the folds of S+T are trained; those are of the whole D_u."""
    place: dict[str, Any] = {**make_folders(tmp_path / "own", shots=20, unlabeled=10), "cache": tmp_path / "cache"}
    place["weights"] = save_weights(tmp_path / "w.safetensors")
    for number in range(25):
        paint(place["unlabeled"] / f"strange {number}.png", (255, 255, 0), seed=9000 + number)
    whole, config = Watcher(), small_config("balanced")
    record = run(place, tmp_path / "whole", whole, config=config).record
    assert record is not None
    assert record.flagged is not None
    assert 0 < record.flagged.flagged < 40
    wanted = contents(tmp_path / "whole")
    for number, kill_at in enumerate(
        (("round 1 of 2", 2), ("comparison, fold 1 of 3", 1), ("comparison, fold 3 of 3", 1))
    ):
        out, watcher = tmp_path / f"killed{number}", Watcher()
        with pytest.raises(KilledError):
            run(place, out, Watcher(*kill_at), config=config)
        run(place, out, watcher, config=config, resume=True)
        assert not [phase for phase in watcher.phases if phase.startswith("S+T")], kill_at
        assert not [line for line in watcher.lines if "damaged" in line], kill_at
        assert contents(out) == wanted, kill_at


def test_a_finished_model_does_not_wait_for_the_comparison(place: dict[str, Any], tmp_path: Path) -> None:
    config = small_config("balanced")
    with pytest.raises(KilledError):
        run(place, tmp_path / "r", Watcher("comparison, fold 2 of 3", 3), config=config)
    assert len(qurate.load(tmp_path / "r").predict(place["unlabeled"])) == 15
    assert "was not finished when this page was written" in (tmp_path / "r" / "report.html").read_text()
    with pytest.raises(RunError, match=r"comparison is not finished. Pass `resume=True`.* with `compare=False`"):
        run(place, tmp_path / "r", config=config)
    model = (tmp_path / "r" / "model.safetensors").read_bytes()
    watcher = Watcher()
    done = run(place, tmp_path / "r", watcher, config=config, resume=True, compare=False)
    assert watcher.phases == ["embedding", "writing the results"]
    assert any(line.startswith("No comparison was made. ") for line in watcher.lines)
    assert done.record is not None
    assert "switched off" in done.record.no_comparison
    assert (tmp_path / "r" / "model.safetensors").read_bytes() == model
    assert not RunFolder(tmp_path / "r").pending
    assert "was switched off" in qurate.load(tmp_path / "r").no_comparison
    assert "was switched off" in (tmp_path / "r" / "report.html").read_text()


@pytest.mark.parametrize("content", ["", "[{", "{}", "[1]", '[{"adapted": [true], "baseline": [true]}]'])
def test_a_damaged_comparison_starts_again(place: dict[str, Any], tmp_path: Path, content: str) -> None:
    config = small_config("none")
    with pytest.raises(KilledError):
        run(place, tmp_path / "r", Watcher("comparison, fold 2 of 3", 3), config=config)
    (tmp_path / "r" / "comparison.safetensors").write_text(content)
    watcher = Watcher()
    done = run(place, tmp_path / "r", watcher, config=config, resume=True)
    assert "What was kept of the comparison is damaged, so it starts again." in watcher.lines
    assert "comparison, fold 1 of 3" in watcher.phases
    assert done.record is not None
    assert done.record.comparison is not None


def test_a_forced_run_keeps_the_old_one_until_it_is_whole(place: dict[str, Any], tmp_path: Path) -> None:
    old, new = small_config("balanced"), small_config("balanced", seed=5)
    run(place, tmp_path / "whole", config=new)
    whole = contents(tmp_path / "whole")
    for number, kill_at in enumerate(
        (("embedding", 42), ("pre-training", 7), ("round 2 of 2", 3), ("writing the results", 0))
    ):
        out = tmp_path / f"r{number}"
        run(place, out, config=old, compare=False)
        (out / "model.onnx").write_bytes(b"an export")
        (out / "my notes.txt").write_text("keep")
        before = contents(out)
        with pytest.raises(KilledError):
            run(place, out, Watcher(*kill_at), config=new, force=True)
        assert contents(out) == before, kill_at
        qurate.load(out)
        if number:
            with pytest.raises(RunError, match="a run and an unfinished one that would replace it"):
                run(place, out, config=new)
        with pytest.raises(RunError, match="other settings") if number else nullcontext():
            run(place, out, config=old, resume=True)
        run(place, out, config=new, resume=bool(number), force=not number)
        assert (out / "my notes.txt").read_text() == "keep"
        (out / "my notes.txt").unlink()
        assert contents(out) == whole, kill_at
        assert not (out / ".new").exists()


def test_a_forced_run_that_is_refused_touches_nothing(place: dict[str, Any], tmp_path: Path) -> None:
    fast: dict[str, Any] = {"config": small_config("none"), "compare": False}
    run(place, tmp_path / "r", **fast)
    before = contents(tmp_path / "r")
    for wrong in ({"source": tmp_path / "nowhere"}, {"unlabeled": place["labeled"]}, {"weights": "nowhere.pth"}):
        with pytest.raises(QurateError):
            run({**place, **wrong}, tmp_path / "r", force=True, **fast)
    assert contents(tmp_path / "r") == before


def test_two_runs_do_not_share_a_folder(place: dict[str, Any], tmp_path: Path) -> None:
    fast: dict[str, Any] = {"config": small_config("none"), "compare": False}
    (tmp_path / "r").mkdir()
    with lock_run(tmp_path / "r"), pytest.raises(RunError, match="another process is at work here"):
        run(place, tmp_path / "r", **fast)
    run(place, tmp_path / "r", **fast)


def test_a_run_says_where_it_stands(place: dict[str, Any], tmp_path: Path) -> None:
    out = tmp_path / "r"
    for kill_at, said in (
        (("embedding", 42), f"Nothing in {out} is half done. Re-run the command to begin again."),
        (
            ("pre-training", 3),
            "Pre-training was not finished and will begin again. Re-run the command with `resume=True`",
        ),
        (("round 1 of 2", 3), f"Pre-training is kept in {out}. Re-run"),
        (("round 2 of 2", 3), f"Pre-training and 1 of the rounds are kept in {out}. Re-run"),
        (
            ("comparison, fold 1 of 3", 1),
            f"The model in {out} is finished and can be used; the comparison is not. Re-run",
        ),
    ):
        with pytest.raises(KilledError):
            run(place, out, Watcher(*kill_at), config=small_config("balanced"), resume=True)
        assert RunFolder(out).standing().startswith(said)


def test_a_run_is_not_overwritten_by_chance(place: dict[str, Any], tmp_path: Path) -> None:
    fast: dict[str, Any] = {"config": small_config("none"), "compare": False}
    with pytest.raises(KilledError):
        run(place, tmp_path / "r", Watcher("pre-training", 15), **fast)
    with pytest.raises(RunError, match=r"unfinished run\. Pass `resume=True`"):
        run(place, tmp_path / "r", **fast)
    other = {**fast, "config": small_config("none", seed=5)}
    watcher = Watcher()
    with pytest.raises(RunError, match=r"other settings.*run.seed was 0, is 5"):
        run(place, tmp_path / "r", watcher, resume=True, **other)
    assert watcher.phases == []  # before any work
    run(place, tmp_path / "r", resume=True, **fast)
    before = contents(tmp_path / "r")
    with pytest.raises(RunError, match=r"finished run\. Choose another `out`, or pass `force=True`"):
        run(place, tmp_path / "r", **fast)
    watcher = Watcher()
    again = run(place, tmp_path / "r", watcher, resume=True, **fast)
    assert (watcher.phases, again.model.classes[0]) == ([], "blue")
    assert watcher.lines[0] == f"{tmp_path / 'r'} is already finished."
    assert contents(tmp_path / "r") == before
    run(place, tmp_path / "r", force=True, **other)
    assert contents(tmp_path / "r") != before


def test_other_images_cannot_resume_a_run(place: dict[str, Any], tmp_path: Path) -> None:
    fast: dict[str, Any] = {"config": small_config("none"), "compare": False}
    with pytest.raises(KilledError):
        run(place, tmp_path / "r", Watcher("pre-training", 15), **fast)
    swapped = {**place, "source": place["labeled"]}
    with pytest.raises(RunError, match=r"started with other images.*gone from source"):
        run(swapped, tmp_path / "r", resume=True, **fast)


def test_folders_of_others_are_left_alone(place: dict[str, Any], tmp_path: Path) -> None:
    (tmp_path / "thesis.txt").write_text("years of work")
    for force in (False, True):
        with pytest.raises(RunError, match="not empty and not a run of qurate"):
            run(place, tmp_path, force=force)
    with pytest.raises(RunError, match=r"`out` must be a folder, got .*thesis.txt, .*Not a directory"):
        run(place, tmp_path / "thesis.txt")
    theirs = tmp_path / "hub"
    theirs.mkdir()
    (theirs / "config.json").write_text('{"architectures": ["ResNet"]}')
    (theirs / "model.safetensors").write_bytes(b"weights of another program")
    for force in (False, True):
        with pytest.raises(RunError, match="not empty and not a run of qurate"):
            run(place, theirs, force=force)
    assert len(list(theirs.iterdir())) == 2
    assert (tmp_path / "thesis.txt").read_text() == "years of work"


def test_a_read_only_or_full_disk_is_found_before_training(
    place: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    watcher = Watcher()

    def refuse(*args: Any, **kwargs: Any) -> Any:
        raise OSError(errno.EROFS, "Read-only file system")

    with monkeypatch.context() as patch:  # root may write anywhere, so the system's answer is played
        patch.setattr("qurate.runs.folder.tempfile.TemporaryFile", refuse)
        with pytest.raises(RunError, match=r"nothing can be written: Read-only file system"):
            run(place, tmp_path / "r", watcher)
    with monkeypatch.context() as patch:
        patch.setattr("qurate.runs.folder.shutil.disk_usage", lambda path: type("Usage", (), {"free": 3 * 2**20}))
        with pytest.raises(RunError, match="3 MiB are free"):
            run(place, tmp_path / "r", watcher)
    assert watcher.phases == []


def test_a_disk_that_fills_up_loses_nothing(
    place: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(path: Path, content: str | bytes) -> None:
        if path.name == "positives.csv":
            raise OSError(errno.ENOSPC, "No space left on device")
        write_atomically(path, content)

    config = small_config("balanced")
    with monkeypatch.context() as patch:
        patch.setattr("qurate.runs.folder.write_atomically", full)
        with pytest.raises(RunError, match=r"disk is full\. Make room and re-run with `resume=True`"):
            run(place, tmp_path / "r", config=config, compare=False)
    watcher = Watcher()
    run(place, tmp_path / "r", watcher, resume=True, config=config, compare=False)
    assert "pre-training" not in watcher.phases
    assert RunFolder(tmp_path / "r").finished


def test_a_damaged_checkpoint_says_so(place: dict[str, Any], tmp_path: Path) -> None:
    fast: dict[str, Any] = {"config": small_config("none"), "compare": False}
    with pytest.raises(KilledError):
        run(place, tmp_path / "r", Watcher("writing the results", 0), **fast)
    checkpoint = tmp_path / "r" / "checkpoint.safetensors"
    whole = checkpoint.read_bytes()
    flipped = bytearray(whole)
    flipped[-9] ^= 4
    for content in (b"\x80\x04 a pickle, perhaps", whole[:-10], bytes(flipped)):
        checkpoint.write_bytes(content)
        with pytest.raises(RunError, match=r"checkpoint.safetensors: damaged .*`force=True`"):
            run(place, tmp_path / "r", resume=True, **fast)
    checkpoint.write_bytes(whole)
    run(place, tmp_path / "r", resume=True, **fast)


def test_a_damaged_newest_checkpoint_is_named_and_the_one_before_is_used(place: dict[str, Any], tmp_path: Path) -> None:
    config = small_config("balanced")
    config = replace(config, execution=replace(config.execution, checkpoint_steps=4))
    run(place, tmp_path / "whole", config=config, compare=False)
    with pytest.raises(KilledError):
        run(place, tmp_path / "r", Watcher("round 1 of 2", 3), config=config, compare=False)
    names = sorted(path.name for path in (tmp_path / "r").glob("checkpoint*"))
    assert names == ["checkpoint.before.safetensors", "checkpoint.safetensors"]  # and no more, however many were kept
    newest, before = (read_checkpoint(tmp_path / "r" / name) for name in reversed(names))
    assert newest.mid_training is None
    assert before.mid_training is not None
    assert (before.mid_training.line, before.mid_training.steps) == (1, 12)
    checkpoint = tmp_path / "r" / "checkpoint.safetensors"
    checkpoint.write_bytes(checkpoint.read_bytes()[:-10])
    with pytest.warns(RunWarning, match=r"checkpoint.safetensors: damaged .* continues from the checkpoint before"):
        run(place, tmp_path / "r", resume=True, config=config, compare=False)
    for name in ("predictions.csv", "positives.csv", "model.safetensors"):
        assert (tmp_path / "r" / name).read_bytes() == (tmp_path / "whole" / name).read_bytes()
    assert not list((tmp_path / "r").glob("checkpoint*"))


def test_the_settings_are_kept_with_the_run(place: dict[str, Any], tmp_path: Path) -> None:
    run(place, tmp_path / "r", config=small_config("none"), compare=False)
    kept = json.loads((tmp_path / "r" / "config.json").read_text())
    assert kept["backbone"] == BACKBONE
    assert kept["run"]["selection"]["selector"] == {"name": "none"}
    assert kept["weights"] == place["weights"]


def test_the_baseline_of_a_run_that_is_replaced_goes_with_it(place: dict[str, Any], tmp_path: Path) -> None:
    run(place, tmp_path / "r")
    assert (tmp_path / "r" / "baseline" / "model.json").is_file()
    run(place, tmp_path / "r", force=True, compare=False)
    assert not (tmp_path / "r" / "baseline").exists()


def test_images_that_changed_are_named_when_a_run_is_resumed(tmp_path: Path) -> None:
    place = {**make_folders(tmp_path), "weights": save_weights(tmp_path / "w.safetensors"), "cache": tmp_path / "cache"}
    out = tmp_path / "run"
    with pytest.raises(KilledError):
        run(place, out, Watcher("round 1 of 2", 5), config=small_config("balanced"))
    first, second, third = sorted((tmp_path / "unlabeled").glob("*.png"))[:3]
    kept = [path.read_bytes() for path in (first, second)]
    first.write_bytes(third.read_bytes())
    second.unlink()
    with pytest.raises(RunError) as caught:
        run(place, out, config=small_config("balanced"), resume=True)
    assert f"'{first} (changed)', '{second} (gone from unlabeled)'. Bring the earlier ones back" in str(caught.value)
    for path, content in zip((first, second), kept, strict=True):
        path.write_bytes(content)
    (tmp_path / "labeled" / "blue" / "photo 0.jpg").rename(tmp_path / "labeled" / "green tea" / "photo 9.jpg")
    with pytest.raises(RunError, match=r"photo 0.jpg \(gone from labeled\)', '.*photo 9.jpg \(new in labeled\)'"):
        run(place, out, config=small_config("balanced"), resume=True)
    (out / "images.csv").unlink()  # as in a run of an earlier version
    with pytest.raises(RunError, match=r"other images.*: their contents, classes or order differ"):
        run(place, out, config=small_config("balanced"), resume=True)
    (tmp_path / "labeled" / "green tea" / "photo 9.jpg").rename(tmp_path / "labeled" / "blue" / "photo 0.jpg")
    assert run(place, out, config=small_config("balanced"), resume=True, compare=False).record is not None
    assert not (out / "images.csv").exists()
