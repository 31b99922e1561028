"""S+T beside the adapted model: folds of the labelled target, trained side by side, and what comes of them."""

from __future__ import annotations

import json
import math
import os
import queue
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import safetensors.torch
import torch
from safetensors import safe_open
from torch import Tensor

import qurate
from qurate.config import RunConfig, to_dict
from qurate.data.samples import Labeled, Split, Unlabeled
from qurate.embedding.backbone import choose_device
from qurate.run_results import BaselineComparison, Gain
from qurate.runs.verdict import estimate_gain, images_needed, verdict_of
from qurate.runtime.files import write_atomically
from qurate.runtime.machine import available_cores
from qurate.runtime.progress import Audience
from qurate.runtime.tensors import tensor_digest
from qurate.selection.callbacks import StepCount
from qurate.selection.crossfit import HeldOut, baseline_of, draw_folds, fit_fold, shuffle_classes

_TENSORS, _ABOUT = "task.safetensors", "task.json"


@dataclass(frozen=True, eq=False)
class Task:
    """What a process must know: the data in memory, without any sealed label, the settings, and who is held out.

    Args:
        split: D_s, D_t, D_u as tensors.
        config: The run.
        folds: Positions in D_t, one tensor for each fold.
    """

    split: Split
    config: RunConfig
    folds: tuple[Tensor, ...]

    def write(self, place: Path) -> None:
        """Write it into a folder."""
        split = self.split
        parts = {
            "source": split.source.inputs,
            "source_labels": split.source.labels,
            "labeled": split.target_labeled.inputs,
            "labeled_labels": split.target_labeled.labels,
            "unlabeled": split.target_unlabeled.inputs,
            **{f"fold {number}": fold for number, fold in enumerate(self.folds)},
        }
        write_tensors(place / _TENSORS, {name: part for name, part in parts.items() if isinstance(part, Tensor)})
        (place / _ABOUT).write_text(json.dumps({"classes": split.classes, "run": to_dict(self.config)}))

    @classmethod
    def read(cls, place: Path) -> Self:
        """Read it again."""
        about: dict[str, Any] = json.loads((place / _ABOUT).read_text())
        found = read_tensors(place / _TENSORS)
        split = Split(
            tuple(about["classes"]),
            Labeled(found["source"], found["source_labels"]),
            Labeled(found["labeled"], found["labeled_labels"]),
            Unlabeled(found["unlabeled"]),
        )
        folds = [found[f"fold {number}"] for number in range(sum(name.startswith("fold ") for name in found))]
        return cls(split, RunConfig.from_dict(about["run"]), tuple(folds))


def fold_file(number: int) -> str:
    """Name of the file of a fold that is done."""
    return f"fold-{number}.safetensors"


def write_tensors(path: Path, tensors: Mapping[str, Tensor]) -> None:
    """A file of tensors, whole or not at all."""
    write_atomically(path, safetensors.torch.save({name: each.contiguous() for name, each in tensors.items()}))


def read_tensors(path: Path) -> dict[str, Tensor]:
    """The tensors of a file, in memory that is aligned as torch's own: the last bit of a product can depend on it."""
    return {name: each.clone() for name, each in safetensors.torch.load_file(path).items()}


def pack_folds(folds: Mapping[int, HeldOut]) -> bytes:
    """Folds that are done, by their place, as the content of a file."""
    tensors = {f"{number} {name}": each for number in folds for name, each in folds[number].tensors().items()}
    return safetensors.torch.save(tensors, metadata={"sha256": tensor_digest(tensors)})


