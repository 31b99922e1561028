"""A run that learns from answers: from the model and the positives of another, or from the beginning."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import torch
from tests.own_images import BACKBONE, COLORS, make_folders, paint, save_weights, small_config
from tests.reliability.world import snapshot
from torch import Tensor

import qurate
from qurate.active.answers import Answer, AnswerLog, wilson_interval
from qurate.config import NetworkConfig, RunConfig
from qurate.data.samples import Split
from qurate.errors import ConfigError, DataError, RunError
from qurate.networks.heads import build_network
from qurate.run_results import LABEL_ISSUES
from qurate.runs import comparison
from qurate.runs.adapt import run_adaptation
from qurate.runs.continue_from import AppliedAnswers, PreviousRun, summarize_answers
from qurate.runs.setup import RunOutcome
from qurate.runtime.tables import read_csv, to_csv
from qurate.selection.crossfit import Fold, fit_fold

NAMES = list(COLORS)
NAMES_SORTED = sorted(NAMES)


class KilledError(Exception):
    pass


class Watcher:
    """Hears what a run says; stops it at a phase."""

    def __init__(self, kill_at: str = "") -> None:
        self.lines: list[str] = []
        self.phases: list[str] = []
        self.totals: dict[str, int] = {}
        self._kill_at = kill_at

    def say(self, line: str) -> None:
        self.lines.append(line)

    def show(self, phase: str, done: int, total: int, *, later: float = 0.0) -> None:
        self.phases.append(phase)
        self.totals[phase] = total
        if self._kill_at and phase.startswith(self._kill_at):
            raise KilledError


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Images, weights, and in `run` a compared run of the agent."""
    root = tmp_path_factory.mktemp("going on")
    make_folders(root, unlabeled=8)
    save_weights(root / "w.safetensors")
    begin(root, root / "run", compare=True)
    return root


def begin(root: Path, out: Path, config: RunConfig | None = None, **arguments: Any) -> RunOutcome:
    given: dict[str, Any] = {"compare": False, "reporter": Watcher(), "cache": root / "cache", **arguments}
    parts = {part: root / part for part in ("source", "labeled", "unlabeled")}
    network = {"backbone": BACKBONE, "weights": str(root / "w.safetensors")}
    reporter = given.pop("reporter")
    return run_adaptation({**parts, **network, "config": config or small_config(), "out": out, **given}, reporter)


def go_on(root: Path, run: Path, out: Path | None, **arguments: Any) -> RunOutcome:
    given: dict[str, Any] = {"reporter": Watcher(), "cache": root / "cache", **arguments}
    reporter = given.pop("reporter")
    return run_adaptation({"previous": run, "out": out, **given}, reporter)


@pytest.fixture
def run(world: Path, tmp_path: Path) -> Path:
    """A copy of the run to answer about."""
    return Path(shutil.copytree(world / "run", tmp_path / "run"))


def truth_of(file: str) -> str:
    """The class of an unlabelled image, by its name."""
    return NAMES[int(Path(file).name.partition("-")[0])]


def predictions_of(run: Path) -> pd.DataFrame:
    return read_csv(run / "predictions.csv").set_index("file")


def answer(run: Path, kinds: Mapping[str, str], asked: str = "density") -> None:
    """Add answers to RUN/labels.csv: the kind of each file, or its class."""
    said = predictions_of(run)["label"]
    AnswerLog(run / "labels.csv").add(
        [
            {
                "file": file,
                "answer": kind if kind in ("none", "wrong") else "label",
                "label": "" if kind in ("none", "wrong") else kind,
                "predicted": said[file],
                "asked": asked,
            }
            for file, kind in kinds.items()
        ]
    )


def files_of(run: Path) -> list[str]:
    return sorted(predictions_of(run).index)


def test_labels_join_the_labelled_ones_and_all_answered_leave_the_unlabelled_ones(
    world: Path, run: Path, tmp_path: Path
) -> None:
    files = files_of(run)
    answer(run, {file: truth_of(file) for file in files[:6]}, asked="random")
    answer(run, {files[6]: "none", files[7]: "wrong"})
    before, watcher = snapshot(run), Watcher()
    outcome = go_on(world, run, tmp_path / "next", reporter=watcher)
    record = outcome.record
    assert record is not None
    assert snapshot(run) == before, "the old run and its answers stay as they are"
    assert len(record.labeled) == 9 + 6
    told = record.labeled.set_index("file")["label"]
    assert [told[file] for file in files[:6]] == [truth_of(file) for file in files[:6]]
    assert set(record.predictions["file"]) == set(files[8:])
    assert set(record.positives["file"]) <= set(files[8:]), "what people answered about is never trusted"
    assert not any(phase.startswith(("comparison", "S+T")) for phase in watcher.phases)
    assert (watcher.totals["pre-training"], watcher.totals["round 2 of 2"]) == (5, 2)  # of 15 and of 5
    table = predictions_of(tmp_path / "next")
    assert sorted(table.index) == files
    assert table.loc[files[:8], "answer"].tolist() == ["label"] * 6 + ["none", "wrong"]
    assert table.loc[files[:6], "answer_label"].tolist() == [truth_of(file) for file in files[:6]]
    assert set(table.loc[files[8:], "answer"]) == {""}
    assert set(table["problem"]) == {""}
    assert all(table["label"].isin(NAMES))
    old, new = (AnswerLog(folder / "labels.csv") for folder in (run, tmp_path / "next"))
    assert new.current() == old.current()


