"""The comparison with S+T: which images are held out, folds in processes, and the result."""

from __future__ import annotations

import contextlib
import dataclasses
import math
import multiprocessing
import os
import pickle
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tests.selection.problem import blobs, config

from qurate.config import ExecutionConfig, RunConfig
from qurate.data.samples import Labeled, Unlabeled, take
from qurate.report.run_text import outcome
from qurate.run_results import Gain
from qurate.runs import comparison as crossfit
from qurate.runs.comparison import (
    CrossFit,
    Folds,
    FoldTask,
    compare,
    gain_worth_seeing,
    moved_proportions,
    pack_folds,
    plan_comparison,
    share_folds,
    unpack_folds,
    workers_for,
)
from qurate.runtime.processes import WorkerProcess, report_progress
from qurate.runtime.progress import Silence
from qurate.selection.crossfit import Fold, HeldOut, draw_folds


def labels_of(*sizes: int) -> torch.Tensor:
    return torch.cat([torch.full((size,), label) for label, size in enumerate(sizes)])


def test_three_shots_are_held_out_once_each_and_two_stay() -> None:
    labels = labels_of(3, 3, 3, 3)
    plan = plan_comparison(labels, seed=0)
    assert plan.how == "k-fold over the labelled images"
    assert sorted(torch.cat(plan.folds).tolist()) == list(range(12))
    for fold in plan.folds:
        assert sorted(labels[fold].tolist()) == [0, 1, 2, 3]


@given(st.lists(st.integers(1, 9), min_size=2, max_size=6), st.integers(0, 5))
def test_every_class_keeps_an_image_to_train_on(sizes: list[int], seed: int) -> None:
    labels = labels_of(*sizes)
    held = []
    for fold in plan_comparison(labels, seed=seed).folds:
        assert bool((torch.bincount(labels[fold], minlength=len(sizes)) < torch.tensor(sizes)).all())
        held += fold.tolist()
    assert len(held) == len(set(held)) == sum(size for size in sizes if size > 1)


def test_many_labelled_images_are_held_out_at_once() -> None:
    plan = plan_comparison(labels_of(150, 160), seed=0)
    assert plan.how == "held-out images"
    assert [len(fold) for fold in plan.folds] == [50 + 54]


def test_single_shots_cannot_be_held_out() -> None:
    assert plan_comparison(labels_of(1, 1, 1), seed=0).folds == ()


def test_who_is_right_is_counted_over_all_folds() -> None:
    labels = torch.tensor([0, 1, 2])
    right, wrong = torch.eye(3).log(), torch.eye(3).roll(1, dims=1).log()
    folds = [HeldOut(labels, labels, said, wrong) for said in (right, right, wrong)]
    found = compare(HeldOut.join(folds), "in turn", right, wrong)
    assert found.adapted == pytest.approx(6 / 9)
    assert (found.baseline, found.images, found.how) == (0.0, 3, "in turn")
    assert (found.disagreement, found.moved) == (1.0, 0.0)


def test_what_is_not_clear_says_what_would_make_it_so() -> None:
    labels = torch.arange(12) % 3
    said = (2 * torch.eye(3)[labels]).log_softmax(dim=1)
    other = said.clone()
    other[0] = said[1]
    found = compare(HeldOut(torch.arange(12), labels, said, other), "in turn", said, other)
    assert found.verdict == "unclear"
    assert found.wanted is not None
    assert found.more is None or found.more > 0


def test_models_that_say_the_same_leave_nothing_to_label_for() -> None:
    labels = torch.arange(6) % 3
    said = torch.eye(3)[labels].log_softmax(dim=1)
    found = compare(HeldOut(torch.arange(6), labels, said, said), "in turn", said, said)
    assert (found.verdict, found.wanted, found.more) == ("unclear", None, None)
    assert "does not matter which" in outcome(found).text[-1]


@pytest.mark.parametrize(
    ("estimate", "smallest", "wanted"), [(-0.034, 0.1, 0.03), (0.002, 0.1, 0.05), (0.002, math.inf, 0.01)]
)
def test_a_gain_worth_seeing_is_one_that_may_be_there(estimate: float, smallest: float, wanted: float) -> None:
    assert gain_worth_seeing(Gain(estimate, -0.1, 0.1, smallest)) == wanted


def test_proportions_move_by_what_changes_sides() -> None:
    first, second = torch.tensor([0, 0, 1, 2]), torch.tensor([0, 1, 1, 1])
    assert moved_proportions(first, second, 3) == 0.5
    assert moved_proportions(first, first.flip(0), 3) == 0


SPLIT, RUN = blobs(), config("balanced")
FOLDS = draw_folds(SPLIT.target_labeled.labels, 2, seed=0)


