"""What a run computes, in training steps, and the time that all of it still takes."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from tests.own_images import BACKBONE, make_folders, save_weights, small_config

from qurate.config import ExecutionConfig
from qurate.presets import baseline_of
from qurate.runs import comparison, workload
from qurate.runs.adapt import run_adaptation
from qurate.runs.workload import STEP_SECONDS, TimeLeft, Workload, workload_of

LABELS = torch.tensor([0, 0, 0, 1, 1, 1])
SIZES = (50, 6, 44)


class Seen:
    def __init__(self) -> None:
        self.now = 0.0
        self.later: dict[str, float] = {}

    def say(self, line: str) -> None:
        pass

    def show(self, phase: str, done: int, total: int, *, later: float = 0.0) -> None:
        self.later[f"{phase} {done}"] = later


def test_a_workload_has_the_steps_of_every_phase(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workload, "workers_for", lambda config, folds, rows: 2)
    config = small_config("adaptive")  # 15 steps, 2 rounds of 5
    whole = workload_of(config, LABELS, SIZES, compare=True)
    assert whole == Workload(15, 15, 15, 10, 4025, 25, 4025 / 4)  # one of three folds beside, then two at a time
    assert workload_of(config, LABELS, SIZES, compare=False) == Workload(15, 0, 15, 10, 4025, 0, 0)
    assert workload_of(config, LABELS[::3], SIZES, compare=True).folds == 0  # nothing can be held out
    alone = replace(config, selection=replace(config.selection, labeler="network"))
    assert workload_of(alone, LABELS, SIZES, compare=False).baseline == 0
    assert workload_of(baseline_of(config), LABELS, SIZES, compare=True) == Workload(0, 0, 15, 0, 4025, 0, 0)


def test_folds_of_very_many_embeddings_are_trained_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(comparison, "available_cores", lambda: 4)
    monkeypatch.setattr(comparison, "MOST_IN_MEMORY", 50)
    config = small_config("adaptive")
    config = replace(config, training=replace(config.training, steps=2000), execution=ExecutionConfig("cpu"))
    few, many = (workload_of(config, LABELS, sizes, compare=True) for sizes in (SIZES, (50, 6, 51)))
    assert (few.baseline_folds, few.folds) == (0, 0)  # all three beside the training
    assert (many.baseline_folds, many.folds) == (3 * 2000, 3 * config.total_steps)


def test_the_time_left_counts_all_phases_the_writing_too() -> None:
    seen, work = Seen(), Workload(100, 200, 100, 80, 1000, 400, 250)
    left = TimeLeft(seen, work, lambda: seen.now)
    left.show("embedding", 0, 10)
    assert seen.later["embedding 0"] == pytest.approx(2130 * STEP_SECONDS)  # no step was timed
    for phase, total in (
        ("S+T on all labelled images", 100),
        ("S+T, 2 of 3 folds at a time", 300),
        ("pre-training", 100),
        ("round 1 of 2", 40),
        ("round 2 of 2", 40),
    ):
        for done in range(0, total + 1, 20):
            seen.now += 0.1 if done else 0.0  # a hundredth of a second per 2 steps
            left.show(phase, done, total)
    step = 0.1 / 20
    assert seen.later["S+T on all labelled images 100"] == pytest.approx(2030 * step)
    assert seen.later["S+T, 2 of 3 folds at a time 300"] == pytest.approx(1830 * step)
    assert seen.later["pre-training 100"] == pytest.approx(1730 * step)
    assert seen.later["round 1 of 2 40"] == pytest.approx(1690 * step)
    assert seen.later["round 2 of 2 40"] == pytest.approx(1650 * step)
    left.show("writing the results", 0, 1)
    left.show("writing the results", 1, 1)
    assert seen.later["writing the results 0"] == pytest.approx(1650 * step)  # its own time is expected too
    assert seen.later["writing the results 1"] == pytest.approx(650 * step)
    left.show("comparison, fold 1 of 2", 40, 100)
    left.show("comparison, fold 2 of 2", 100, 100)
    assert seen.later["comparison, fold 1 of 2 40"] == pytest.approx(450 * step)
    assert seen.later["comparison, fold 2 of 2 100"] == pytest.approx(250 * step)
    left.show("looking at the images", 1, 2)
    assert seen.later["looking at the images 1"] == 0.0


def test_the_time_left_is_known_in_every_phase_of_a_run(tmp_path: Path) -> None:
    seen = Seen()
    options = {"backbone": BACKBONE, "weights": save_weights(tmp_path / "w.safetensors"), "device": "cpu"}
    small = {"selector": "adaptive", "steps": 30, "rounds": 2, "cache": tmp_path / "cache", "out": tmp_path / "run"}
    run_adaptation({**make_folders(tmp_path), **options, **small}, seen)
    assert {phase for phase, later in seen.later.items() if not later} == set()
    for name in ("embedding", *workload._PHASES):
        assert any(phase.startswith(name) for phase in seen.later), name
