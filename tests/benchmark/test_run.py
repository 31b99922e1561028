from __future__ import annotations

import errno
import json
import math
import re
import shutil
import warnings
from collections.abc import Callable
from concurrent.futures import Future
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path

import pytest
import torch
from tests.benchmark.tiny_grid import InlineExecutor, SmallRunner, run_grid, tables, tiny_grid

from qurate.benchmark.cell import Cell, CellResult, run_cell
from qurate.benchmark.executors import next_cell
from qurate.benchmark.folder import BenchmarkFolder
from qurate.benchmark.results import ROUND_COLUMNS, BenchmarkError, read_results
from qurate.calibration import combine
from qurate.config import RunConfig
from qurate.data.samples import UNKNOWN
from qurate.evaluation import true_labels
from qurate.networks.inference import log_probabilities
from qurate.runtime.cluster import RETRIES
from qurate.runtime.files import write_atomically
from qurate.selection.algorithm import fit
from qurate.selection.crossfit import fit_product, leave_out

GRID = tiny_grid()


class NoSourceTarget(SmallRunner):
    """Fails at one method."""

    def localize(self, config: RunConfig) -> RunConfig:
        if config.method.name == "source_target":
            raise RuntimeError("the disk is gone")
        return config


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("whole")
    assert run_grid(GRID, out) == []
    return out


def test_one_row_a_cell_and_one_a_round_in_the_order_of_the_grid(whole: Path) -> None:
    table = read_results(whole / "results.csv")
    assert list(table["config"]) == [cell.name for cell in GRID.cells()]
    assert list(zip(table["method"], table["selector"], strict=True)) == [
        ("source_target", "none"),
        ("source_target", "random"),
        ("ent", "none"),
        ("ent", "random"),
    ]
    assert list(table["positives"].isna()) == [True, False, True, False]
    assert set(table["device"]) == {"cpu"}
    header, *rounds = (whole / "rounds.csv").read_text().splitlines()
    assert header == (
        "scenario,method,selector,shots,seed,round,accuracy,positives,positives_accuracy,coverage,imbalance,"
        "unknown,missing_classes"
    )
    assert len(rounds) == 2 * (4 + 1)
    for cell in GRID.cells():
        folder = whole / "cells" / cell.name
        assert sorted(file.name for file in folder.iterdir()) == ["config.json", "rounds.csv", "rows.csv"]
        stored = json.loads((folder / "config.json").read_text())
        assert (stored["scenario"], stored["selector"]) == (cell.scenario, cell.selector)
        assert stored["config"]["method"]["name"] == cell.config.method.name


def test_several_executors_and_another_order_give_the_same_tables(whole: Path, tmp_path: Path) -> None:
    executors = [InlineExecutor(), InlineExecutor(), InlineExecutor()]
    run_grid(tiny_grid(methods=("ent", "source_target"), selectors=("random", "none")), tmp_path, executors)
    assert tables(tmp_path) == tables(whole)
    assert sum(len(executor.ran) for executor in executors) == 4


def test_a_finished_cell_is_not_run_again_and_a_table_holds_what_was_asked_for(tmp_path: Path) -> None:
    run_grid(tiny_grid(methods=("ent",)), tmp_path)
    executor = InlineExecutor()
    run_grid(GRID, tmp_path, [executor])
    assert [cell.config.method.name for cell in executor.ran] == ["source_target", "source_target"]
    assert len(read_results(tmp_path / "results.csv")) == 4
    run_grid(tiny_grid(methods=("ent",)), tmp_path, [executor])
    assert len(executor.ran) == 2
    assert set(read_results(tmp_path / "results.csv")["method"]) == {"ent"}


def test_a_failing_cell_is_recorded_and_the_others_go_on_and_it_runs_again_next_time(
    whole: Path, tmp_path: Path
) -> None:
    failed = run_grid(GRID, tmp_path, [InlineExecutor(NoSourceTarget())])
    assert [cell.config.method.name for cell in failed] == ["source_target"] * 2
    folder = BenchmarkFolder(tmp_path)
    assert folder.error(failed[0]).strip().endswith("RuntimeError: the disk is gone")
    assert not folder.is_finished(failed[0])
    assert list(read_results(tmp_path / "results.csv")["method"]) == ["ent", "ent"]
    assert run_grid(GRID, tmp_path) == []
    assert not folder.error(failed[0])
    assert tables(tmp_path) == tables(whole)


