"""What the parts of a split share, found without opening a hidden label."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import combinations

from qurate.data.images import ImageFiles
from qurate.data.samples import Split


@dataclass(frozen=True)
class Overlap:
    """Files that two parts share.

    Args:
        first: Name of a part.
        second: Name of another.
        count: How many different files are in both.
        size: How many the second part holds.
    """

    first: str
    second: str
    count: int
    size: int


def find_overlaps(split: Split) -> list[Overlap]:
    """Every pair of parts of a split of image files that share some; files are the same if their real paths are.

    Example:
        >>> find_overlaps(read_mme_split("data/office31", "webcam", "amazon", shots=3))  # images  # doctest: +SKIP
        [Overlap(first='target_unlabeled', second='validation', count=93, size=93)]
    """
    parts: Mapping[str, object] = {
        "source": split.source.inputs,
        "target_labeled": split.target_labeled.inputs,
        "target_unlabeled": split.target_unlabeled.inputs,
        "validation": None if split.validation is None else split.validation.inputs,
    }
    files = {name: inputs.paths for name, inputs in parts.items() if isinstance(inputs, ImageFiles)}
    found = {name: {path.resolve() for path in paths} for name, paths in files.items()}
    pairs = [(first, second, len(found[first] & found[second])) for first, second in combinations(found, 2)]
    return [Overlap(first, second, count, len(files[second])) for first, second, count in pairs if count]
