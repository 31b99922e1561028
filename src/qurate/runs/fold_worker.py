"""A process that trains folds for `qurate.runs.comparison`: `python -m qurate.runs.fold_worker FOLDER`.

It reads the number of a fold per line, and says how many steps are done and when the fold is in its file. It ends when
nobody can write to it any more.
"""

from __future__ import annotations

import itertools
import os
import queue
import signal
import sys
import threading
from functools import partial
from pathlib import Path

import torch

from qurate.runs.comparison import Task, fold_file, write_tensors
from qurate.runtime.machine import keep_freed_memory
from qurate.selection.callbacks import Callback
from qurate.selection.crossfit import fit_fold

_EVERY = 10
"""Steps between two lines."""


class _Steps(Callback):
    """Says how many steps of both trainings are done."""

    def __init__(self) -> None:
        self._done = itertools.count(1)

    def on_step(self, step: int, terms: dict[str, float]) -> None:
        """One more."""
        if (done := next(self._done)) % _EVERY == 0:
            print(f"steps {done}", flush=True)


def work(place: Path) -> None:
    """Train the folds that are asked for, until nobody asks."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the process that started this one, and ends it
    asked: queue.SimpleQueue[int] = queue.SimpleQueue()
    threading.Thread(target=_listen, args=(asked,), daemon=True).start()
    keep_freed_memory()
    torch.set_num_threads(1)
    task = Task.read(place)
    while True:
        number, steps = asked.get(), _Steps()
        fold = fit_fold(task.split, task.config, task.folds[number], listen=partial(_same, steps))
        write_tensors(place / fold_file(number), fold.tensors())
        print("done", flush=True)


def _same(steps: _Steps, name: str, total: int) -> Callback:
    return steps


def _listen(asked: queue.SimpleQueue[int]) -> None:
    for line in sys.stdin:
        asked.put(int(line))
    os._exit(0)  # whoever asked is gone


if __name__ == "__main__":
    work(Path(sys.argv[1]))
