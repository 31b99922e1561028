"""Folds in files: what a process that trains them must know, and what came of them."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import safetensors.torch
from safetensors import safe_open
from torch import Tensor

from qurate.config import RunConfig, to_dict
from qurate.data.samples import Labeled, Split, Unlabeled
from qurate.runtime.checksums import tensor_digest
from qurate.runtime.files import write_atomically
from qurate.selection.crossfit import HeldOut

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
