"""What an asker sees: the unlabelled images as features and predictions, and which of them may be asked about."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from qurate.errors import DataError
from qurate.losses.entropy import entropy


@dataclass(frozen=True, eq=False)
class Pool:
    """Unlabelled images, and what the model makes of them.

    Args:
        features: Of N images, (N, d); near means alike.
        probabilities: Of K classes by the model, (N, K). Of an image that a person has labelled: 1 for its class.
        trusted: Pseudo-label of each image that the model was trained on, (N,) int64, -1 for the others; none unless
            given.
        closed: Images that nobody is to be asked about, such as those with an answer, (N,) bool; none unless given.

    Example:
        >>> pool = Pool(torch.eye(3), torch.tensor([[0.9, 0.1], [0.5, 0.5], [0.6, 0.4]]))
        >>> pool.open.tolist(), pool.doubt.argmax().item()
        ([0, 1, 2], 1)
    """

    features: Tensor
    probabilities: Tensor
    trusted: Tensor | None = None
    closed: Tensor | None = None

    def __post_init__(self) -> None:
        for name in ("features", "probabilities"):
            values = getattr(self, name)
            if not isinstance(values, Tensor) or values.ndim != 2 or not values.is_floating_point():
                raise DataError(f"Pool: {name} must be a tensor of two dimensions of floats, got {_shape(values)}.")
            if not bool(values.isfinite().all()):
                raise DataError(f"Pool: {name} must be finite, got NaN or infinity in them.")
        n = len(self.features)
        if len(self.probabilities) != n or self.probabilities.shape[1] < 2:
            got = _shape(self.probabilities)
            raise DataError(f"Pool: probabilities must be ({n}, K) for {n} features and K > 1 classes, got {got}.")
        for name, kind in (("trusted", torch.int64), ("closed", torch.bool)):
            values = getattr(self, name)
            if values is not None and (not isinstance(values, Tensor) or (values.shape, values.dtype) != ((n,), kind)):
                raise DataError(f"Pool: {name} must be a tensor ({n},) of {kind}, got {_shape(values)}.")

    def __len__(self) -> int:
        return len(self.features)

    @cached_property
    def open(self) -> Tensor:
        """Positions of the images that may be asked about, in order."""
        return torch.arange(len(self)) if self.closed is None else (~self.closed).nonzero().squeeze(1)

    @cached_property
    def doubt(self) -> Tensor:
        """Entropy of each prediction, (N,): 0 for a certain one, log K for one that says nothing."""
        return entropy(self.probabilities)


def _shape(values: object) -> str:
    if isinstance(values, Tensor):
        return f"a tensor {tuple(values.shape)} of {values.dtype}"
    return type(values).__name__