def unpack_folds(path: Path, split: Split, folds: Sequence[Tensor]) -> dict[int, HeldOut] | None:
    """The folds in a file; None where it is damaged, or of other data.

    Args:
        path: Holds what `pack_folds` gave.
        split: D_s, D_t, D_u.
        folds: Positions in D_t of the images that each holds out.
    """
    try:
        with safe_open(path, framework="pt") as file:
            about, tensors = file.metadata() or {}, {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118  # no mapping
        if about["sha256"] != tensor_digest(tensors):
            return None
        parts: dict[int, dict[str, Tensor]] = {}
        for name, each in tensors.items():
            number, _, part = name.partition(" ")
            parts.setdefault(int(number), {})[part] = each
        found = {number: HeldOut.of_tensors(each) for number, each in parts.items()}
        sound = all(number in range(len(folds)) and fold.fits(split, folds[number]) for number, fold in found.items())
    except Exception:  # a damaged or foreign file fails in many ways; none of them runs its code
        return None
    return found if sound else None


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
    several = config.execution.processes > 1  # they are busy together
    if small or several or config.network.backbone != "none" or choose_device(config.execution.device).type != "cpu":
        return 1
    return max(1, min(folds, available_cores() // max(1, config.execution.threads)))


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


FOLDS = 3
"""Folds over the labelled images where they are few. Our choice: with the usual three shots, two stay to train on."""
ENOUGH = 100
"""Images in a third of the labelled ones from which on that third is held out once, instead of in folds. Our choice."""


@dataclass(frozen=True, eq=False)
class Plan:
    """Which labelled target images are held out.

    Args:
        how: In words, for the page.
        folds: Positions in D_t, one tensor for each pair of trainings; none where there are too few images.
    """

    how: str
    folds: tuple[Tensor, ...]


def plan_comparison(labels: Tensor, *, seed: int) -> Plan:
    """Choose held-out images; every class keeps at least one to train on.

    Args:
        labels: Of D_t, (N,) int64.
        seed: Decides which images.
    """
    place, size = shuffle_classes(labels, seed=seed)
    third = ((place % FOLDS == 0) & (size >= 2 * FOLDS)).nonzero().squeeze(1)
    if len(third) >= ENOUGH and bool((size >= 2 * FOLDS).all()):
        return Plan("held-out images", (third,))
    return Plan("k-fold over the labelled images", draw_folds(labels, FOLDS, seed=seed))


def compare(folds: Sequence[HeldOut], how: str, adapted: Tensor, baseline: Tensor) -> BaselineComparison | None:
    """Judge the adapted model against S+T.

    Args:
        folds: Of `cross_fit`.
        how: The images were held out, in words.
        adapted: Log-probabilities of D_u by the adapted model, trained on all labelled images, (N_u, K).
        baseline: Those by S+T, trained on all of them too, (N_u, K).

    Returns:
        None where no image could be held out.
    """
    if not folds:
        return None
    held_out = HeldOut.join(folds)
    found = estimate_gain(held_out, adapted, baseline)
    verdict, images = verdict_of(found.gain), len(held_out.images.unique())
    wanted = more = None
    if verdict == "unclear" and found.disagreement:
        wanted = gain_worth_seeing(found.gain)
        needed = images_needed(found, images, wanted)
        more = None if needed is None else needed - images
    right = [
        float((log_probs.argmax(dim=1) == held_out.labels).double().mean())
        for log_probs in (held_out.adapted, held_out.baseline)
    ]
    moved = moved_proportions(adapted.argmax(dim=1), baseline.argmax(dim=1), adapted.shape[1])
    return BaselineComparison(
        adapted=right[0],
        baseline=right[1],
        images=images,
        how=how,
        disagreement=found.disagreement,
        moved=moved,
        gain=found.gain,
        balanced=found.balanced,
        verdict=verdict,
        wanted=wanted,
        more=more,
    )


def gain_worth_seeing(gain: Gain) -> float:
    """The estimated gain where it is a point or more, else half of what can be seen now; in points, at least 1."""
    seen = gain.smallest if math.isfinite(gain.smallest) else 0.0
    size = abs(gain.estimate) if abs(gain.estimate) >= 0.01 else seen / 2
    return max(1, round(100 * size)) / 100


def moved_proportions(adapted: Tensor, baseline: Tensor, n_classes: int) -> float:
    """Half the sum over classes of |share by one model - share by the other|: from 0 to 1.

    Args:
        adapted: Predicted classes of D_u, (N_u,).
        baseline: The same by S+T.
        n_classes: K.
    """
    shares = [torch.bincount(named, minlength=n_classes).double() / len(named) for named in (adapted, baseline)]
    return float((shares[0] - shares[1]).abs().sum() / 2)
