"""A domain: samples of one look of the world, with the class names their labels point into.

Read from folders or arrays.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from qurate.data.images import ImageFiles
from qurate.data.listing import DataWarning as DataWarning
from qurate.data.listing import Listing, Skipped, list_any_folder, list_class_folders
from qurate.data.samples import DataError, Inputs, describe, take
from qurate.runtime.paths import count, list_some
from qurate.runtime.validation import show

Array: TypeAlias = NDArray[Any] | Tensor


@dataclass(frozen=True, eq=False)
class Domain:
    """Samples of one domain.

    Args:
        name: What messages call it.
        inputs: N samples.
        labels: Class index of each, (N,) int64; -1 where unlabelled.
        classes: Class names; a label is an index into them. Empty if nothing is labelled.
        skipped: Files that were found beside the samples but are none.

    Example:
        >>> pair = from_arrays(np.zeros((2, 8)), ["cat", "dog"], name="photos")
        >>> pair.classes, pair.labels.tolist()
        (('cat', 'dog'), [0, 1])
    """

    name: str
    inputs: Inputs
    labels: Tensor
    classes: tuple[str, ...]
    skipped: tuple[Skipped, ...] = ()

    def __post_init__(self) -> None:
        where = f"Domain '{self.name}'"
        if not isinstance(self.inputs, Tensor | ImageFiles) or not isinstance(self.labels, Tensor):
            raise DataError(
                f"{where}: inputs must be a tensor or image files and labels a tensor, got {describe(self.inputs)} and "
                f"{describe(self.labels)}. Build the domain with from_arrays or read_folder."
            )
        if not isinstance(self.classes, tuple) or not all(isinstance(name, str) for name in self.classes):
            raise DataError(f"{where}: classes must be a tuple of names, got {show(self.classes)}.")
        if self.labels.dtype != torch.int64 or self.labels.ndim != 1:
            raise DataError(
                f"{where}: labels must be one-dimensional int64, got {self.labels.dtype} of shape "
                f"{tuple(self.labels.shape)}. Build the domain with from_arrays, which converts them."
            )
        if len(self.inputs) != len(self.labels):
            raise DataError(
                f"{where}: each sample needs one label (-1 = unlabelled), got {len(self.inputs)} inputs "
                f"and {len(self.labels)} labels."
            )
        if len(set(self.classes)) != len(self.classes):
            raise DataError(f"{where}: class names must differ, got {list_some(self.classes)}.")
        lowest, highest = (int(v) for v in self.labels.aminmax()) if len(self.labels) else (-1, -1)
        if lowest < -1 or highest >= len(self.classes):
            raise DataError(
                f"{where}: labels must lie between -1 (unlabelled) and {len(self.classes) - 1}, the last of "
                f"{len(self.classes)} classes; got {lowest} to {highest}."
            )

    def __len__(self) -> int:
        return len(self.labels)

    def class_sizes(self) -> Tensor:
        """How many labelled samples each class has, (K,) int64."""
        return torch.bincount(self.labels[self.labels >= 0], minlength=len(self.classes))

    def keep(self, indices: Tensor) -> Domain:
        """The samples at these positions, in this order."""
        return replace(self, inputs=take(self.inputs, indices), labels=self.labels[indices])


def from_arrays(
    inputs: Array,
    labels: Array | Sequence[int] | Sequence[str] | None,
    classes: Sequence[str] | None = None,
    name: str = "arrays",
) -> Domain:
    """A domain from arrays in memory.

    Args:
        inputs: (N, ...) numbers, sample first; kept as float32, not rescaled.
        labels: (N,) integers, -1 = unlabelled; or class names, "" = unlabelled; or None, nothing labelled.
        classes: Names that integer labels index. Without them, the distinct labels become the names.
        name: What messages call the domain.

    Raises:
        DataError: If shapes disagree, an input is not finite or a label is out of range.
    """
    if classes is not None and (isinstance(classes, str) or not isinstance(classes, Sequence | np.ndarray)):
        raise DataError(f"from_arrays: classes of '{name}' must be a list of names, got {show(classes)}.")
    values = _as_float(inputs, name)
    words = np.full(len(values), -1) if labels is None else _as_array(labels, f"labels of '{name}'")
    if words.shape != (len(values),):
        raise DataError(
            f"from_arrays: labels of '{name}' must have shape ({len(values)},), one for each input, got {words.shape}."
        )
    if words.dtype == object and all(isinstance(word, str) for word in words):
        words = words.astype(str)
    if words.dtype.kind in "iu":
        indices, names = _index_integers(words, classes)
    elif words.dtype.kind in "UT" or not len(words):
        indices, names = _index_words(words, classes, name)
    else:
        raise DataError(
            f"from_arrays: labels of '{name}' must be integers (-1 = unlabelled) or strings ('' = unlabelled), "
            f"got dtype {words.dtype}. Convert them first."
        )
    return Domain(name, values, torch.tensor(indices, dtype=torch.int64), names)


def domain_of(listing: Listing) -> Domain:
    """The domain of image files that were found."""
    labels = torch.tensor(listing.labels, dtype=torch.int64)
    return Domain(listing.name, ImageFiles(listing.paths), labels, listing.classes, listing.skipped)


def listing_of(domain: Domain) -> Listing:
    """The image files of a domain."""
    assert isinstance(domain.inputs, ImageFiles)
    return Listing(domain.name, domain.inputs.paths, tuple(domain.labels.tolist()), domain.classes, domain.skipped)


def leave_out(domain: Domain, unreadable: Mapping[Path, str]) -> Domain:
    """The domain without its unreadable files, which move to `skipped`; a warning counts and names them.

    Args:
        domain: Of image files.
        unreadable: Files, of this domain or not, and why they cannot be read.

    Raises:
        DataError: If no file of the domain can be read.
    """
    listing = listing_of(domain)
    rest = listing.without(unreadable)
    return domain if rest is listing else domain_of(rest)


def match_classes(
    source: Domain, target: Domain, *, missing: Literal["error", "drop"] = "error"
) -> tuple[Domain, Domain]:
    """Both domains with labels into one list of classes: the common names, in the source's order.

    Unlabelled samples stay as they are.

    Args:
        source: Its order of classes is kept.
        target: Its labels are renumbered.
        missing: `error` raises if a class exists on one side only; `drop` leaves out its samples and warns.

    Raises:
        DataError: If a class is missing on one side, no class is common, or no image file has one.
    """
    if missing not in ("error", "drop"):
        raise DataError(f"missing must be 'error' or 'drop', got '{missing}'.")
    for domain in (source, target):
        if isinstance(domain.inputs, ImageFiles) and not domain.classes:
            raise DataError(f"'{domain.name}' must have labels, but no image has a class. Fill in the column label.")
    common = tuple(name for name in source.classes if name in set(target.classes))
    findings = [found for domain in (source, target) if (found := _only_here(domain, common))]
    if findings and (missing == "error" or not common):
        advice = "Rename the classes alike"
        if len(common) == len(target.classes):  # most likely nobody has labelled an image of the others
            advice = f"Label an image of each in '{target.name}', or rename the classes alike"
        drop = ", or pass `missing='drop'` to keep those that both have" if len(common) > 1 else ""
        raise DataError(
            f"'{source.name}' and '{target.name}' must have the same class names, but "
            f"{'; '.join(findings)}. {advice}{drop}."
        )
    if findings:
        warnings.warn(f"Dropped, as {'; '.join(findings)}.", DataWarning, stacklevel=2)
    return _relabel(source, common), _relabel(target, common)


def _only_here(domain: Domain, common: tuple[str, ...]) -> str:
    extra = {i: name for i, name in enumerate(domain.classes) if name not in common}
    if not extra:
        return ""
    samples = int(domain.class_sizes()[list(extra)].sum())
    how_many = f"{count(len(extra), 'class', 'classes')}, {count(samples, 'sample')}"
    return f"only '{domain.name}' has {list_some(extra.values())} ({how_many})"


def _relabel(domain: Domain, classes: tuple[str, ...]) -> Domain:
    if domain.classes == classes:
        return domain
    dropped = -2
    # The last entry serves label -1, which stays -1.
    table = torch.tensor([classes.index(name) if name in classes else dropped for name in domain.classes] + [-1])
    kept = torch.nonzero(table[domain.labels] != dropped).flatten()
    return Domain(domain.name, take(domain.inputs, kept), table[domain.labels[kept]], classes, domain.skipped)


def _as_array(values: Any, what: str) -> NDArray[Any]:
    try:
        return np.asarray(values.detach().cpu().numpy() if isinstance(values, Tensor) else values)
    except (TypeError, ValueError) as error:
        raise DataError(f"from_arrays: {what} must be an array, with rows of one length ({error}).") from error


def _as_float(inputs: Array, name: str) -> Tensor:
    if isinstance(inputs, Tensor) and inputs.is_complex():
        raise DataError(f"from_arrays: inputs of '{name}' must be real numbers, got {describe(inputs)}.")
    if not isinstance(inputs, Tensor):
        array = _as_array(inputs, f"inputs of '{name}'")
        if array.dtype.kind not in "biuf":
            raise DataError(
                f"from_arrays: inputs of '{name}' must be real numbers, got dtype {array.dtype}. Convert them "
                "first; image files are read by read_folder, read_list or read_table."
            )
        inputs = torch.tensor(array.astype(np.float32))
    values = inputs.detach().to(torch.float32)
    if values.ndim < 2 or not len(values):
        raise DataError(
            f"from_arrays: inputs of '{name}' must have shape (samples, ...) with at least one sample, "
            f"got {tuple(values.shape)}. Reshape single numbers to (samples, 1)."
        )
    wrong = int((~values.isfinite()).flatten(1).any(1).sum())
    if wrong:
        raise DataError(
            f"from_arrays: inputs of '{name}' must be finite, got NaN or infinity in {wrong} of {len(values)} "
            "samples. Remove or repair them."
        )
    return values


def _index_integers(numbers: NDArray[Any], classes: Sequence[str] | None) -> tuple[list[int], tuple[str, ...]]:
    if classes is not None:
        return numbers.tolist(), tuple(classes)
    known = np.unique(numbers[numbers != -1])
    if len(known) and known[0] < 0:
        raise DataError(f"from_arrays: labels must be -1 (unlabelled) or at least 0, got {known[0]}.")
    position = {number: i for i, number in enumerate(known.tolist())}
    return [position.get(number, -1) for number in numbers.tolist()], tuple(str(n) for n in known)


def _index_words(words: NDArray[Any], classes: Sequence[str] | None, name: str) -> tuple[list[int], tuple[str, ...]]:
    known = {str(word) for word in words if word}
    names = tuple(sorted(known) if classes is None else classes)
    if strange := sorted(known - set(names)):
        raise DataError(
            f"from_arrays: labels of '{name}' must be among classes ({list_some(names)}), got "
            f"{list_some(strange)}. Add them to classes or correct the labels."
        )
    position = {word: i for i, word in enumerate(names)}
    return [position.get(str(word), -1) for word in words], names


def read_folder(path: Path | str, name: str | None = None) -> Domain:
    """A domain from a folder of class folders, `path/<class>/.../<image>`.

    The order is that of the class names, then of the paths below them, on every machine. Hidden files,
    files that are no images and broken images are listed in `skipped`; broken images also warn.

    Args:
        path: The folder. Images at any depth below a class folder belong to that class.
        name: What messages call the domain; the folder's name if None.

    Raises:
        DataError: If the folder is missing, has no class folders or no readable image.
    """
    return domain_of(list_class_folders(path, name))


def read_unlabeled_folder(path: Path | str, name: str | None = None) -> Domain:
    """A domain without labels from every image in or below a folder, ordered by path.

    Args:
        path: The folder; folders inside it mean nothing.
        name: What messages call the domain; the folder's name if None.

    Raises:
        DataError: If the folder is missing or has no readable image.
    """
    return domain_of(list_any_folder(path, name))
