from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest
from tests.selection.problem import blobs, config

from qurate.runs.callbacks import EVERY, TensorBoardCurves
from qurate.selection.algorithm import fit


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of tensorboard's own imports
def test_a_run_leaves_its_curves(tmp_path: Path) -> None:
    accumulator = pytest.importorskip(
        "tensorboard.backend.event_processing.event_accumulator", reason="the extra tensorboard is not installed"
    )
    curves = TensorBoardCurves(tmp_path)
    result = fit(blobs(), config(rounds=2), callbacks=[curves])
    curves.close()
    events = accumulator.EventAccumulator(str(tmp_path))
    events.Reload()
    assert len(events.Scalars("training/loss")) == (60 + 2 * 10) // EVERY
    assert [point.value for point in events.Scalars("selection/reward")] == result.positives.rewards.tolist()
    assert [point.value for point in events.Scalars("selection/phi")] == pytest.approx(result.positives.phi.tolist())
    counted = [(point.step, point.value) for point in events.Scalars("rounds/positives")]
    assert counted == [(record.round, record.positives) for record in result.rounds]


def test_without_the_extra_nothing_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("qurate.runs.callbacks.find_spec", lambda name: None)
    curves = TensorBoardCurves(tmp_path / "logs")
    curves.on_step(1, {"loss": 1.0})
    curves.close()
    assert not (tmp_path / "logs").exists()


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no full device here")
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of tensorboard's own imports
def test_a_full_disk_costs_the_curves_and_no_more(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard", reason="the extra tensorboard is not installed")
    curves, before = TensorBoardCurves(tmp_path), threading.active_count()
    curves._write("a", 1.0, 1)
    (path,) = tmp_path.iterdir()
    with path.open("rb") as ours, Path("/dev/full").open("wb", buffering=0) as full:
        (number,) = (int(link.name) for link in Path("/proc/self/fd").iterdir() if _writes(link, path, ours.fileno()))
        os.dup2(full.fileno(), number)
    with pytest.warns(RuntimeWarning, match=r"curves cannot be written \(No space left on device\)"):
        curves._write("a", 2.0, 2)
    curves._write("a", 3.0, 3)  # is left out
    curves.close()
    assert threading.active_count() == before


def _writes(link: Path, path: Path, but: int) -> bool:
    return link.exists() and link.resolve() == path and int(link.name) != but