def test_a_cell_whose_rows_were_not_written_yet_is_not_finished(whole: Path, tmp_path: Path) -> None:
    cell = GRID.cells()[0]
    folder = BenchmarkFolder(tmp_path)
    folder.keep(cell, CellResult(error="Traceback\nKeyError: 'x'\n"))
    (tmp_path / "cells" / cell.name / "rounds.csv").write_text("half")
    assert not folder.is_finished(cell)
    run_grid(GRID, tmp_path)
    assert tables(tmp_path) == tables(whole)


def test_a_calibrated_cell_is_judged_as_the_product(whole: Path, tmp_path: Path) -> None:
    grid = tiny_grid(methods=("ent",), calibrate=True)
    assert run_grid(grid, tmp_path, [InlineExecutor()]) == []
    found, plain = read_results(tmp_path / "results.csv"), read_results(whole / "results.csv")
    plain = plain[plain["method"] == "ent"].reset_index(drop=True)
    assert plain["temperature"].isna().all()
    assert list(found["selector"]) == list(plain["selector"])
    assert found["temperature"].between(0.1, 100).all()
    assert (found["ece_calibrated"] != found["ece"]).all()
    for cell, row in zip(grid.cells(), found.itertuples(), strict=True):
        split = InlineExecutor().runner.load(cell)
        product = fit_product(split, cell.config)
        assert product is not None
        assert row.temperature == pytest.approx(product.calibration.temperature, rel=1e-5)
        network = fit(leave_out(split, product.flagged)[0], cell.config).method.network
        log_probs, unlabeled = log_probabilities(network, split.target_unlabeled.inputs), product.label_unlabeled(split)
        combined = combine(log_probs, unlabeled, product.calibration)
        right = combined.argmax(dim=1) == true_labels(split.target_unlabeled)
        assert row.accuracy == pytest.approx(float(right.double().mean()), abs=1e-5)


def test_nothing_can_be_held_out_of_one_label_per_class() -> None:
    (cell, *_) = tiny_grid(methods=("ent",), shots=(1,)).cells()
    assert fit_product(InlineExecutor().runner.load(cell), cell.config) is None


def test_cells_of_several_imbalances_train_and_are_measured_on_what_was_kept(tmp_path: Path) -> None:
    grid = tiny_grid(methods=("ent",), imbalance=(1, 20))
    executor = InlineExecutor()
    assert run_grid(grid, tmp_path, [executor]) == []
    results, rounds = read_results(tmp_path / "results.csv"), read_results(tmp_path / "rounds.csv", ROUND_COLUMNS)
    assert list(results["imbalance"]) == [1, 1, 20, 20]
    assert rounds.groupby("imbalance").size().to_dict() == {1: 5, 20: 5}
    assert results["ece"].between(0, 1).all()
    whole, thin = (executor.runner.load(cell).target_unlabeled for cell in grid.cells()[1:3])
    assert len(whole) == 200
    last = rounds.groupby("imbalance").last()  # of the selector that takes 0.9 of D_u in the last round
    assert list(last["positives"]) == [180, math.ceil(0.9 * len(thin))]
    counts = torch.bincount(true_labels(thin))
    assert 1 <= int(counts.min()) < int(counts.max()) / 5


def test_cells_with_hidden_classes_train_on_the_others_and_are_measured_by_both(tmp_path: Path) -> None:
    grid = tiny_grid(methods=("ent",), unknown=(0, 4), missing_classes=(0, 2), steps=20)
    executor = InlineExecutor()
    assert run_grid(grid, tmp_path, [executor]) == []
    results, rounds = read_results(tmp_path / "results.csv"), read_results(tmp_path / "rounds.csv", ROUND_COLUMNS)
    changes = [(0, 0), (0, 0), (0, 2), (0, 2), (4, 0), (4, 0), (4, 2), (4, 2)]
    assert list(zip(results["unknown"], results["missing_classes"], strict=True)) == changes
    assert rounds.groupby(["unknown", "missing_classes"]).size().to_dict() == dict.fromkeys(changes, 5)
    assert results["auroc"].between(0, 1).all()
    assert list(results["auroc_unknown"].notna()) == list(results["unknown"] > 0)
    assert results["hos"].isna().all()  # a network alone flags nothing
    for cell, row in zip(grid.cells(), results.itertuples(), strict=True):
        split = executor.runner.load(cell)
        assert split.n_classes == 10 - cell.unknown
        truth = true_labels(split.target_unlabeled)
        assert bool((truth == UNKNOWN).any()) == (cell.unknown > 0)
        assert len(truth[truth >= 0].unique()) == 10 - cell.unknown - cell.missing_classes
        (alone,) = run_cell(split, cell, cell.config)[0].rows
        assert (row.accuracy, row.auroc) == pytest.approx((alone.accuracy, alone.auroc), rel=1e-5)