def test_it_is_as_sure_as_the_run_before_whose_verdict_is_named(world: Path, run: Path, tmp_path: Path) -> None:
    answer(run, {file: truth_of(file) for file in files_of(run)[:3]})
    watcher = Watcher()
    model = go_on(world, run, tmp_path / "next", reporter=watcher).model
    assert model.calibration.by == "the run before"
    sure = [
        pd.read_csv(folder / "predictions.csv").set_index("file")["probability"] for folder in (run, tmp_path / "next")
    ]
    left = files_of(run)[3:]
    assert sure[1][left].mean() == pytest.approx(sure[0][left].mean(), abs=1e-6)
    said = " ".join(watcher.lines)
    assert f"learns from answers about {run} and repeats neither its comparison" in said
    assert f"{run / 'report.html'} says of whether adaptation helped holds for the model before the answers" in said
    page = (tmp_path / "next" / "report.html").read_text(encoding="utf-8")
    assert "The model has learned from 3 answers" in page
    assert "How often it is right after the answers was not" in page
    answer(tmp_path / "next", {files_of(run)[4]: truth_of(files_of(run)[4])})
    go_on(world, tmp_path / "next", tmp_path / "third", reporter=watcher)
    lines = [line for line in watcher.lines if line.startswith("No comparison was made")]
    assert f"{run / 'report.html'} says" in lines[-1], "the comparison is still that of the first run"


