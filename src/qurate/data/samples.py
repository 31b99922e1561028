"""What training is given: labelled parts, and an unlabelled part whose labels are sealed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from numbers import Integral
from typing import TypeAlias

import torch
from torch import Tensor

from qurate.data.images import ImageFiles
from qurate.errors import DataError as DataError
from qurate.runtime.compute import fits_half
from qurate.runtime.validation import show

Inputs: TypeAlias = Tensor | ImageFiles
"""Tensors in memory (arrays or embeddings, sample first) or image files on disk."""
UNKNOWN = -2
"""The sealed label of a sample of D_u that is of no class; -1 is that of a sample whose class no one knows."""


def take(inputs: Inputs, indices: Tensor) -> Inputs:
    """The inputs at these positions, in this order."""
    if isinstance(inputs, Tensor):
        return inputs[indices.to(inputs.device)]
    return ImageFiles(tuple(inputs.paths[i] for i in indices.tolist()))


def move(inputs: Inputs, device: torch.device) -> Inputs:
    """Tensors on a device; image files as they are."""
    return inputs.to(device) if isinstance(inputs, Tensor) else inputs


def join(first: Inputs, second: Inputs) -> Inputs:
    """One sequence of inputs after the other; both must be tensors or both files."""
    if isinstance(first, Tensor) and isinstance(second, Tensor):
        is_half = torch.float16 in (first.dtype, second.dtype)  # very many; those that join them take their type
        return torch.cat([first, second.to(first.dtype) if is_half and fits_half(second) else second])
    if isinstance(first, ImageFiles) and isinstance(second, ImageFiles):
        return ImageFiles(first.paths + second.paths)
    raise DataError(
        "join: both inputs must be tensors or both image files, "
        f"got {type(first).__name__} and {type(second).__name__}."
    )


@dataclass(frozen=True, eq=False)
class Labeled:
    """Samples whose labels training may read.

    Args:
        inputs: N samples.
        labels: Class index of each, (N,) int64, none negative.
        weights: How often each is drawn in relation to the others, (N,), positive; None where all are drawn alike.
    """

    inputs: Inputs
    labels: Tensor
    weights: Tensor | None = None

    def __post_init__(self) -> None:
        _check_inputs("Labeled", self.inputs)
        if not isinstance(self.labels, Tensor) or self.labels.dtype != torch.int64 or self.labels.ndim != 1:
            raise DataError(f"Labeled: labels must be a tensor (N,) of int64, got {describe(self.labels)}.")
        if len(self.inputs) != len(self.labels):
            raise DataError(f"Labeled: {len(self.inputs)} inputs but {len(self.labels)} labels.")
        if len(self.labels) and int(self.labels.min()) < 0:
            raise DataError("Labeled: a label is negative; unlabelled samples belong in Unlabeled.")
        if self.weights is not None:
            _check_weights(self.weights, len(self.labels))

    def __len__(self) -> int:
        return len(self.labels)

    def __repr__(self) -> str:
        return f"Labeled({describe(self.inputs)}, {len(self)} labels)"

    def to(self, device: torch.device) -> Labeled:
        """The samples on a device; image files stay files."""
        return replace(self, inputs=move(self.inputs, device), labels=self.labels.to(device))


class SealedLabels:
    """True labels that only `qurate.evaluation` opens, and `qurate.data.suites`, which draws a split.

    Nothing of it can be indexed, iterated, compared or printed; a test reads the source of the package
    and fails if any other module calls `open_for_evaluation`.
    """

    __slots__ = ("__labels",)

    def __init__(self, labels: Tensor) -> None:
        if not isinstance(labels, Tensor) or labels.dtype != torch.int64 or labels.ndim != 1:
            raise DataError(f"SealedLabels: labels must be a tensor (N,) of int64, got {describe(labels)}.")
        self.__labels = labels.clone()

    def __len__(self) -> int:
        return len(self.__labels)

    def __repr__(self) -> str:
        return f"SealedLabels({len(self)} hidden)"

    def take(self, indices: Tensor) -> SealedLabels:
        """Those at these positions, sealed as well."""
        return SealedLabels(self.__labels[indices])

    def open_for_evaluation(self) -> Tensor:
        """The hidden labels, (N,) int64; -1 where no one knows, `UNKNOWN` where the sample is of no class."""
        return self.__labels.clone()


@dataclass(frozen=True, eq=False)
class Unlabeled:
    """Target samples without usable labels.

    Args:
        inputs: N samples.
        sealed: Their true labels for evaluation, if known.
    """

    inputs: Inputs
    sealed: SealedLabels | None = None

    def __post_init__(self) -> None:
        _check_inputs("Unlabeled", self.inputs)
        if not isinstance(self.sealed, SealedLabels | None):
            raise DataError(f"Unlabeled: sealed must be SealedLabels or None, got {describe(self.sealed)}.")
        if self.sealed is not None and len(self.sealed) != len(self.inputs):
            raise DataError(f"Unlabeled: {len(self.inputs)} inputs but {len(self.sealed)} sealed labels.")

    def __len__(self) -> int:
        return len(self.inputs)

    def __repr__(self) -> str:
        return f"Unlabeled({describe(self.inputs)}, {'no labels' if self.sealed is None else repr(self.sealed)})"


@dataclass(frozen=True, eq=False)
class Split:
    """The data of one run: D_s, D_t, D_u and, if asked for, validation.

    Args:
        classes: Class names; a label is an index into them.
        source: D_s, labelled source samples.
        target_labeled: D_t, the few labelled target samples.
        target_unlabeled: D_u, the many unlabelled ones.
        validation: Labelled target samples for model selection; training never sees them.
    """

    classes: tuple[str, ...]
    source: Labeled
    target_labeled: Labeled
    target_unlabeled: Unlabeled
    validation: Labeled | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.classes, tuple) or not all(isinstance(name, str) for name in self.classes):
            raise DataError(f"Split: classes must be a tuple of names, got {describe(self.classes)}.")
        kinds = {"source": Labeled, "target_labeled": Labeled, "target_unlabeled": Unlabeled, "validation": Labeled}
        for name, kind in kinds.items():
            part = getattr(self, name)
            if part is None and name == "validation":
                continue
            if not isinstance(part, kind):
                raise DataError(f"Split: {name} must be {kind.__name__}, got {describe(part)}.")
            if isinstance(part, Labeled) and len(part) and (largest := int(part.labels.max())) >= len(self.classes):
                raise DataError(f"Split: {name} has label {largest} but there are only {len(self.classes)} classes.")

    @property
    def parts(self) -> dict[str, Labeled | Unlabeled]:
        """Its parts by name; validation only where there is any."""
        names = ("source", "target_labeled", "target_unlabeled", "validation")
        return {name: part for name in names if (part := getattr(self, name)) is not None}

    @property
    def n_classes(self) -> int:
        """K, the number of classes."""
        return len(self.classes)

    def convert_inputs(self, convert: Callable[[Inputs], Inputs]) -> Split:
        """The split with what a function makes of the inputs of each part; sealed labels stay sealed."""
        parts = {name: replace(part, inputs=convert(part.inputs)) for name, part in self.parts.items()}
        return replace(self, **parts)  # type: ignore[arg-type]  # each name keeps its own kind


def check_positions(positions: object, size: int, where: str) -> None:
    """Refuse what are no positions (N,) int64 in a set of this size; `where` names their argument in the message."""
    found, allowed = describe(positions), f"a tensor (N,) of int64 between 0 and {size - 1}"
    if not isinstance(positions, Tensor) or positions.dtype != torch.int64 or positions.ndim != 1:
        raise DataError(f"{where} must be {allowed}, got {found}.")
    if len(positions) and not 0 <= int(positions.min()) <= int(positions.max()) < size:
        raise DataError(f"{where} must be {allowed}, got {int(positions.min())} to {int(positions.max())}.")


def check_integer(argument: str, value: object, least: int) -> None:
    """Refuse a value that is no integer of at least `least`."""
    if isinstance(value, bool) or not isinstance(value, Integral) or int(value) < least:
        raise DataError(f"{argument} must be an integer of at least {least}, got {show(value)}.")


def _check_inputs(where: str, inputs: object) -> None:
    if not isinstance(inputs, Tensor | ImageFiles) or (isinstance(inputs, Tensor) and inputs.ndim == 0):
        raise DataError(
            f"{where}: inputs must be a tensor, sample first, or image files, got {describe(inputs)}. Arrays become "
            "samples by from_arrays, folders by read_folder."
        )


def _check_weights(weights: object, size: int) -> None:
    fits = isinstance(weights, Tensor) and weights.shape == (size,) and weights.is_floating_point()
    if not isinstance(weights, Tensor) or not fits or not bool((weights > 0).logical_and(weights.isfinite()).all()):
        raise DataError(
            f"Labeled: weights must be a tensor ({size},) of positive floating-point numbers, got {describe(weights)}."
        )


def describe(value: object) -> str:
    """A value for a message: its kind, and the shape of a tensor."""
    if isinstance(value, Tensor):
        return f"a tensor {tuple(value.shape)} of {str(value.dtype).removeprefix('torch.')}"
    return f"{len(value)} image files" if isinstance(value, ImageFiles) else type(value).__name__
