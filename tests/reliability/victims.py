"""What is disturbed: commands that go on where they were, and how their results are compared with undisturbed ones."""

from __future__ import annotations

import csv
from abc import ABC, abstractmethod
from pathlib import Path

import safetensors.torch
import torch
from tests.reliability.processes import CLOCK_BACK, SLOW_DISK
from tests.reliability.world import NETWORK, PLACES

_LEFT_OUT = ("seconds", "commit")


class Victim(ABC):
    """A command that is stopped and started again until it is done.

    Args:
        fresh: Whether it needs an interpreter of its own, for its workers start more.
    """

    name: str
    fresh = False

    @abstractmethod
    def words(self, out: str) -> list[str]:
        """The command line, with where its result goes; the same every time."""

    @abstractmethod
    def result(self, out: Path) -> dict[str, object]:
        """What must be the same, part by part."""

    def environment(self, out: Path) -> dict[str, str]:
        """Variables of its own."""
        return {}


class Adapt(Victim):
    """`adapt` by a small agent, with its comparison.

    Args:
        steps: Of pre-training.
        cold: Whether it has an empty cache of its own.
    """

    def __init__(self, steps: int = 60, *, cold: bool = False) -> None:
        self.name = "adapt with an empty cache" if cold else "adapt"
        self._steps, self._cold = steps, cold

    def words(self, out: str) -> list[str]:
        quick = f"--config small.json --steps {self._steps} --rounds 3"
        return f"adapt {PLACES} {NETWORK} {quick} --out {out} --resume".split()

    def result(self, out: Path) -> dict[str, object]:
        return run_result(out)

    def environment(self, out: Path) -> dict[str, str]:
        return {"QURATE_CACHE": f"{out}-cache"} if self._cold else {}


class SlowDisk(Adapt):
    """`adapt` on a disk that takes its time to write and to rename, so that signals come in between."""

    def __init__(self) -> None:
        super().__init__()
        self.name = "adapt, slow disk"

    def environment(self, out: Path) -> dict[str, str]:
        return {SLOW_DISK: "0.15"}


class ClockBack(Adapt):
    """`adapt` with a clock that goes back by ten minutes whenever it is looked at, and an empty cache."""

    def __init__(self) -> None:
        super().__init__(cold=True)
        self.name = "adapt, clock goes back"

    def environment(self, out: Path) -> dict[str, str]:
        return {**super().environment(out), CLOCK_BACK: "600"}


class WholeNetwork(Victim):
    """`adapt` that trains all layers, with a small agent; killed in the middle of training, it goes on from there.

    Args:
        devices: Processes that train together.
    """

    def __init__(self, devices: int = 1) -> None:
        self.name = "adapt, all layers" if devices == 1 else f"adapt, {devices} devices"
        self.fresh = devices > 1
        self._devices = devices

    def words(self, out: str) -> list[str]:
        quick = f"--config whole.json --steps 60 --rounds 3 --no-compare --devices {self._devices}"
        return f"adapt {PLACES} {quick} --out {out} --resume".split()

    def result(self, out: Path) -> dict[str, object]:
        return run_result(out)


class Embed(Victim):
    """`embed` into a cache of its own."""

    name = "embed"

    def words(self, out: str) -> list[str]:
        return f"embed source labeled unlabeled {NETWORK} --cache {out}".split()

    def result(self, out: Path) -> dict[str, object]:
        rows: dict[str, object] = {}
        for path in sorted(out.rglob("*.safetensors")):
            tensors = safetensors.torch.load_file(path)
            for key, vector in zip(tensors["keys"], tensors["vectors"], strict=True):
                rows[bytes(key.tolist()).hex()] = vector
        return rows


class Benchmark(Victim):
    """`benchmark` in two workers, of this machine or of Ray."""

    fresh = True

    def __init__(self, *, ray: bool = False, seeds: str = "0,1") -> None:
        self.name = "benchmark on Ray" if ray else "benchmark"
        self._ray, self._seeds = ray, seeds

    def words(self, out: str) -> list[str]:
        grid = f"--suite digits --methods ent --selectors none,balanced --seeds {self._seeds} --steps 20 --device cpu"
        return f"benchmark {grid} --processes 2 --out {out}{' --ray local' if self._ray else ''}".split()

    def result(self, out: Path) -> dict[str, object]:
        return {name: table(out / name) for name in ("results.csv", "rounds.csv")}


class Report(Victim):
    """`report` on a finished benchmark."""

    name = "report"

    def words(self, out: str) -> list[str]:
        return f"report grid --out {out}".split()

    def result(self, out: Path) -> dict[str, object]:
        return {path.name: path.read_bytes() for path in sorted(out.iterdir()) if not path.name.startswith(".")}


def run_result(out: Path) -> dict[str, object]:
    """What a finished run left, without what says how long it took."""
    tables: dict[str, object] = {name: (out / name).read_bytes() for name in ("predictions.csv", "positives.csv")}
    return {
        **tables,
        "metrics.csv": table(out / "metrics.csv"),
        **safetensors.torch.load_file(out / "model.safetensors"),
    }


def table(path: Path) -> list[dict[str, str]]:
    """The rows of a table, without what differs from run to run."""
    with path.open(encoding="utf-8", newline="") as file:
        rows = [row for row in csv.DictReader(file) if row.get("what") not in _LEFT_OUT]
    return [{name: row[name] for name in row if name not in _LEFT_OUT} for row in rows]


def differences(found: dict[str, object], wanted: dict[str, object]) -> list[str]:
    """The parts that are not the same to the last bit."""
    return sorted(name for name in found.keys() | wanted.keys() if not _same(found.get(name), wanted.get(name)))


def _same(one: object, other: object) -> bool:
    if isinstance(one, torch.Tensor) and isinstance(other, torch.Tensor):
        return one.shape == other.shape and torch.equal(one, other)
    return one == other and type(one) is type(other)
