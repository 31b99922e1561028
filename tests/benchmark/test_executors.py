"""Workers that are lost, and a benchmark that is killed: the tables are the same in the end."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from tests.benchmark.tiny_grid import DIGITS, DiesOnce, InlineExecutor, run_grid, tables, tiny_grid

from qurate.benchmark.executors import (
    CellRunner,
    Executor,
    ProcessExecutor,
    RayExecutor,
    executors_that_fit,
    gpus_per_cell,
    share_gpus,
)
from qurate.benchmark.results import BenchmarkError
from qurate.cli import run_verb
from qurate.config import ExecutionConfig
from qurate.runtime.cluster import nodes, start_ray, stop_ray

GRID = tiny_grid(methods=("source_target",))


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("whole")
    run_grid(GRID, out)
    return out


def run_in(executor: Executor, out: Path) -> None:
    try:
        assert run_grid(GRID, out, [executor]) == []
    finally:
        executor.close()


@pytest.mark.parametrize("by", [signal.SIGKILL, signal.SIGTERM])
def test_a_process_that_is_killed_is_replaced_and_its_cell_run_again(
    by: signal.Signals, whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(Path(__file__).parents[2]))  # the process must find the tests
    run_in(ProcessExecutor(DiesOnce(tmp_path / "died", by)), tmp_path)
    assert (tmp_path / "died").exists()
    assert tables(tmp_path) == tables(whole)


@pytest.mark.parametrize("by", [signal.SIGKILL, signal.SIGTERM])
def test_a_ray_worker_that_is_killed_is_replaced_and_its_cell_run_again(
    by: signal.Signals, whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(Path(__file__).parents[2]))
    pytest.importorskip("ray", reason="the extra ray is not installed")
    start_ray("local", 1)
    assert executors_that_fit(nodes(), 0, gpus=0) == 1
    try:
        run_in(RayExecutor(DiesOnce(tmp_path / "died", by), gpus=0), tmp_path)
    finally:
        stop_ray()
    assert (tmp_path / "died").exists()
    assert tables(tmp_path) == tables(whole)


COMMAND = [
    *("benchmark", "--suite", "digits", "--methods", "source_target,ent", "--selectors", "none,random", "--seeds", "0"),
    *("--steps", "6", "--processes", "1", "--device", "cpu"),
]


def test_a_benchmark_that_is_killed_goes_on_to_the_same_tables(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    killed, whole = tmp_path / "killed", tmp_path / "whole"
    process = subprocess.Popen([sys.executable, "-m", "qurate", *COMMAND, "--out", str(killed)])
    wait_until(lambda: len(rows(killed)) > 1)
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children")
    workers = children.read_text().split() if children.exists() else []
    process.send_signal(signal.SIGKILL)
    process.wait()
    wait_until(lambda: not any(alive(int(worker)) for worker in workers))  # none is left behind
    before = len(rows(killed))
    assert before < 5
    monkeypatch.setattr(sys, "argv", ["qurate", *COMMAND, "--out", str(killed)])
    run_verb()
    assert len(rows(killed)) == 5
    run_grid(tiny_grid(), whole, [InlineExecutor(CellRunner(DIGITS, None, "none"))])
    assert tables(killed) == tables(whole)


def rows(out: Path) -> list[str]:
    path = out / "results.csv"
    return path.read_text().splitlines() if path.exists() else []


def alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return "zombie" not in Path(f"/proc/{pid}/status").read_text()


def wait_until(holds: object) -> None:
    assert callable(holds)
    end = time.monotonic() + 300
    while not holds():
        assert time.monotonic() < end, "nothing happened for five minutes"
        time.sleep(0.02)


def test_a_cluster_has_no_more_executors_than_cpus_and_gpus_for_them() -> None:
    cluster = [{"CPU": 32.0, "GPU": 4.0}]
    assert executors_that_fit(cluster, processes=0, gpus=0) == 32
    assert executors_that_fit(cluster, processes=0, gpus=1) == 4
    assert executors_that_fit(cluster, processes=3, gpus=1) == 3
    assert executors_that_fit(cluster, processes=9, gpus=1) == 4
    with pytest.raises(BenchmarkError, match=r"needs 1 CPU and 1 GPU on one machine.* --device cpu"):
        executors_that_fit([{"CPU": 2.0}], processes=0, gpus=1)
    machines = [{"CPU": 8.0, "GPU": 3.0}] * 3
    assert executors_that_fit(machines, processes=0, gpus=2, cpus=2) == 3  # not 9 // 2: both on one machine
    with pytest.raises(BenchmarkError, match=r"needs 9 CPUs on one machine"):
        executors_that_fit(machines, processes=0, gpus=0, cpus=9)


def test_whether_a_cell_on_a_cluster_needs_gpus_depends_on_the_cluster(monkeypatch: pytest.MonkeyPatch) -> None:
    with_gpus, without = [{"CPU": 4.0}, {"CPU": 8.0, "GPU": 2.0}], [{"CPU": 4.0}]
    for here in (True, False):  # whatever the machine that starts the cells has
        monkeypatch.setattr("torch.cuda.is_available", lambda here=here: here)
        assert gpus_per_cell(ExecutionConfig(), with_gpus) == 1
        assert gpus_per_cell(ExecutionConfig(devices=2), with_gpus) == 2
        assert gpus_per_cell(ExecutionConfig(devices=3), with_gpus) == 0  # no machine has three
        assert gpus_per_cell(ExecutionConfig(), without) == 0
        assert gpus_per_cell(ExecutionConfig(device="cpu"), with_gpus) == 0
        assert gpus_per_cell(ExecutionConfig(device="cuda"), without) == 1  # and `executors_that_fit` refuses it


def test_executors_of_this_machine_share_its_gpus() -> None:
    assert share_gpus(list("0123"), count=4, each=1) == ["0", "1", "2", "3"]
    assert share_gpus(list("0123"), count=2, each=2) == ["0,1", "2,3"]
    assert share_gpus(list("01"), count=3, each=1) == ["0", "1", "0"]
    assert share_gpus(["5", "7", "8"], count=1, each=2) == ["5,7"]
    assert share_gpus([], count=2, each=0) == [None, None]