def _cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-9])


def _no_row(path: Path) -> None:
    path.write_text(path.read_text().splitlines()[0] + "\n")


def _too_good(path: Path) -> None:
    path.write_text(re.sub(r"0\.\d+", "99999", path.read_text()))


@pytest.mark.parametrize("name", ["rows.csv", "rounds.csv"])
@pytest.mark.parametrize("damage", [_cut, _no_row, _too_good, Path.unlink, lambda path: path.write_bytes(b"\xff\0")])
def test_a_damaged_cell_is_told_of_once_and_run_again(
    whole: Path, tmp_path: Path, name: str, damage: Callable[[Path], None]
) -> None:
    shutil.copytree(whole, tmp_path, dirs_exist_ok=True)
    cell = GRID.cells()[1]
    damage(tmp_path / "cells" / cell.name / name)
    executor = InlineExecutor()
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        assert run_grid(GRID, tmp_path, [executor]) == []
    assert executor.ran == [cell]
    assert tables(tmp_path) == tables(whole)
    expected = 0 if (name, damage) == ("rows.csv", Path.unlink) else 1  # without rows it had never ended
    assert [str(w.message).endswith("The cell is run again.") for w in said] == [True] * expected


def test_results_that_cannot_be_written_stop_the_benchmark_and_a_second_try_goes_on(
    whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    written: list[Path] = []

    def full_disk(path: Path, content: str | bytes) -> None:
        written.append(path)
        if len(written) == 8:
            raise OSError(errno.ENOSPC, "No space left on device")
        write_atomically(path, content)

    monkeypatch.setattr("qurate.benchmark.results.write_atomically", full_disk)
    with pytest.raises(BenchmarkError, match=r"cannot be written \(No space left on device\)\. Make room"):
        run_grid(GRID, tmp_path)
    executor = InlineExecutor()
    run_grid(GRID, tmp_path, [executor])
    assert 0 < len(executor.ran) < 4
    assert tables(tmp_path) == tables(whole)


def claim(path: Path) -> None:
    with BenchmarkFolder(path).claimed():
        pass


def test_a_folder_is_one_benchmarks_at_a_time(tmp_path: Path) -> None:
    with (
        BenchmarkFolder(tmp_path).claimed(),
        pytest.raises(BenchmarkError, match="in use by another"),
    ):
        claim(tmp_path)
    claim(tmp_path)


def test_a_folder_that_is_a_file_or_somebody_elses_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for path in (tmp_path / "file", tmp_path / "file" / "below", tmp_path / ("x" * 300)):
        with pytest.raises(BenchmarkError, match="`out` must be a folder that can be written"):
            claim(path)
    (tmp_path / "results.csv").touch()
    with pytest.raises(BenchmarkError, match="was not written by `qurate benchmark`"):
        claim(tmp_path)


class LostExecutor(InlineExecutor):
    """Its worker is killed by every cell."""

    def submit(self, cell: Cell) -> Future[CellResult]:
        self.ran.append(cell)
        future: Future[CellResult] = Future()
        future.set_exception(BrokenProcessPool())
        return future


def test_a_cell_that_always_loses_its_worker_fails_in_the_end(tmp_path: Path) -> None:
    grid, executor = tiny_grid(methods=("ent",), selectors=("none",)), LostExecutor()
    (failed,) = run_grid(grid, tmp_path, [executor])
    assert len(executor.ran) == 1 + RETRIES
    assert "was lost 4 times" in BenchmarkFolder(tmp_path).error(failed)


def test_an_executor_keeps_to_its_pre_training_and_then_takes_one_that_no_other_has() -> None:
    cells = tiny_grid(seeds=(0, 1)).cells()
    keys = list(dict.fromkeys(cell.pretraining for cell in cells))
    first, second, third = keys[:3]
    assert next_cell(cells, second, {first}).pretraining == second
    assert next_cell(cells, None, {first, second}).pretraining == third
    assert next_cell(cells, "gone", set(keys)) == cells[0]
