"""The two checkpoints of a run: the newest, and the one before it, should the newest be damaged."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

import safetensors.torch
from safetensors import safe_open

from qurate.runs.staging import CHECKPOINT_BEFORE, CHECKPOINT_FILE, RunError
from qurate.runtime.checksums import not_finite, tensor_digest
from qurate.runtime.files import write_atomically
from qurate.selection.checkpoint import Progress


class RunWarning(UserWarning):
    """Something of a run was lost, and the run goes on without it."""


def load_newest(folder: Path) -> Progress | None:
    """What the newest checkpoint that is whole holds; None where there is none at all.

    Raises:
        RunError: If all that there are are damaged.
    """
    problems = []
    for path in (folder / name for name in (CHECKPOINT_FILE, CHECKPOINT_BEFORE)):
        if not path.is_file():
            continue
        try:
            progress = read_checkpoint(path)
        except Exception as error:  # a damaged or foreign file fails in many ways; none of them runs its code
            problems.append(f"{path}: damaged ({error}).")
            continue
        for problem in problems:
            warnings.warn(f"{problem} The run continues from the checkpoint before it.", RunWarning, stacklevel=2)
            with suppress(OSError):  # else the next one would be kept in place of the sound one
                (folder / CHECKPOINT_FILE).unlink()
        return progress
    if problems:
        raise RunError(f"{' '.join(problems)} Pass `force=True` to start again.")
    return None


def write_newest(folder: Path, progress: Progress) -> None:
    """Keep a checkpoint; what was the newest becomes the one before, and that one goes."""
    tensors = progress.tensors()
    about = {"sha256": tensor_digest(tensors), "rounds": str(len(progress.rounds))}
    if progress.within is not None:
        about |= {"line": str(progress.within.line), "steps": str(progress.within.steps)}
    content, newest = safetensors.torch.save(tensors, metadata=about), folder / CHECKPOINT_FILE
    if newest.is_file():
        newest.replace(folder / CHECKPOINT_BEFORE)
    write_atomically(newest, content)


def read_checkpoint(path: Path) -> Progress:
    """What a checkpoint holds.

    Raises:
        Exception: Of many kinds, if it is damaged.
    """
    with safe_open(path, framework="pt") as file:
        about, tensors = file.metadata() or {}, {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118  # no mapping
    if about.get("sha256") not in (None, tensor_digest(tensors)):
        raise ValueError("its numbers are not those that were written")
    if strange := not_finite({name: tensors[name] for name in tensors if name.startswith("trainer.")}):
        raise ValueError(f"NaN in {strange[0]}")
    return Progress.of_tensors(tensors)


def say_how_far(folder: Path) -> str:
    """What the newest checkpoint says of itself, as the beginning of a sentence.

    Raises:
        Exception: Of many kinds, if there is none or it is damaged.
    """
    about = _newest_words(folder)
    rounds, steps = int(about["rounds"]), int(about.get("steps", 0))
    if about.get("line") == "1":
        return f"The first {steps} steps of pre-training are"
    done = "Pre-training" if not rounds else f"Pre-training and {rounds} of the rounds"
    if steps:
        return f"{done} and {steps} steps of {'the next one' if rounds else 'the first round'} are"
    return f"{done} {'are' if rounds else 'is'}"


def _newest_words(folder: Path) -> Mapping[str, str]:
    for name in (CHECKPOINT_FILE, CHECKPOINT_BEFORE):
        with suppress(Exception), safe_open(folder / name, framework="pt") as file:  # missing or damaged
            return file.metadata() or {}
    return {}