def test_random_answers_say_whether_it_is_better_than_the_run_before(
    world: Path, run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = files_of(run)
    held_out: list[Tensor] = []
    answer(run, {files[0]: truth_of(files[0]), files[1]: "none"})
    answer(run, {file: truth_of(file) for file in files[2:8]}, asked="random")
    answer(run, {files[8]: "none"}, asked="random")

    def fit_spied(split: Split, config: RunConfig, images: Tensor, *rest: Any, **named: Any) -> Fold:
        held_out.append(images)
        return fit_fold(split, config, images, *rest, **named)

    monkeypatch.setattr(comparison, "fit_fold", fit_spied)
    watcher = Watcher()
    record = go_on(world, run, tmp_path / "next", reporter=watcher).record
    assert record is not None
    assert record.answers is not None
    found = record.answers.improvement
    assert found is not None
    assert found.images == 6
    said = predictions_of(run)["label"]
    assert found.before == sum(said[file] == truth_of(file) for file in files[2:8]) / 6
    assert found.low <= found.now - found.before <= found.high
    places = sorted(torch.cat(held_out).tolist())
    assert places == [10, 11, 12, 13, 14, 15], "9 labels, one answer, then those drawn at random"
    assert record.labeled["file"].iloc[places].tolist() == files[2:8]
    assert any(line.startswith("On 6 images with an answer that were drawn at random") for line in watcher.lines)
    metrics = pd.read_csv(tmp_path / "next" / "metrics.csv").set_index("what")["value"]
    assert (metrics["improvement_images"], metrics["improvement_now"]) == (6, pytest.approx(found.now))
    page = (tmp_path / "next" / "report.html").read_text(encoding="utf-8")
    assert f"between {found.low * 100:+.1f}".replace("-", "\u2212") in page
    off, quiet = Watcher(), tmp_path / "quiet"
    go_on(world, run, quiet, reporter=off, compare=False)
    assert "is not known. The comparison was switched off." in " ".join(off.lines)
    assert not any(phase.startswith("check against") for phase in off.phases)
    assert (quiet / "model.safetensors").read_bytes() == (tmp_path / "next" / "model.safetensors").read_bytes()


def test_without_random_answers_it_is_said_that_nobody_knows(world: Path, run: Path, tmp_path: Path) -> None:
    answer(run, {file: truth_of(file) for file in files_of(run)[:6]})
    watcher = Watcher()
    go_on(world, run, tmp_path / "next", reporter=watcher)
    said = " ".join(watcher.lines)
    assert "better than the run before is not known. None of the new answers with a class was drawn at random" in said
    assert f"qurate evaluate '{tmp_path / 'next'}' --labeled DIR".replace("'", "") in watcher.lines[-2]
    assert watcher.lines[-1].endswith(f"qurate open {tmp_path / 'next'}")
    page = (tmp_path / "next" / "report.html").read_text(encoding="utf-8")
    assert "; whether it is better is not clear" in page


def test_only_new_answers_are_counted_when_a_run_goes_on_twice(world: Path, run: Path, tmp_path: Path) -> None:
    files = files_of(run)
    answer(run, {files[0]: truth_of(files[0])})
    answer(run, {files[1]: "wrong"})
    second = tmp_path / "second"
    go_on(world, run, second)
    log = AnswerLog(second / "labels.csv")
    undone = log.undo(log.current()[files[1]].id)
    taken_back = go_on(world, second, tmp_path / "taken back").record
    assert undone
    assert taken_back is not None
    assert files[1] in set(taken_back.predictions["file"]), "what is taken back is learned from no longer"
    shutil.rmtree(second)
    go_on(world, run, second)
    with pytest.raises(DataError, match=r"has learned from all of the 2 answers"):
        go_on(world, second, tmp_path / "third")
    answer(second, {files[1]: truth_of(files[1]), files[2]: truth_of(files[2])})
    record = go_on(world, second, tmp_path / "third").record
    assert record is not None
    assert record.answers is not None
    assert (record.answers.labeled, record.answers.wrong, record.answers.earlier) == (2, 0, 1)
    assert record.labeled["file"].tolist()[-3:] == files[:3], "what is new stands last, for the agent's rewards"


@pytest.mark.parametrize("selector", ["none", "balanced", "dqn"])
def test_going_on_is_deterministic_and_resumes_to_the_same_result(selector: str, world: Path, tmp_path: Path) -> None:
    run, whole, killed = tmp_path / "run", tmp_path / "whole", tmp_path / "killed"
    begin(world, run, small_config(selector))
    answer(run, {file: truth_of(file) for file in files_of(run)[:4]})
    go_on(world, run, whole)
    with pytest.raises(KilledError):
        go_on(world, run, killed, reporter=Watcher("writing" if selector == "none" else "round 2"))
    assert not (killed / "labels.csv").exists()
    watcher = Watcher()
    go_on(world, run, killed, resume=True, reporter=watcher)
    assert "pre-training" not in watcher.phases
    assert "round 1 of 2" not in watcher.phases
    for name in ("model.safetensors", "predictions.csv", "positives.csv", "labels.csv", "config.json"):
        assert (killed / name).read_bytes() == (whole / name).read_bytes(), name


def test_other_answers_or_another_run_are_other_settings(world: Path, run: Path, tmp_path: Path) -> None:
    files, out = files_of(run), tmp_path / "next"
    answer(run, {file: truth_of(file) for file in files[:3]})
    with pytest.raises(KilledError):
        go_on(world, run, out, reporter=Watcher("round 2"))
    with pytest.raises(RunError, match=r"labels was .*'answers': 3"):
        begin(world, out, resume=True)
    answer(run, {files[3]: truth_of(files[3])})
    with pytest.raises(RunError, match=r"labels\.answers was 3, is 4"):
        go_on(world, run, out, resume=True)
    AnswerLog(run / "labels.csv").undo(AnswerLog(run / "labels.csv").rows()[-1].id)
    table = read_csv(run / "positives.csv")
    (run / "positives.csv").write_bytes(to_csv(table.iloc[1:]))
    with pytest.raises(RunError, match=r"previous\.positives was"):
        go_on(world, run, out, resume=True)
    (run / "positives.csv").write_bytes(to_csv(table))
    go_on(world, run, out, resume=True)


def test_answers_without_a_run_begin_anew_and_are_not_held_out(world: Path, run: Path, tmp_path: Path) -> None:
    files = files_of(run)
    answer(run, {files[0]: truth_of(files[0]), files[1]: "none"})
    watcher = Watcher()
    record = begin(world, tmp_path / "anew", compare=True, labels=run / "labels.csv", reporter=watcher).record
    assert record is not None
    assert record.comparison is not None
    assert record.comparison.images == 9, "images that were asked about are harder than most"
    assert record.answers is not None
    assert record.answers.corrections is None
    assert len(record.labeled) == 10
    assert "pre-training" in watcher.phases
    beside = predictions_of(tmp_path / "anew" / "baseline")
    assert beside.loc[files[:2], "answer"].tolist() == ["label", "none"]


def test_what_cannot_be_used_is_said_and_does_no_harm(world: Path, run: Path, tmp_path: Path) -> None:
    files = files_of(run)
    answer(run, {files[0]: truth_of(files[0]), files[1]: "giraffe"})
    log = AnswerLog(run / "labels.csv")
    log.add([{"file": "elsewhere.png", "answer": "label", "label": "blue", "predicted": "blue", "asked": "check"}])
    with (run / "labels.csv").open("ab") as file:
        file.write(b'half a row,"\n')
    watcher = Watcher()
    record = go_on(world, run, tmp_path / "next", reporter=watcher).record
    assert record is not None
    for said in (
        "1 row of ",
        "1 answer of ",
        "are not among those of this run",
        "'giraffe' (1) is no class of the run, for a new class needs 3 images; until then these images count as",
    ):
        assert any(said in line for line in watcher.lines), said
        assert any(said in note for note in record.notes), said
    assert len(record.labeled) == 10
    assert files[1] not in set(record.predictions["file"])
    assert set(AnswerLog(tmp_path / "next" / "labels.csv").current()) == {files[0], files[1], "elsewhere.png"}


def test_none_in_a_table_of_labels_is_no_name_of_a_class(world: Path, run: Path, tmp_path: Path) -> None:
    files = files_of(run)
    table = tmp_path / "labels.csv"
    labels = [*["none"] * 3, *map(truth_of, files[3:5])]
    table.write_bytes(to_csv(pd.DataFrame({"file": files[:5], "label": labels})))
    record = go_on(world, run, tmp_path / "next", labels=table).record
    assert record is not None
    assert classes_of(tmp_path / "next") == NAMES_SORTED
    assert not {*files[:3]} & {*record.predictions["file"]}
    assert record.answers is not None
    assert record.answers.labeled == 2


def classes_of(run: Path) -> list[str]:
    classes: list[str] = json.loads((run / "model.json").read_text(encoding="utf-8"))["classes"]
    return classes


def test_a_new_class_with_enough_images_becomes_one_of_a_run_that_starts_anew(
    world: Path, run: Path, tmp_path: Path
) -> None:
    files, second, third = files_of(run), tmp_path / "second", tmp_path / "third"
    answer(run, dict.fromkeys(files[:3], "<i>giraffe"))
    answer(run, {files[3]: "none", files[4]: truth_of(files[4]), files[5]: "okapi"})
    watcher = Watcher()
    record = go_on(world, run, second, reporter=watcher).record
    assert record is not None
    said = "'<i>giraffe' is a new class, by 3 answers. So the run starts anew."
    assert any(said in line for line in watcher.lines)
    assert any("'okapi' (1) is no class of the run, for a new class needs 3 images" in line for line in watcher.lines)
    assert any(said in note for note in record.notes)
    assert classes_of(second) == [*NAMES_SORTED, "<i>giraffe"]
    assert watcher.totals["pre-training"] == 15, "a whole run"
    assert record.comparison is not None
    assert record.comparison.images == 9, "images that were asked about are not held out"
    assert record.labeled.set_index("file")["label"][files[:3]].tolist() == ["<i>giraffe"] * 3
    assert not {*files[:6]} & {*record.predictions["file"]}
    assert record.answers is not None
    assert (record.answers.labeled, record.answers.none) == (4, 2)
    assert record.answers.corrections is not None
    assert record.answers.improvement is None
    assert "has learned all answers" in record.answers.not_measured
    assert record.answers.judged == 1, "the model that was asked could not name a new class"
    page = (second / "report.html").read_text(encoding="utf-8")
    assert "&lt;i&gt;giraffe" in page
    assert "<i>giraffe" not in page
    assert json.loads((second / "config.json").read_text())["added_classes"] == ["<i>giraffe"]
    table = predictions_of(second)
    assert [table.at[files[5], column] for column in ("answer", "answer_label")] == ["label", "okapi"]

    answer(second, {files[6]: truth_of(files[6])})
    watcher = Watcher()
    record = go_on(world, second, third, reporter=watcher).record
    assert record is not None
    assert watcher.totals["pre-training"] == 5, "with the same classes it goes on"
    assert record.comparison is None
    assert classes_of(third) == classes_of(second)
    assert not any("is a new class" in line for line in watcher.lines)

    log = AnswerLog(third / "labels.csv")
    log.undo(log.current()[files[0]].id)  # all three were given at once
    watcher = Watcher()
    assert go_on(world, third, tmp_path / "fourth", reporter=watcher).record is not None
    assert any("'<i>giraffe' is no class any more, for fewer than 3 answers" in line for line in watcher.lines)
    assert classes_of(tmp_path / "fourth") == NAMES_SORTED


def test_images_of_a_class_with_too_few_count_as_none(world: Path, run: Path, tmp_path: Path) -> None:
    files, whole = files_of(run), tmp_path / "none"
    answer(run, dict.fromkeys(files[:2], "giraffe"))
    answer(run, {files[2]: "none"})
    watcher = Watcher()
    record = go_on(world, run, tmp_path / "next", reporter=watcher).record
    assert record is not None
    assert any(
        "'giraffe' (2) is no class of the run, for a new class needs 3 images; until then these images count as "
        "answered 'none'." in line
        for line in watcher.lines
    )
    assert classes_of(tmp_path / "next") == NAMES_SORTED
    assert watcher.totals["pre-training"] == 5, "it goes on"
    assert record.answers is not None
    assert record.answers.none == 3
    answer(run, dict.fromkeys(files[:2], "none"))
    go_on(world, run, whole)
    same = [(folder / "model.safetensors").read_bytes() for folder in (tmp_path / "next", whole)]
    assert same[0] == same[1], "also in the score of belonging"


def test_a_new_class_resumes_to_the_same_result(world: Path, run: Path, tmp_path: Path) -> None:
    answer(run, dict.fromkeys(files_of(run)[:3], "giraffe"))
    go_on(world, run, tmp_path / "whole")
    with pytest.raises(KilledError):
        go_on(world, run, tmp_path / "killed", reporter=Watcher("round 2"))
    go_on(world, run, tmp_path / "killed", resume=True)
    for name in ("model.safetensors", "predictions.csv", "positives.csv", "labels.csv", "config.json"):
        assert (tmp_path / "killed" / name).read_bytes() == (tmp_path / "whole" / name).read_bytes(), name


@pytest.mark.parametrize(
    ("names", "says"),
    [
        (["Blue"], r"labels\.csv: 'Blue' is the class 'blue' but for upper and lower case"),
        (["Mug", "mug"], "'Mug' is the class 'mug' but for upper and lower case"),
        (["two\nlines"], "must be one line of text"),
        (["x" * 300], "at most 255 bytes"),
        (["caf\u0065\u0301"], "must be written"),
    ],
)
def test_names_that_no_class_can_have_stop_a_run_before_any_work(
    names: list[str], says: str, world: Path, run: Path, tmp_path: Path
) -> None:
    answer(run, dict(zip(files_of(run), names, strict=False)))
    with pytest.raises(DataError, match=says):
        go_on(world, run, tmp_path / "next")
    assert not (tmp_path / "next" / "model.json").exists()


def test_images_are_found_however_their_paths_are_written(
    world: Path, run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(world)
    files = files_of(run)
    answer(run, {file: truth_of(file) for file in files[:2]})
    parts = {part: Path(part) for part in ("source", "labeled", "unlabeled")}
    outcome = go_on(world, run, tmp_path / "next", **parts)
    assert outcome.record is not None
    assert len(outcome.record.labeled) == 11
    names = list(AnswerLog(tmp_path / "next" / "labels.csv").current())
    assert names == [str(Path(file).relative_to(world)) for file in files[:2]], (
        "as predictions.csv of that run names them"
    )
    assert set(names) <= set(predictions_of(tmp_path / "next").index)


def test_a_filled_in_table_of_suggestions_is_a_file_of_answers(world: Path, run: Path, tmp_path: Path) -> None:
    model = qurate.load(run)
    table = model.suggest(5, random_share=0.4)
    table["label"] = [truth_of(file) for file in table["file"]]
    table.loc[0, "label"] = ""
    (tmp_path / "answers.csv").write_bytes(to_csv(table))
    better = qurate.adapt(
        labels=tmp_path / "answers.csv",
        previous=model,
        device="cpu",
        cache=world / "cache",
        out=tmp_path / "next",
        progress=False,
    )
    log = AnswerLog(tmp_path / "next" / "labels.csv").current()
    assert {file: row.label for file, row in log.items()} == dict(table.loc[1:, ["file", "label"]].to_numpy())
    assert {row.asked for row in log.values()} == {"density", "random"}
    assert better.folder == tmp_path / "next"
    again = better.suggest(24)
    assert not set(again["file"]) & set(log), "nobody is asked again"
    again["label"] = [truth_of(file) for file in again["file"]]
    (tmp_path / "more.csv").write_bytes(to_csv(again.head(2)))
    given: dict[str, Any] = {"cache": world / "cache", "out": tmp_path / "third", "progress": False}
    qurate.adapt(labels=tmp_path / "more.csv", previous=better, **given)
    after = AnswerLog(tmp_path / "third" / "labels.csv").current()
    assert set(after) == {*log, *again["file"][:2]}, "what was answered before still holds"
    own = AnswerLog(run / "labels.csv")
    answer(run, {table["file"][1]: "none"})
    own.undo(own.rows()[0].id)  # a file in which nothing counts does not stop another
    qurate.adapt(labels=tmp_path / "answers.csv", previous=run, **{**given, "out": tmp_path / "fourth"})
    assert set(AnswerLog(tmp_path / "fourth" / "labels.csv").current()) == set(log)


def test_settings_are_those_of_the_run_before(world: Path, run: Path, tmp_path: Path) -> None:
    answer(run, {file: truth_of(file) for file in files_of(run)[:2]})
    for words in ({"steps": 7}, {"selector": "none"}, {"seed": 3}, {"config": small_config()}, {"train": "full"}):
        with pytest.raises(ConfigError, match=f"`{next(iter(words))}` cannot be given beside `previous`"):
            qurate.adapt(previous=run, out=tmp_path / "next", **words)
    go_on(world, run, tmp_path / "next")
    old, new = (json.loads((folder / "config.json").read_text()) for folder in (run, tmp_path / "next"))
    assert new["run"] == old["run"]
    assert new["places"] == old["places"]


def _without_labels(run: Path) -> None:
    (run / "labels.csv").unlink()


def _without_config(run: Path) -> None:
    (run / "config.json").unlink()


def _without_places(run: Path) -> None:
    kept = json.loads((run / "config.json").read_text())
    del kept["places"]
    (run / "config.json").write_text(json.dumps(kept))


def _with_other_weights(run: Path) -> None:
    kept = json.loads((run / "config.json").read_text())
    (run / "config.json").write_text(json.dumps({**kept, "backbone_sha256": "0" * 64}))


def _with_bad_positives(run: Path) -> None:
    table = read_csv(run / "positives.csv")
    table["phi"] = "many"
    (run / "positives.csv").write_bytes(to_csv(table))


def _with_answers_about_nothing(run: Path) -> None:
    text = (run / "labels.csv").read_text(encoding="utf-8").replace(".png", ".gif")
    (run / "labels.csv").write_text(text, encoding="utf-8")


def _with_everything_answered(run: Path) -> None:
    answer(run, {file: truth_of(file) for file in files_of(run)[:-1]})


@pytest.mark.parametrize(
    ("damage", "says"),
    [
        (_without_labels, r"labels\.csv: there is no such file, so there are no answers"),
        (_without_config, r"has no config\.json, so it is a model without its run"),
        (_without_places, r"`source`, `labeled`, `unlabeled` must be given\. The settings of the earlier"),
        (_with_other_weights, r"must have its backbone, timm/test_resnet, with the same weights"),
        (_with_bad_positives, r"positives\.csv: damaged"),
        (_with_answers_about_nothing, r"none of the 2 answers of .* is about an image of this run"),
        (_with_everything_answered, r"23 of the 24 unlabelled images are answered"),
    ],
)
def test_what_does_not_fit_is_one_clear_sentence(
    damage: Callable[[Path], None], says: str, world: Path, run: Path, tmp_path: Path
) -> None:
    answer(run, {file: truth_of(file) for file in files_of(run)[:2]})
    damage(run)
    with pytest.raises(qurate.QurateError, match=says):
        go_on(world, run, tmp_path / "next")
    assert not (tmp_path / "next" / "model.json").exists()


def test_the_run_before_is_never_written_to(world: Path, run: Path) -> None:
    answer(run, {file: truth_of(file) for file in files_of(run)[:2]})
    before = snapshot(run)
    for out in (run, run / "." / ".." / "run"):
        with pytest.raises(RunError, match="`out` must be another folder than `previous`"):
            go_on(world, run, out, force=True)
    assert snapshot(run) == before


def test_other_classes_are_refused(world: Path, run: Path, tmp_path: Path) -> None:
    answer(run, {file: truth_of(file) for file in files_of(run)[:2]})
    root = tmp_path / "other"
    places = make_folders(root)
    for part in ("source", "labeled"):
        paint(places[part] / "fourth" / "0.png", (9, 9, 9), seed=1)
    with pytest.raises(DataError, match=r"must have its 3 classes, and these differ: 'fourth'"):
        go_on(world, run, None, **places)


def test_a_model_that_was_not_written_cannot_be_gone_on_from(world: Path) -> None:
    model = qurate.load(world / "run")
    with pytest.raises(ConfigError, match="was not written as a run"):
        qurate.adapt(previous=type(model)(model.network, model.config, model.classes))


def test_a_method_with_a_discriminator_goes_on(world: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    begin(world, run, small_config("balanced", method="dann"))
    answer(run, {file: truth_of(file) for file in files_of(run)[:2]})
    assert go_on(world, run, None).record is not None


def test_all_layers_go_on_too(world: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    config = small_config("none")
    network = qurate.NetworkConfig(BACKBONE, str(world / "w.safetensors"), "normalized", features=16)
    begin(world, run, RunConfig(network, config.method, config.training, config.selection))
    answer(run, {file: truth_of(file) for file in files_of(run)[:2]})
    model = go_on(world, run, tmp_path / "next").model
    assert model.origin["trained"] == "full"


CLASSES = ("cat", "dog", "pig")


def row(file: str, said: str, predicted: str = "cat", asked: str = "margin") -> Answer:
    kind = said if said in ("none", "wrong") else "label"
    return Answer(file, "t", file, kind, said if kind == "label" else "", predicted, asked)


def applied_of(*rows: Answer, earlier: int = 0) -> AppliedAnswers:
    labels = [CLASSES.index(one.label) if one.label in CLASSES else -1 for one in rows]
    return AppliedAnswers(torch.arange(len(rows)), rows, torch.tensor(labels), earlier)


def previous_of(predictions: dict[str, str], positives: dict[str, str]) -> PreviousRun:
    config = NetworkConfig("timm/test_resnet", "none", "normalized", features=4)
    model = qurate.AdaptedModel(build_network(config, n_classes=3, input_width=None, seed=0), config, CLASSES)
    tables = [pd.DataFrame({"file": list(table), "label": list(table.values())}) for table in (predictions, positives)]
    return PreviousRun(Path("run"), {}, small_config(), model, *tables)


def test_kinds_of_answers_and_how_often_the_asked_model_was_right() -> None:
    applied = applied_of(
        row("a", "cat"),  # earlier: not counted
        row("b", "cat", asked="random"),
        row("c", "dog", asked="random"),
        row("d", "none", asked="random"),
        row("e", "wrong", asked="random"),
        row("f", "dog"),
        row("g", "giraffe"),  # no class of the run
        row("h", "pig", predicted=""),  # nobody knows what was predicted
        earlier=1,
    )
    found = summarize_answers(applied, ["cat", "cat", "dog", "pig", "pig", "cat", "cat", "pig"], pd.DataFrame(), None)
    assert (found.labeled, found.none, found.wrong, found.earlier, found.total) == (4, 2, 1, 1, 7)
    assert (found.judged, found.right) == (4, 1)
    assert found.right_now == 3
    assert (found.random, found.random_right) == (3, 1)
    assert (found.random_low, found.random_high) == wilson_interval(1, 3)
    assert found.confusions == (("cat", "dog", 2),)
    assert found.corrections is None


def test_who_rejects_a_pseudo_label_has_not_judged_a_model_that_says_something_else() -> None:
    previous = previous_of({"a": "cat", "b": "dog", "c": "cat"}, {"b": "cat"})
    chance = applied_of(
        *(row(file, said, asked="random") for file, said in (("a", "cat"), ("b", "wrong"), ("c", "wrong")))
    )
    found = summarize_answers(chance, ["cat"] * 3, pd.DataFrame({"file": [], "label": []}), previous)
    assert (found.random, found.random_right) == (2, 1)


def test_what_changed_since_the_previous_run() -> None:
    before = {"a": "cat", "b": "cat", "c": "cat", "d": "dog", "e": "pig", "f": "pig"}
    previous = previous_of(before, {"a": "cat", "b": "cat", "c": "cat", "f": "pig"})
    applied = applied_of(row("a", "cat"), row("b", "dog"), row("c", "wrong"))
    now = pd.DataFrame({"file": ["d", "e", "f", "new"], "label": ["dog", "cat", "dog", "cat"]})
    found = summarize_answers(applied, ["cat", "dog", "pig"], now, previous).corrections
    assert found is not None
    assert (found.positives, found.confirmed) == (4, 1)
    assert found.left.to_numpy().tolist() == [["b", "cat", "dog"], ["c", "cat", "wrong"]]
    assert (found.changed, found.open) == (2, 3), "an image that was not there before did not change"


def labeled_files(world: Path, part: str, name: str) -> list[str]:
    return sorted(str(path) for path in (world / part / name).iterdir())


def correct(run: Path, labels: Mapping[str, str]) -> None:
    """Add answers about labelled images to RUN/labels.csv: a class, or 'none'."""
    AnswerLog(run / "labels.csv").add(
        [
            {
                "file": file,
                "answer": "none" if label == "none" else "label",
                "label": "" if label == "none" else label,
                "predicted": "",
                "asked": "",
            }
            for file, label in labels.items()
        ]
    )


def test_an_answer_about_a_labelled_image_replaces_its_label(world: Path, run: Path, tmp_path: Path) -> None:
    before, first, second = snapshot(world / "source"), NAMES[0], NAMES[1]
    source, labeled = labeled_files(world, "source", first), labeled_files(world, "labeled", first)
    correct(run, {source[0]: second, source[1]: "none", labeled[0]: "none", source[2]: first})
    watcher = Watcher()
    done = go_on(world, run, tmp_path / "better", reporter=watcher)
    record = done.record
    assert record is not None
    labels = record.source.set_index("file")["label"]
    assert labels[source[0]] == second
    assert labels[source[2]] == first
    assert source[1] not in labels.index
    assert labeled[0] not in record.labeled["file"].tolist()
    assert len(record.labeled) == 8
    assert snapshot(world / "source") == before
    said = " ".join(watcher.lines)
    assert "1 label of labelled images corrected, and 2 images left out" in said
    assert "So the run starts anew" in said
    assert record.comparison is not None  # S+T had learned from the labels before
    assert record.answers is None
    assert not set(read_csv(tmp_path / "better" / "label_issues.csv")["file"]) & {source[0], source[2]}
    kept = AnswerLog(tmp_path / "better" / "labels.csv").current()
    assert {file: row.label or row.answer for file, row in kept.items()} == {
        source[0]: second,
        source[1]: "none",
        labeled[0]: "none",
        source[2]: first,
    }


def test_corrected_labels_stay_and_the_next_run_continues(world: Path, run: Path, tmp_path: Path) -> None:
    file = labeled_files(world, "source", NAMES[0])[0]
    correct(run, {file: NAMES[1]})
    go_on(world, run, tmp_path / "better", compare=False)
    with pytest.raises(DataError, match="has learned from all of the 1 answer"):
        go_on(world, tmp_path / "better", tmp_path / "best")
    asked = files_of(run)[0]
    answer(tmp_path / "better", {asked: truth_of(asked)})
    watcher = Watcher()
    record = go_on(world, tmp_path / "better", tmp_path / "best", reporter=watcher).record
    assert record is not None
    assert record.source.set_index("file")["label"][file] == NAMES[1]
    assert "starts anew" not in " ".join(watcher.lines)
    assert record.answers is not None
    assert record.answers.labeled == 1


def test_labels_are_corrected_in_the_table_of_issues(world: Path, run: Path, tmp_path: Path) -> None:
    first, second, third = (labeled_files(world, part, NAMES[0])[0] for part in ("source", "labeled", "source"))
    rows = [
        (first, NAMES[1], "source", NAMES[0], "", 0.9, 0.1),
        (second, NAMES[0], "labeled", NAMES[0], NAMES[1], 0.9, 0.1),
        (labeled_files(world, "source", NAMES[1])[0], "", "source", NAMES[1], NAMES[0], 0.9, 0.1),
    ]
    (tmp_path / "issues.csv").write_bytes(to_csv(pd.DataFrame(rows, columns=LABEL_ISSUES)))
    record = go_on(world, run, tmp_path / "better", labels=tmp_path / "issues.csv", compare=False).record
    assert record is not None
    assert record.source.set_index("file")["label"][third] == NAMES[1]
    assert record.labeled.set_index("file")["label"][second] == NAMES[0]
    whole = begin(world, tmp_path / "whole", labels=tmp_path / "issues.csv").record  # without the run before
    assert whole is not None
    assert whole.source.set_index("file")["label"][first] == NAMES[1]


def test_a_class_must_keep_a_labelled_image(world: Path, run: Path, tmp_path: Path) -> None:
    correct(run, dict.fromkeys(labeled_files(world, "labeled", NAMES[0]), "none"))
    with pytest.raises(DataError, match=f"'{NAMES[0]}' would have no image left in the labelled target"):
        go_on(world, run, tmp_path / "better")
    assert not (tmp_path / "better").exists()


def test_a_copy_of_a_labelled_image_that_was_left_out_gets_no_prediction(tmp_path: Path) -> None:
    make_folders(tmp_path, unlabeled=8)
    save_weights(tmp_path / "w.safetensors")
    labeled = labeled_files(tmp_path, "labeled", NAMES[0])[0]
    copy = shutil.copy(labeled, tmp_path / "unlabeled" / f"copy{Path(labeled).suffix}")
    (tmp_path / "labels.csv").write_text(f"file,label\n{labeled},none\n")
    begin(tmp_path, tmp_path / "run", labels=tmp_path / "labels.csv")
    row = predictions_of(tmp_path / "run").loc[str(copy)]
    assert (row["label"], row["probability"]) == ("", "")
    assert "same image as the labelled" in row["problem"]


def test_a_wrong_label_of_the_source_is_listed(tmp_path: Path) -> None:
    make_folders(tmp_path, unlabeled=8)
    save_weights(tmp_path / "w.safetensors")
    for number in range(6, 20):  # enough to tell
        for name in NAMES:
            paint(tmp_path / "source" / name / f"more {number}.png", COLORS[name], seed=number)
    wrong = tmp_path / "source" / NAMES[0] / "wrong.png"
    paint(wrong, COLORS[NAMES[1]], seed=99)
    begin(tmp_path, tmp_path / "run", compare=True)
    table = read_csv(tmp_path / "run" / "label_issues.csv")
    assert table[["file", "part", "given", "suggested"]].iloc[0].tolist() == [str(wrong), "source", NAMES[0], NAMES[1]]


def test_other_labelled_images_do_not_stand_for_those_held_out_before(world: Path, run: Path, tmp_path: Path) -> None:
    fewer = tmp_path / "fewer"
    shutil.copytree(world / "labeled", fewer)
    for name in NAMES:
        sorted((fewer / name).iterdir())[-1].unlink()
    asked = files_of(run)[:2]
    answer(run, {asked[0]: "none", asked[1]: truth_of(asked[1])})
    watcher = Watcher()
    go_on(world, run, tmp_path / "more", labeled=fewer, reporter=watcher)
    assert "The labelled target images are other ones than in the first of these runs." in " ".join(watcher.lines)
    before, now = (qurate.load(folder).novelty for folder in (run, tmp_path / "more"))
    assert before is not None
    assert now is not None
    assert torch.equal(before.held_out, now.held_out)
    answer(tmp_path / "more", {files_of(run)[2]: truth_of(files_of(run)[2])})
    watcher = Watcher()
    go_on(world, tmp_path / "more", tmp_path / "most", labeled=fewer, reporter=watcher)
    assert "The labelled target images are other ones than in the first of these runs." in " ".join(watcher.lines)
