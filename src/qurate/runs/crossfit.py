"""Folds of the labelled target, trained side by side in processes of their own where there are cores for them.

A process is a plain interpreter that runs `qurate.runs.fold_worker`: it never runs the user's script again, as those of
`multiprocessing` do. It is given the embeddings and the settings in files, and the numbers of its folds one by one.
What a process cannot do, for whatever reason, is done here, one fold after another, with the same result.
"""

from __future__ import annotations

import os
import queue
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Self

from torch import Tensor

import qurate
from qurate.config import RunConfig
from qurate.data.embedding.frozen import choose_device
from qurate.data.samples import Split
from qurate.runs.fold_files import Task, fold_file, read_tensors
from qurate.runtime.machine import available_cores
from qurate.runtime.progress import Audience
from qurate.selection.counting import StepCount
from qurate.selection.crossfit import HeldOut, baseline_of, fit_fold

WORTH_A_PROCESS = 2000
"""Training steps of all folds from which on processes are started: each takes seconds to begin. Our choice."""
_PAUSE = 0.5
"""Seconds between two looks at whether this process is to stop."""


def cross_fit(
    split: Split,
    config: RunConfig,
    folds: Sequence[Tensor],
    audience: Audience,
    *,
    done: Mapping[int, HeldOut] | None = None,
    on_fold: Callable[[Mapping[int, HeldOut]], None] | None = None,
    lanes: int | None = None,
) -> tuple[HeldOut, ...]:
    """Train the adapted model and S+T without each fold's images; the result does not depend on how many run at once.

    Args:
        split: D_s, D_t, D_u.
        config: The run; S+T has the same network, training and seed.
        folds: Positions in D_t of the images to hold out, one tensor for each pair of trainings.
        audience: Told how far it is.
        done: Folds of an interrupted run, by their place in `folds`.
        on_fold: Called after each fold with all that are done.
        lanes: How many to train side by side; as `lanes_for` says unless given.
    """
    found = dict(done or {})

    def keep(number: int, fold: HeldOut) -> None:
        found[number] = fold
        if on_fold is not None:
            on_fold(found)

    missing = [number for number in range(len(folds)) if number not in found]
    lanes = min(lanes_for(config, len(missing)) if lanes is None else lanes, len(missing))
    if lanes > 1:
        _side_by_side(split, config, folds, missing, lanes, audience, keep)
    for number in missing:
        if number not in found:
            name = f"comparison {number + 1} of {len(folds)}"
            keep(number, fit_fold(split, config, folds[number], name=name, listen=partial(StepCount, audience)))
    return tuple(found[number] for number in range(len(folds)))


def lanes_for(config: RunConfig, folds: int) -> int:
    """How many folds to train side by side: one for each core, where only the head is trained, on a CPU."""
    small = folds * steps_of_fold(config) < WORTH_A_PROCESS
    several = config.training.processes > 1  # they are busy together
    if small or several or config.network.backbone != "none" or choose_device(config.training.device).type != "cpu":
        return 1
    return max(1, min(folds, available_cores() // max(1, config.training.threads)))


def steps_of_fold(config: RunConfig) -> int:
    """Training steps of both models."""
    return config.total_steps + baseline_of(config).total_steps


def _side_by_side(
    split: Split,
    config: RunConfig,
    folds: Sequence[Tensor],
    missing: Sequence[int],
    lanes: int,
    audience: Audience,
    keep: Callable[[int, HeldOut], None],
) -> None:
    """Train folds in processes; those that none of them could train are left."""
    each, waiting, steps = steps_of_fold(config), list(missing), dict.fromkeys(missing, 0)
    phase = f"comparison, {lanes} of {len(folds)} folds at a time"
    with ExitStack() as stack:
        try:
            place = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="qurate-")))
            Task(split, config, tuple(folds)).write(place)
            heard: queue.Queue[tuple[_Process, str]] = queue.Queue()
            working = {stack.enter_context(_Process(place, heard)) for _ in range(lanes)}
        except OSError:  # no room, or no such interpreter
            return
        for process in working:
            process.take(waiting.pop(0))
        audience.show(phase, 0, each * len(missing))
        while working:
            try:
                process, line = heard.get(timeout=_PAUSE)
            except queue.Empty:
                continue
            word, _, number = line.partition(" ")
            if word == "steps":
                steps[process.fold] = int(number)
            elif word == "done":
                steps[process.fold] = each
                keep(process.fold, HeldOut.of_tensors(read_tensors(place / fold_file(process.fold))))
                if waiting:
                    process.take(waiting.pop(0))
                else:
                    working.discard(process)
            else:  # it ended before its time
                working.discard(process)
            audience.show(phase, sum(steps.values()), each * len(missing))


class _Process:
    """One interpreter that trains folds; it is killed at the end of the block, and ends by itself if this one dies.

    Args:
        place: Folder of what it needs to know.
        heard: Where it and its lines are put; an empty line at its end.
    """

    def __init__(self, place: Path, heard: queue.Queue[tuple[_Process, str]]) -> None:
        self.fold = -1
        here = str(Path(qurate.__file__).parents[1])
        paths = os.pathsep.join(filter(None, (here, os.environ.get("PYTHONPATH", ""))))
        self._process = subprocess.Popen(
            (sys.executable, "-m", "qurate.runs.fold_worker", str(place)),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,  # what goes wrong there goes wrong here again, and is told then
            env={**os.environ, "PYTHONPATH": paths, "OMP_NUM_THREADS": "1"},
            text=True,
        )
        self._ear = threading.Thread(target=self._listen, args=(heard,), daemon=True)
        self._ear.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._process.kill()
        self._process.wait()
        self._ear.join()
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                with suppress(OSError):  # what was not yet read by the process that is gone
                    pipe.close()

    def take(self, fold: int) -> None:
        """Train this fold next."""
        self.fold = fold
        assert self._process.stdin is not None
        with suppress(OSError):  # it is gone, which its last line will tell
            self._process.stdin.write(f"{fold}\n")
            self._process.stdin.flush()

    def _listen(self, heard: queue.Queue[tuple[_Process, str]]) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            heard.put((self, line.strip()))
        heard.put((self, ""))
