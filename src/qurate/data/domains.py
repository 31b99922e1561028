"""A domain: samples of one look of the world, with the class names their labels point into.

Read from folders or arrays.
"""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

from qurate.data.class_names import compose_name
from qurate.data.images import ImageFiles
from qurate.data.samples import DataError, Inputs, describe, take
from qurate.runtime.paths import IMAGE_SUFFIXES, as_path, is_file, is_folder, list_some, shorten
from qurate.runtime.tables import is_text
from qurate.runtime.validation import show

Array: TypeAlias = NDArray[Any] | Tensor


class DataWarning(UserWarning):
    """Data that was left out or cut short; the message counts and names it."""


HIDDEN, NO_IMAGE, REPEATED = "hidden", "not an image file", "named more than once"
"""Reasons for which a file is skipped that has no fault."""


@dataclass(frozen=True)
class Skipped:
    """A file that was found but is no sample, and why."""

    path: Path
    reason: str

    @property
    def is_broken(self) -> bool:
        """Whether it is an image that cannot be used."""
        return self.reason not in (HIDDEN, NO_IMAGE, REPEATED)


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


def leave_out(domain: Domain, unreadable: Mapping[Path, str]) -> Domain:
    """The domain without its unreadable files, which move to `skipped`; a warning counts and names them.

    Args:
        domain: Of image files.
        unreadable: Files, of this domain or not, and why they cannot be read.

    Raises:
        DataError: If no file of the domain can be read.
    """
    assert isinstance(domain.inputs, ImageFiles)
    paths = domain.inputs.paths
    broken = [Skipped(path, unreadable[path]) for path in paths if path in unreadable]
    if not broken:
        return domain
    found = f"{len(broken)} of {len(domain)} images of '{domain.name}' cannot be read"
    named = list_some(skip.path for skip in broken)
    if len(broken) == len(domain):
        raise DataError(f"{found}: {named}. Replace the files; at least one readable image is needed.")
    warnings.warn(f"{found} and are left out: {named}.", DataWarning, stacklevel=2)
    readable = torch.tensor([i for i, path in enumerate(paths) if path not in unreadable])
    return replace(domain.keep(readable), skipped=(*domain.skipped, *broken))


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
        DataError: If a class is missing on one side, or no class is common.
    """
    if missing not in ("error", "drop"):
        raise DataError(f"missing must be 'error' or 'drop', got '{missing}'.")
    common = tuple(name for name in source.classes if name in set(target.classes))
    findings = [found for domain in (source, target) if (found := _only_here(domain, common))]
    if findings and (missing == "error" or not common):
        drop = ", or pass `missing='drop'` to keep those that both have" if len(common) > 1 else ""
        raise DataError(
            f"'{source.name}' and '{target.name}' must have the same class names, but "
            f"{'; '.join(findings)}. Rename the classes alike{drop}."
        )
    if findings:
        warnings.warn(f"Dropped, as {'; '.join(findings)}.", DataWarning, stacklevel=2)
    return _relabel(source, common), _relabel(target, common)


def _only_here(domain: Domain, common: tuple[str, ...]) -> str:
    extra = {i: name for i, name in enumerate(domain.classes) if name not in common}
    if not extra:
        return ""
    samples = int(domain.class_sizes()[list(extra)].sum())
    return f"only '{domain.name}' has {list_some(extra.values())} ({len(extra)} classes, {samples} samples)"


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
    root, files = list_folder(path)
    folders = [child.name for child in root.iterdir() if child.is_dir()]
    classes = sorted({compose_name(folder) for folder in folders if not folder.startswith(".")})
    if not classes:
        raise DataError(
            f"{root} must hold one folder for each class, got none. Sort the images into class folders, or give the "
            "folder that holds those."
        )
    if strange := [name for name in classes if not is_text(name)]:
        raise DataError(
            f"{root}: class folders must have names in UTF-8, got {list_some(map(ascii, strange), 3)}"
            f"{_locale_hint(strange)}. Rename them."
        )
    images, skipped = _scan(root, files, in_class_folders=True)
    labels = [classes.index(compose_name(image.relative_to(root).parts[0])) for image in images]
    return Domain(name or root.resolve().name, ImageFiles(tuple(images)), torch.tensor(labels), tuple(classes), skipped)


def _locale_hint(names: Sequence[str]) -> str:
    """Whether it is only the locale that keeps names from being read."""
    try:
        b"".join(map(os.fsencode, names)).decode()
    except UnicodeError:
        return ""
    encoding = sys.getfilesystemencoding()
    return f", which are read as {encoding} because of the locale; set PYTHONUTF8=1, or a locale such as C.UTF-8"


def read_unlabeled_folder(path: Path | str, name: str | None = None) -> Domain:
    """A domain without labels from every image in or below a folder, ordered by path.

    Args:
        path: The folder; folders inside it mean nothing.
        name: What messages call the domain; the folder's name if None.

    Raises:
        DataError: If the folder is missing or has no readable image.
    """
    root, files = list_folder(path)
    images, skipped = _scan(root, files, in_class_folders=False)
    labels = torch.full((len(images),), -1, dtype=torch.int64)
    return Domain(name or root.resolve().name, ImageFiles(tuple(images)), labels, (), skipped)


def list_folder(path: Path | str) -> tuple[Path, list[Path]]:
    """The folder, and all files below it in an order that is the same on every machine."""
    root = as_path(path, "path", "a folder")
    if not is_folder(root):
        came = "a file" if is_file(root) else "does not exist"
        raise DataError(f"path must be an existing folder, got {shorten(root)} ({came}). Check the path.")
    try:
        files = list(_walk(root))
    except OSError as error:
        raise DataError(f"{root} cannot be listed ({error}). Check who may read it.") from error
    return root, sorted(files, key=lambda file: [compose_name(part) for part in file.relative_to(root).parts])


def _scan(root: Path, files: Sequence[Path], *, in_class_folders: bool) -> tuple[list[Path], tuple[Skipped, ...]]:
    """The images among the files of a folder, and what is left out."""
    images, skipped, broken = [], [], []
    for file in files:
        parts = file.relative_to(root).parts
        if any(part.startswith(".") for part in parts):
            skipped.append(Skipped(file, HIDDEN))
        elif file.suffix.lower() not in IMAGE_SUFFIXES:
            skipped.append(Skipped(file, NO_IMAGE))
        elif in_class_folders and len(parts) == 1:
            skipped.append(Skipped(file, "image outside the class folders"))
        elif reason := _why_broken(file):
            broken.append(Skipped(file, reason))
        else:
            images.append(file)
    if broken and images:
        warnings.warn(
            f"{root}: {len(broken)} of {len(broken) + len(images)} images are broken and left out: "
            f"{list_some(b.path.relative_to(root) for b in broken)}. Replace or remove them.",
            DataWarning,
            stacklevel=3,
        )
    left_out = (*skipped, *broken)
    if not images:
        reasons = f": {list_some((f'{skip.path.name}: {skip.reason}' for skip in left_out), 3)}" if left_out else ""
        raise DataError(
            f"{root} must hold at least one readable image ({', '.join(sorted(IMAGE_SUFFIXES))}), "
            f"got none among {len(left_out)} files{reasons}."
        )
    return images, left_out


def _walk(root: Path) -> Iterator[Path]:
    """Every file below, through links to folders too, but not round in a circle."""
    folders: list[tuple[Path, tuple[str, ...]]] = [(root, (os.path.realpath(root),))]
    while folders:  # no recursion, for folders may be deep
        folder, real = folders.pop()
        for child in folder.iterdir():
            if not child.is_dir():
                yield child
                continue
            target = os.path.realpath(child) if child.is_symlink() else f"{real[-1]}{os.sep}{child.name}"
            if target not in real:
                folders.append((child, (*real, target)))


def _why_broken(file: Path) -> str | None:
    """The reason if the file's head is no image's; damage deeper inside shows on decoding."""
    if not file.is_file():
        return "broken link or no regular file"
    try:
        with Image.open(file):
            return None
    except Exception as error:  # PIL's format readers raise whatever their parsers meet
        return f"cannot be opened as an image ({type(error).__name__})"
