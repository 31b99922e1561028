"""A lopsided target: the unlabelled part of a split thinned to a long tail, as part of drawing the split."""

from __future__ import annotations

from dataclasses import replace
from numbers import Integral

import numpy as np
import torch
from torch import Tensor

from qurate.data.samples import DataError, SealedLabels, Split, Unlabeled, take
from qurate.runtime.checked import show

_STREAM = 0x7A11  # a random stream of its own: thinning moves no other draw of the same seed


def thin_to_tail(split: Split, imbalance: int, seed: int) -> Split:
    """The split with D_u thinned so that class sizes fall geometrically, from the largest to 1/R of it.

    The class of rank r (0, 1, ...) among K keeps max(1, round(n R^(-r / (K - 1)))) of its samples, where n is the size
    of the largest class, or all where it has fewer. The seed decides the order of the classes and which samples stay,
    whatever R is: a larger R gives a subset. Samples keep their order; no other part is touched.

    The true classes are read here, where the split is drawn, and are sealed again.

    Args:
        split: Its D_u must have true labels, all of them known.
        imbalance: R, at least 1, which keeps everything.
        seed: Of the draw, at least 0.

    Raises:
        DataError: If an argument is not allowed, or the class of a sample is not known.

    Example:
        >>> from qurate.data.digits import digits_split
        >>> split = digits_split(shots=3, seed=0)
        >>> len(split.target_unlabeled), len(thin_to_tail(split, 20, seed=0).target_unlabeled)
        (1767, 612)
    """
    for argument, value, least in (("imbalance", imbalance, 1), ("seed", seed, 0)):
        if isinstance(value, bool) or not isinstance(value, Integral) or int(value) < least:
            raise DataError(f"thin_to_tail: {argument} must be an integer of at least {least}, got {show(value)}.")
    if imbalance == 1:
        return split
    whole = split.target_unlabeled
    labels = _open(whole)
    kept = _draw_tail(labels, int(imbalance), np.random.default_rng((int(seed), _STREAM)))
    return replace(split, target_unlabeled=Unlabeled(take(whole.inputs, kept), SealedLabels(labels[kept])))


def _open(part: Unlabeled) -> Tensor:
    unknown = len(part) if part.sealed is None else int((part.sealed.open_for_evaluation() < 0).sum())
    if part.sealed is None or unknown:
        raise DataError(
            f"thin_to_tail: the class of every unlabelled target sample must be known, but of {unknown} of {len(part)} "
            "it is not. Leave them out, or use imbalance 1."
        )
    return part.sealed.open_for_evaluation()


def _draw_tail(labels: Tensor, imbalance: int, rng: np.random.Generator) -> Tensor:
    """Positions that stay, in order; classes without a sample have no rank."""
    present, sizes = labels.unique(return_counts=True)
    ranks = rng.permutation(len(present))
    last = max(1, len(present) - 1)
    kept = []
    for label, rank in zip(present, ranks, strict=True):
        members = (labels == label).nonzero().squeeze(1)
        most = max(1, round(int(sizes.max()) * imbalance ** (-int(rank) / last)))
        kept.append(members[torch.from_numpy(rng.permutation(len(members)))[:most]])
    return torch.cat(kept).sort().values