class Ear(Silence):
    """Remembers what it is shown."""

    def __init__(self) -> None:
        self.shown: list[tuple[str, int, int]] = []

    def show(self, phase: str, done: int, total: int, *, later: float = 0.0) -> None:
        self.shown.append((phase, done, total))

    @property
    def phases(self) -> list[str]:
        return list(dict.fromkeys(phase for phase, _, _ in self.shown))


def same(first: tuple[Fold, ...], second: tuple[Fold, ...]) -> bool:
    pairs = zip(first, second, strict=True)
    return all(torch.equal(a.tensors()[name], b.tensors()[name]) for a, b in pairs for name in a.tensors())


def cross_fit(reporter: Silence, **options: Any) -> tuple[Fold, ...]:
    with CrossFit(SPLIT, RUN, FOLDS, title="S+T", **options) as training:
        return training.finish(reporter)


@pytest.fixture(scope="module")
def one_by_one() -> tuple[Fold, ...]:
    return cross_fit(Silence(), workers=1)


def test_two_processes_give_what_one_gives(one_by_one: tuple[Fold, ...]) -> None:
    ear, kept = Ear(), []
    found = cross_fit(ear, workers=2, on_fold=lambda number, fold: kept.append(number))
    assert same(found, one_by_one)
    assert ear.phases == ["S+T, 2 of 2 folds at a time"]
    assert ear.shown[-1][1:] == (160, 160)
    assert sorted(kept) == [0, 1]


def test_folds_that_are_done_are_not_trained_again(one_by_one: tuple[Fold, ...]) -> None:
    ear = Ear()
    found = cross_fit(ear, done={1: one_by_one[1]}, workers=2)
    assert same(found, one_by_one)
    assert found[1] is one_by_one[1]
    assert ear.phases == ["S+T, fold 1 of 2"]


def test_other_processes_train_while_this_one_does_something_else(one_by_one: tuple[Fold, ...]) -> None:
    ear = Ear()
    with CrossFit(SPLIT, RUN, FOLDS, title="S+T", workers=2, beside=True) as training:
        (worker,) = multiprocessing.active_children()
        while not any(future.done() for future in training._running):
            assert worker.is_alive()
            time.sleep(0.05)
        assert same(training.finish(ear), one_by_one)
    assert ear.shown[0][1] >= 80, "the steps of a fold were made before"
    assert not worker.is_alive()


@pytest.mark.parametrize("stopped", [True, False])
def test_folds_that_were_trained_beside_are_kept_when_the_training_stops(
    one_by_one: tuple[Fold, ...], stopped: bool
) -> None:
    kept: dict[int, Fold] = {}
    training = CrossFit(SPLIT, RUN, FOLDS, title="S+T", workers=2, beside=True, on_fold=kept.__setitem__)
    with contextlib.suppress(KeyboardInterrupt), training:
        while not any(future.done() for future in training._running):
            time.sleep(0.05)
        if stopped:
            raise KeyboardInterrupt
        training.collect()
        assert 0 in kept
    assert 0 in kept
    assert not multiprocessing.active_children()
    resumed = CrossFit(SPLIT, RUN, FOLDS, title="S+T", workers=1, done=kept)
    assert 0 not in resumed._missing
    with resumed:
        assert same(resumed.finish(Silence()), one_by_one)


