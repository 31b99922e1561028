"""Folds side by side: the same result, whatever the number of processes and what becomes of them."""

from __future__ import annotations

import dataclasses
import multiprocessing
import os
import pickle
import signal
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.selection.problem import blobs, config

from qurate.config import ExecutionConfig, RunConfig
from qurate.runs import comparison as crossfit
from qurate.runs.comparison import FoldTask, cross_fit, pack_folds, unpack_folds, workers_for
from qurate.runtime.processes import WorkerProcess, report_progress
from qurate.runtime.progress import Silence
from qurate.selection.crossfit import HeldOut, draw_folds

SPLIT, RUN = blobs(), config("balanced")
FOLDS = draw_folds(SPLIT.target_labeled.labels, 2, seed=0)


class Ear(Silence):
    """Remembers what it is shown."""

    def __init__(self) -> None:
        self.shown: list[tuple[str, int, int]] = []

    def show(self, phase: str, done: int, total: int) -> None:
        self.shown.append((phase, done, total))

    @property
    def phases(self) -> list[str]:
        return list(dict.fromkeys(phase for phase, _, _ in self.shown))


def same(first: tuple[HeldOut, ...], second: tuple[HeldOut, ...]) -> bool:
    pairs = zip(first, second, strict=True)
    return all(torch.equal(a.tensors()[name], b.tensors()[name]) for a, b in pairs for name in a.tensors())


@pytest.fixture(scope="module")
def one_by_one() -> tuple[HeldOut, ...]:
    return cross_fit(SPLIT, RUN, FOLDS, Silence(), workers=1)


def test_two_processes_give_what_one_gives(one_by_one: tuple[HeldOut, ...]) -> None:
    ear, kept = Ear(), []
    found = cross_fit(SPLIT, RUN, FOLDS, ear, workers=2, on_fold=lambda folds: kept.append(sorted(folds)))
    assert same(found, one_by_one)
    assert ear.phases == ["comparison, 2 of 2 folds at a time"]
    assert ear.shown[-1][1:] == (280, 280)
    assert [len(folds) for folds in kept] == [1, 2]


def test_folds_that_are_done_are_not_trained_again(one_by_one: tuple[HeldOut, ...]) -> None:
    ear = Ear()
    found = cross_fit(SPLIT, RUN, FOLDS, ear, done={1: one_by_one[1]}, workers=2)
    assert same(found, one_by_one)
    assert found[1] is one_by_one[1]
    assert ear.phases == ["comparison 1 of 2, adapted", "comparison 1 of 2, S+T"]


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
    one_by_one: tuple[HeldOut, ...], monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(crossfit, "FoldTask", Chatty)
    ear = Ear()
    assert same(cross_fit(SPLIT, RUN, FOLDS, ear, workers=2), one_by_one)
    assert ear.phases == ["comparison, 2 of 2 folds at a time"]
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize("task", [Dies, Fails])
def test_what_processes_cannot_do_is_done_here(
    one_by_one: tuple[HeldOut, ...], task: type[FoldTask], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(crossfit, "FoldTask", task)
    ear = Ear()
    assert same(cross_fit(SPLIT, RUN, FOLDS, ear, workers=2), one_by_one)
    assert ear.phases[-1] == "comparison 2 of 2, S+T"


def test_where_no_process_can_be_started_folds_are_trained_here(
    one_by_one: tuple[HeldOut, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*arguments: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(WorkerProcess, "submit", refuse)
    assert same(cross_fit(SPLIT, RUN, FOLDS, Silence(), workers=2), one_by_one)


def test_processes_end_with_what_started_them() -> None:
    started: list[Any] = []

    class Impatient(Silence):
        def show(self, phase: str, done: int, total: int) -> None:
            started[:] = multiprocessing.active_children()
            if done:
                raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        cross_fit(SPLIT, RUN, FOLDS, Impatient(), workers=2)
    assert [process.exitcode for process in started] == [-signal.SIGKILL, -signal.SIGKILL]


def test_a_task_holds_no_sealed_label() -> None:
    task = pickle.loads(pickle.dumps(FoldTask.without_seal(SPLIT, RUN, FOLDS)))
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
    ("change", "folds", "workers"),
    [
        (many_steps, 3, 3),
        (many_steps, 9, 4),
        (many_steps, 0, 1),
        (lambda run: run, 3, 1),  # over before a process has begun
        (
            lambda run: dataclasses.replace(
                many_steps(run), network=dataclasses.replace(run.network, backbone="digits")
            ),
            3,
            1,
        ),
    ],
)
def test_as_many_at_a_time_as_there_are_cores(
    change: Callable[[RunConfig], RunConfig], folds: int, workers: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(crossfit, "available_cores", lambda: 4)
    assert workers_for(change(RUN), folds) == workers


def test_folds_in_a_file_are_those_that_were_put_there(one_by_one: tuple[HeldOut, ...], tmp_path: Path) -> None:
    def of(folds: Mapping[int, HeldOut]) -> dict[int, HeldOut] | None:
        (tmp_path / "folds").write_bytes(pack_folds(folds))
        return unpack_folds(tmp_path / "folds", SPLIT, FOLDS)

    assert of({}) == {}
    found = of({1: one_by_one[1]})
    assert found is not None
    assert list(found) == [1]
    assert same((found[1],), (one_by_one[1],))
    assert of({0: one_by_one[1]}) is None  # of other images
    assert of({2: one_by_one[1]}) is None  # more than there are
    content = bytearray(pack_folds({1: one_by_one[1]}))
    content[-1] ^= 1
    (tmp_path / "folds").write_bytes(content)
    assert unpack_folds(tmp_path / "folds", SPLIT, FOLDS) is None
