"""What a split shares between its parts, found without opening a hidden label."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import combinations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from qurate.data.domains import list_some
from qurate.data.samples import Inputs, Labeled, Split

_EXAMPLES = 3


@dataclass(frozen=True)
class Overlap:
    """Samples that two parts share.

    Args:
        first: Name of a part.
        second: Name of another.
        count: How many different samples are in both.
        examples: The first few, as the first part names them.
    """

    first: str
    second: str
    count: int
    examples: tuple[str, ...]


@dataclass(frozen=True)
class Audit:
    """What `audit` found.

    Args:
        sizes: Samples of each part.
        overlaps: Every pair of parts that share samples.
        repeats: Samples that a part holds again, counted for each part that does.
        class_sizes: Samples of each class, for each part with readable labels.
        empty_classes: Classes without sample, for each such part that lacks some.
    """

    sizes: Mapping[str, int]
    overlaps: tuple[Overlap, ...]
    repeats: Mapping[str, int]
    class_sizes: Mapping[str, Mapping[str, int]]
    empty_classes: Mapping[str, tuple[str, ...]]

    @property
    def clean(self) -> bool:
        """Whether no sample is in two parts."""
        return not self.overlaps

    def lines(self) -> list[str]:
        """The findings, one sentence each."""
        said = [self._describe_part(part) for part in self.sizes]
        for found in self.overlaps:
            of_second = f"{found.count} of {self.sizes[found.second]} samples of {found.second}"
            said.append(f"{of_second} are also in {found.first}: {list_some(found.examples)}.")
        said += [f"{part} holds {count} samples more than once." for part, count in self.repeats.items()]
        for part, names in self.empty_classes.items():
            said.append(f"{part} has no sample of {len(names)} classes: {list_some(names)}.")
        if self.clean:
            said.append("No sample is in two parts.")
        return said

    def _describe_part(self, part: str) -> str:
        if part not in self.class_sizes:
            return f"{part}: {self.sizes[part]} samples, labels sealed."
        counts = self.class_sizes[part].values()
        return f"{part}: {self.sizes[part]} samples, {min(counts)} to {max(counts)} in each of {len(counts)} classes."


def audit(split: Split) -> Audit:
    """Name every sample that is in two parts of a split, and what each part holds.

    Files are the same if they resolve to the same path, tensors if all their bytes agree. Sealed labels
    stay sealed: nothing is said of the classes of the unlabelled part.

    Args:
        split: Any split.

    Example:
        >>> from qurate.data.digits import digits_split
        >>> lines = audit(digits_split(shots=3, seed=0)).lines()
        >>> lines[2], lines[3]
        ('target_unlabeled: 1767 samples, labels sealed.', 'No sample is in two parts.')
    """
    labeled = {"source": split.source, "target_labeled": split.target_labeled, "validation": split.validation}
    readable = {part: samples for part, samples in labeled.items() if samples is not None}
    inputs: dict[str, Inputs] = {
        "source": split.source.inputs,
        "target_labeled": split.target_labeled.inputs,
        "target_unlabeled": split.target_unlabeled.inputs,
    }
    if split.validation is not None:
        inputs["validation"] = split.validation.inputs
    found = {part: _identities(values) for part, values in inputs.items()}
    sizes = {part: len(values) for part, values in inputs.items()}
    class_sizes = {part: _count_classes(samples, split.classes) for part, samples in readable.items()}
    empty = {part: tuple(k for k, n in counts.items() if n == 0) for part, counts in class_sizes.items()}
    return Audit(
        sizes=sizes,
        overlaps=_find_overlaps(found),
        repeats={part: sizes[part] - len(found[part]) for part in found if sizes[part] > len(found[part])},
        class_sizes=class_sizes,
        empty_classes={part: names for part, names in empty.items() if names},
    )


def _find_overlaps(found: Mapping[str, dict[str, str]]) -> tuple[Overlap, ...]:
    overlaps = []
    for (first, names), (second, others) in combinations(found.items(), 2):
        shared = [name for identity, name in names.items() if identity in others]
        if shared:
            overlaps.append(Overlap(first, second, len(shared), tuple(shared[:_EXAMPLES])))
    return tuple(overlaps)


def _identities(inputs: Inputs) -> dict[str, str]:
    """What identifies each different sample, and what to call it."""
    if isinstance(inputs, Tensor):
        keys = [hashlib.sha256(row.tobytes()).hexdigest() for row in _bytes(inputs)]
        names = [f"row {i}" for i in range(len(keys))]
    else:
        keys = [str(path.resolve()) for path in inputs.paths]
        names = [str(path) for path in inputs.paths]
    first: dict[str, str] = {}
    for key, name in zip(keys, names, strict=True):
        first.setdefault(key, name)
    return first


def _bytes(inputs: Tensor) -> NDArray[np.uint8]:
    width = math.prod(inputs.shape[1:])
    rows: NDArray[np.uint8] = inputs.detach().cpu().reshape(len(inputs), width).contiguous().view(torch.uint8).numpy()
    return rows


def _count_classes(part: Labeled, classes: tuple[str, ...]) -> dict[str, int]:
    counts = torch.bincount(part.labels, minlength=len(classes)).tolist()
    return dict(zip(classes, counts, strict=True))
