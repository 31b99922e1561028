"""A tiny world to try bad inputs in: images, weights, lists, a suite, a finished and an interrupted run, a grid."""

from __future__ import annotations

import hashlib
import json
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
from tests.benchmark.tiny_grid import InlineExecutor, SmallRunner
from tests.data.tiny_suite import make_own
from tests.own_images import BACKBONE, make_folders, save_weights, small_config

from qurate.cli import run_verb
from qurate.config import RunConfig, to_dict

NETWORK = f"--backbone {BACKBONE} --weights w.safetensors --device cpu"
PLACES = "--source source --labeled labeled --unlabeled unlabeled"
QUICK = f"{NETWORK} --steps 4 --rounds 1 --selector balanced"
ADAPT = f"adapt {PLACES} {QUICK} --out new"
GRID = "benchmark --suite digits --methods ent --selectors none,random --seeds 0 --steps 6 --device cpu"


class _Stop:
    """A reporter that stops the run as a phase begins."""

    def __init__(self, phase: str) -> None:
        self._phase = phase

    def say(self, line: str) -> None:
        pass

    def show(self, phase: str, done: int, total: int, *, later: float = 0.0) -> None:
        if phase.startswith(self._phase):
            raise KeyboardInterrupt


def make_world(root: Path) -> None:
    """Everything that a row may name, with paths relative to the folder."""
    make_folders(root)
    save_weights(root / "w.safetensors")
    _make_lists(root)
    make_own(root / "suite")
    (root / "note.txt").write_text("a file of someone else's\n")
    (root / "small.json").write_text(json.dumps(to_dict(small_config("dqn"))))
    (root / "whole.json").write_text(json.dumps(to_dict(_whole_network())))
    (root / "empty").mkdir()
    with _inside(root) as patch:
        run_line(f"{ADAPT} --no-compare --out run")
        _interrupt("begun", "round 1")
        _interrupt("half", "comparison, fold 2")
        patch.setattr("qurate.benchmark.executors.ProcessExecutor", lambda *_: InlineExecutor(SmallRunner()))
        run_line(f"{GRID} --out grid")


def _whole_network() -> RunConfig:
    """The same with all layers trained, and a checkpoint every fourth step."""
    config = small_config("dqn")
    network = replace(config.network, backbone=BACKBONE, weights="w.safetensors")
    return replace(config, network=network, execution=replace(config.execution, checkpoint_steps=4))


def _make_lists(root: Path) -> None:
    for part in ("source", "labeled"):
        files = sorted(path.relative_to(root) for path in (root / part).rglob("*.*g"))
        rows = [f"{path},{path.parent.name}" for path in files]
        (root / f"{part}.csv").write_text("\n".join(["path,label", *rows]) + "\n")
    files = sorted(path.relative_to(root) for path in (root / "unlabeled").rglob("*.png"))
    (root / "unlabeled.txt").write_text("".join(f"{path}\n" for path in files))
    (root / "unlabeled.csv").write_text("path\n" + "".join(f"{path}\n" for path in files))


def _interrupt(out: str, phase: str) -> None:
    """A run that was stopped as a phase began."""
    from qurate.runs.adapt import run_adaptation

    given = {"source": "source", "labeled": "labeled", "unlabeled": "unlabeled", "out": out, "device": "cpu"}
    given |= {"backbone": BACKBONE, "weights": "w.safetensors", "selector": "balanced"}
    with pytest.raises(KeyboardInterrupt):
        run_adaptation({**given, "steps": 4, "rounds": 1}, _Stop(phase))


@contextmanager
def _inside(root: Path) -> Iterator[pytest.MonkeyPatch]:
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(root)
        yield patch


def run_line(line: str) -> None:
    """`qurate LINE`, in this process."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", ["qurate", *line.split()])
        run_verb()


def copy_world(world: Path, to: Path) -> None:
    """A world of one's own to damage."""
    shutil.copytree(world, to, symlinks=True)
    for config in to.glob("*/config.json"):  # a run knows where its weights are
        config.write_text(config.read_text(encoding="utf-8").replace(str(world), str(to)), encoding="utf-8")


def snapshot(root: Path) -> dict[str, str]:
    """A digest of every file below a folder; what is no regular file has its kind."""
    found = {}
    for path in sorted(root.rglob("*")):
        if path.is_symlink() or not path.is_dir():
            name = str(path.relative_to(root))
            whole = path.is_file() and not path.is_symlink()
            found[name] = hashlib.sha256(path.read_bytes()).hexdigest() if whole else "no regular file"
    return found