@given(st.integers(0, 9), st.integers(1, 5), st.booleans())
def test_folds_are_shared_such_that_all_processes_end_together(folds: int, workers: int, busy: bool) -> None:
    shares = share_folds(range(folds), workers, busy=busy)
    assert sorted(fold for share in shares for fold in share) == list(range(folds))
    assert len(shares) == workers
    trainings = [len(shares[0]) + busy, *map(len, shares[1:])]
    assert max(trainings) == max(-(-(folds + busy) // workers), 0)
    assert trainings[0] == min(trainings) or (busy and trainings[0] == 1), "this process has something else to do"


class Chatty(FoldTask):
    """Prints on the way, as a library in a user's environment may."""

    def __call__(self, number: int) -> bytes:
        print("done")
        print("a stray line", file=sys.stderr, flush=True)
        return super().__call__(number)


class Dies(FoldTask):
    """Loses its process."""

    def __call__(self, number: int) -> bytes:
        report_progress(7)
        os.kill(os.getpid(), signal.SIGKILL)
        return b""


class Fails(FoldTask):
    """Cannot train."""

    def __call__(self, number: int) -> bytes:
        raise ValueError("not here")


def test_a_stray_line_of_a_process_is_not_its_end(
    one_by_one: tuple[Fold, ...], monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(crossfit, "FoldTask", Chatty)
    ear = Ear()
    assert same(cross_fit(ear, workers=2), one_by_one)
    assert ear.phases == ["S+T, 2 of 2 folds at a time"]
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize("task", [Dies, Fails])
def test_what_processes_cannot_do_is_done_here(
    one_by_one: tuple[Fold, ...], task: type[FoldTask], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(crossfit, "FoldTask", task)
    ear = Ear()
    assert same(cross_fit(ear, workers=2), one_by_one)
    assert ear.phases == ["S+T, 2 of 2 folds at a time", "S+T, fold 1 of 2"]


def test_where_no_process_can_be_started_folds_are_trained_here(
    one_by_one: tuple[Fold, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*arguments: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(WorkerProcess, "submit", refuse)
    assert same(cross_fit(Silence(), workers=2), one_by_one)


@pytest.mark.parametrize("many", ["source", "target_unlabeled"])
def test_very_many_embeddings_of_any_part_are_not_copied_to_processes(
    many: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(crossfit, "available_cores", lambda: 2)
    few, run = torch.arange(40), many_steps(RUN)
    source, unlabeled = SPLIT.source, SPLIT.target_unlabeled
    small = dataclasses.replace(
        SPLIT,
        source=Labeled(take(source.inputs, few), source.labels[few]),
        target_unlabeled=Unlabeled(take(unlabeled.inputs, few)),
    )
    monkeypatch.setattr(crossfit, "MOST_IN_MEMORY", 40)
    assert len(CrossFit(small, run, FOLDS, title="S+T")._shares) == 2
    large = dataclasses.replace(small, **{many: getattr(SPLIT, many)})
    assert len(CrossFit(large, run, FOLDS, title="S+T")._shares) == 1


def test_processes_end_with_what_started_them() -> None:
    started: list[Any] = []

    class Impatient(Silence):
        def show(self, phase: str, done: int, total: int, *, later: float = 0.0) -> None:
            started[:] = multiprocessing.active_children()
            if done:
                raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        cross_fit(Impatient(), workers=2)
    assert [process.exitcode for process in started] == [-signal.SIGKILL]  # the other fold is trained here


def test_a_task_holds_no_sealed_label() -> None:
    task = pickle.loads(pickle.dumps(FoldTask.without_seal(SPLIT, RUN, FOLDS, [None] * len(FOLDS))))
    assert task.config == RUN
    assert task.split.classes == SPLIT.classes
    assert SPLIT.target_unlabeled.sealed is not None
    assert task.split.target_unlabeled.sealed is None
    assert isinstance(SPLIT.source.inputs, torch.Tensor)
    assert torch.equal(task.split.source.inputs, SPLIT.source.inputs)
    assert [fold.tolist() for fold in task.folds] == [fold.tolist() for fold in FOLDS]


def many_steps(run: RunConfig) -> RunConfig:
    return dataclasses.replace(
        run, training=dataclasses.replace(run.training, steps=2000), execution=ExecutionConfig("cpu")
    )


def all_layers(run: RunConfig) -> RunConfig:
    return dataclasses.replace(many_steps(run), network=dataclasses.replace(run.network, backbone="digits"))


@pytest.mark.parametrize(
    ("change", "folds", "rows", "workers"),
    [
        (many_steps, 3, 100, 3),
        (many_steps, 9, 100, 4),
        (many_steps, 0, 100, 1),
        (many_steps, 3, 100_001, 1),  # each process would have a copy of them
        (lambda run: run, 3, 100, 1),  # over before a process has begun
        (all_layers, 3, 100, 1),
    ],
)
def test_as_many_at_a_time_as_there_are_cores(
    change: Callable[[RunConfig], RunConfig], folds: int, rows: int, workers: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(crossfit, "available_cores", lambda: 4)
    assert workers_for(change(RUN), folds, rows) == workers


def test_folds_in_a_file_are_those_that_were_put_there(one_by_one: tuple[Fold, ...], tmp_path: Path) -> None:
    def of(folds: Folds) -> Folds | None:
        (tmp_path / "folds").write_bytes(pack_folds(folds))
        return unpack_folds(tmp_path / "folds", SPLIT, FOLDS)

    assert of({}) == {}
    found = of({("adapted", 1): one_by_one[1], ("baseline", 0): one_by_one[0]})
    assert found is not None
    assert set(found) == {("adapted", 1), ("baseline", 0)}
    assert same((found["baseline", 0], found["adapted", 1]), one_by_one)
    assert of({("adapted", 0): one_by_one[1]}) is None  # of other images
    assert of({("adapted", 2): one_by_one[1]}) is None  # more than there are
    content = bytearray(pack_folds({("adapted", 1): one_by_one[1]}))
    content[-1] ^= 1
    (tmp_path / "folds").write_bytes(content)
    assert unpack_folds(tmp_path / "folds", SPLIT, FOLDS) is None
