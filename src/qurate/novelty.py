"""Which target images belong to no class: a score, conformal p-values, and control of the false-discovery rate.

How well an image fits the classes is the sum of two cosines, each standardised over D_u:

    s(x) = z(largest cosine of S+T's classifier) + z(cosine to the nearest class mean of the embeddings)

and, where people answered 'none' about some images, of z(cosine to the nearest labelled target image - cosine to the
nearest image of no class). Embeddings are of unit length and centred on their domain. Images of no class lie together,
so s is smoothed over the nearest unlabelled images, and a ridge regression on the embedding makes it a function of the
image alone: new images get the score in the same way as those of D_u.

Labelled target images are scored by models and class means made without them, so an image of D_u that does belong to a
class has a rank among them that is uniformly distributed: its conformal p-value (Vovk et al., 2005). Images whose
p-values are smaller than chance explains are flagged by the procedure of Benjamini and Hochberg (1995), which controls
the share of wrongly flagged ones, as Bates et al., "Testing for outliers with conformal p-values", 2023.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from scipy.stats import betabinom
from sklearn.isotonic import IsotonicRegression
from torch import Tensor
from torch.nn import functional as F

from qurate.data.samples import Labeled

NEIGHBORS = 5
"""Unlabelled images that a score is smoothed over. Our choice, on W to A and Clipart to Art."""
SMOOTHING = 0.8
"""Weight of the neighbours' score against the image's own. Our choice, likewise."""
RIDGE = 0.3
"""Penalty of the regression, with embeddings of unit length. Our choice, likewise."""
FALSE_DISCOVERY_RATE = 0.1
"""Share of the flagged images that belong to a class after all, on average over folders."""
CONFIDENCE = 0.95
"""Of the largest number of images that belong to a class."""
_STOREY = 0.5  # p-values above this are taken to be of known images: Storey, 2002
_COUNTED = 0.3
"""The same where images of no class are counted, not flagged. In clean folders p-values above one half are too few, for
labelled images fit best of all. Our choice, on W to A, D to A and Clipart to Art."""
_STEPS = 30  # of smoothing: 0.8 ** 30 is 0.1 %
_SLICE = 1024
_LEAST_HELD_OUT = 10
"""Held-out images below which nothing is flagged or counted: the smallest p-value would be above 0.09. Our choice."""


def unit(vectors: Tensor) -> Tensor:
    """Rows of length 1, (N, d)."""
    return F.normalize(vectors.float(), dim=1)


def standardize(values: Tensor, reference: Tensor) -> Tensor:
    """Values minus the mean of the reference, divided by its standard deviation; both (N,) of any N."""
    spread = reference.std(correction=0)
    return (values - reference.mean()) / spread.clamp(min=1e-12)


def class_means(parts: Sequence[tuple[Tensor, Tensor]], n_classes: int) -> Tensor:
    """The mean direction of each class: the mean over domains of the domain's class mean, (K, d) of unit length.

    Args:
        parts: Embeddings (N, d) and labels (N,) of each domain; a class may be absent from some.
        n_classes: K.
    """
    total = torch.zeros(n_classes, parts[0][0].shape[1])
    for rows, labels in parts:
        counts = torch.bincount(labels, minlength=n_classes)
        sums = torch.zeros_like(total).index_add(0, labels, rows)
        total += sums / counts.clamp(min=1).unsqueeze(1)
    return unit(total)


def nearest_cosine(rows: Tensor, others: Tensor) -> Tensor:
    """The cosine of each row to the nearest of the others, (N,); all of unit length."""
    return torch.cat([(part @ others.T).amax(dim=1) for part in rows.split(_SLICE)])


def nearest_rows(rows: Tensor, others: Tensor, count: int, *, own: bool) -> Tensor:
    """Positions of the nearest others of each row, (N, count) int64.

    Args:
        rows: (N, d) of unit length.
        others: (M, d) of unit length.
        count: How many.
        own: Whether the rows are the first of the others, so that none is a neighbour of itself.
    """
    found = []
    for start in range(0, len(rows), _SLICE):
        cosines = rows[start : start + _SLICE] @ others.T
        if own:
            cosines.diagonal(start).fill_(-2.0)
        found.append(cosines.topk(min(count, len(others) - int(own)), dim=1).indices)
    return torch.cat(found)


def smooth(scores: Tensor, neighbors: Tensor, weight: float) -> Tensor:
    """Scores s = (1 - a) s_0 + a (mean of s over the neighbours), iterated to their fixed point.

    Args:
        scores: s_0, (N,); neighbours are among the first of them.
        neighbors: Positions, (N, k) int64.
        weight: a, below 1.
    """
    smoothed = scores
    for _ in range(_STEPS):
        smoothed = (1 - weight) * scores + weight * smoothed[neighbors].mean(dim=1)
    return smoothed


def fit_ridge(rows: Tensor, values: Tensor, penalty: float) -> tuple[Tensor, float]:
    """Weight (d,) and bias that minimise sum_i (w . x_i + b - y_i)^2 + penalty ||w||^2.

    Args:
        rows: x, (N, d).
        values: y, (N,).
        penalty: Of the weight; the bias has none.
    """
    x, y = rows.double(), values.double()
    center, middle = x.mean(dim=0), y.mean()
    x = x - center
    gram = x.T @ x
    gram.diagonal().add_(penalty)
    weight = torch.linalg.solve(gram, x.T @ (y - middle))
    return weight.float(), float(middle - center @ weight)


def conformal_p_values(scores: Tensor, held_out: Tensor) -> Tensor:
    """(1 + how many held-out images fit no better) / (n + 1): (N,) and (n,) to (N,) float64.

    Below all of them the rank tells no more, and with 21 labelled images nothing could ever be flagged. There the
    p-value is that of the smallest times exp((score - smallest) / standard deviation): a tail that is heavier than a
    normal one, so few labels flag only what is far from all of them. Our choice.
    """
    ordered = held_out.double().sort().values
    ranks = torch.searchsorted(ordered, scores.double(), right=True)
    return (1 + ranks).double() / (len(ordered) + 1) * _tail(scores.double(), ordered)


def _tail(scores: Tensor, held_out: Tensor) -> Tensor:
    """exp((score - smallest) / standard deviation) below the smallest of the sorted held-out scores, else 1."""
    spread = held_out.std(correction=0).clamp(min=1e-6)
    return ((scores - held_out[0]) / spread).clamp(max=0).exp()


def known_share(p_values: Tensor) -> float:
    """The share of images that belong to a class as `flag` takes it: 2 #{p > 1/2} / N, at most 1. Storey, 2002."""
    return min(1.0, (1 + int((p_values > _STOREY).sum())) / ((1 - _STOREY) * len(p_values)))


class KnownShare(NamedTuple):
    """Which share of the images of a folder belongs to a class.

    Args:
        estimate: At most 1.
        highest: It is no more than this, with a confidence of 95 %; 1 where all images may belong to a class.
    """

    estimate: float
    highest: float


def estimate_known(p_values: Tensor, held_out: int) -> KnownShare:
    """How many images of a folder belong to a class, whether or not any can be flagged.

    With n held-out images and r = floor(0.3 (n + 1)), an image of a class has a p-value above 0.3 if it fits better
    than the r-th of them: with probability (n + 1 - r) / (n + 1). The share of such p-values divided by that is the
    estimate of Storey, 2002. The r-th of few held-out images may be a high or a low one, so of m images of the classes
    a number with the beta-binomial distribution of m, n + 1 - r and r has such a p-value. The highest number is the
    largest m for which what is seen, or less, has a probability above 5 %.

    Images of no class that look like a class count as known, so both are rather too high.

    Args:
        p_values: Of all images of the folder, (N,).
        held_out: n, at least 3.
    """
    images, rank = len(p_values), int(_COUNTED * (held_out + 1))
    above = int((p_values * (held_out + 1) > rank + 0.5).sum())  # p-values above 0.3 are whole ranks
    estimate = above / images * (held_out + 1) / (held_out + 1 - rank)
    low, high = above, images  # the largest m that is not too many is between them
    while low < high:
        middle = (low + high + 1) // 2
        if betabinom.cdf(above, middle, held_out + 1 - rank, rank) > 1 - CONFIDENCE:
            low = middle
        else:
            high = middle - 1
    return KnownShare(min(estimate, low / images), low / images)


def flag(p_values: Tensor, level: float = FALSE_DISCOVERY_RATE) -> Tensor:
    """Which images to flag, such that about a share `level` of them belongs to a class after all, (N,) bool.

    The images with the k smallest p-values, k the largest for which p_(k) <= level k / (N share), where share is
    `known_share`. Benjamini and Hochberg, 1995; Storey, 2002.
    """
    ordered, order = p_values.sort(stable=True)
    ranks = torch.arange(1, len(ordered) + 1, dtype=torch.float64)
    passed = (ordered <= level * ranks / (len(ordered) * known_share(p_values))).nonzero()
    flagged = torch.zeros(len(p_values), dtype=torch.bool)
    if len(passed):
        flagged[order[: int(passed.max()) + 1]] = True
    return flagged


def known_probability(p_values: Tensor) -> Tensor:
    """The probability that each image of a folder belongs to a class, (N,): share / density(p), at most 1.

    p-values of images that belong to a class are uniform, so their density is the share of such images; that of all is
    estimated by a density that never rises (Grenander, 1956). The local false-discovery rate of Efron, 2001.

    Args:
        p_values: Of all images of the folder, above 0 and up to 1, (N,).
    """
    values, place, counts = p_values.double().unique(return_inverse=True, return_counts=True)
    widths = values.diff(prepend=values.new_zeros(1))
    heights = counts.double() / len(p_values) / widths
    falling = IsotonicRegression(increasing=False).fit_transform(
        np.arange(len(values)), heights.numpy(), sample_weight=widths.numpy()
    )
    return (known_share(p_values) / torch.from_numpy(falling)[place]).clamp(max=1).float()


@dataclass(frozen=True, eq=False)
class Novelty:
    """How well images fit the classes, as a function of their embedding.

    Args:
        center: Mean direction of the unlabelled images, (width,).
        weight: Of the regression, (width,).
        bias: Of the regression.
        held_out: Scores of held-out labelled target images, sorted, (n,).
        folds: What the held-out scores were made of, for `fit_novelty` with answers of people: its argument.
        threshold: Images with a score below this are flagged; -inf flags none.
        share: Estimated share of the unlabelled images that belong to a class.
        highest_share: It is no more than this, with a confidence of 95 %.
    """

    center: Tensor
    weight: Tensor
    bias: float
    held_out: Tensor
    folds: tuple[tuple[Tensor, Tensor], ...] = ()
    threshold: float = -math.inf
    share: float = 1.0
    highest_share: float = 1.0

    @property
    def flags_any(self) -> bool:
        """Whether an image can be flagged at all."""
        return math.isfinite(self.threshold)

    @property
    def sees_unknown(self) -> bool:
        """Whether the unlabelled images cannot all belong to a class, be any of them flagged or not."""
        return self.flags_any or self.highest_share < 1

    @property
    def border(self) -> float:
        """What `known` is where flagged images meet the others; 0 where none is flagged."""
        return float(known_of_scores(torch.tensor([self.threshold]), self.held_out)) if self.flags_any else 0.0

    def scores(self, embeddings: Tensor) -> Tensor:
        """The regression w . unit(unit(e) - center) + b, (N, width) to (N,)."""
        return unit(unit(embeddings) - self.center) @ self.weight + self.bias

    def known(self, embeddings: Tensor) -> Tensor:
        """How well each image fits any class, from 0 to 1, (N,); see `known_of_scores`."""
        return known_of_scores(self.scores(embeddings), self.held_out)

    def flags(self, embeddings: Tensor) -> Tensor:
        """Which images fit none of the classes, (N,) bool."""
        return self.scores(embeddings) < self.threshold


def known_of_scores(scores: Tensor, held_out: Tensor) -> Tensor:
    """The share of images of the classes that fit no better, between the steps of the p-value: (N,) from 0 to 1.

    Linear between two held-out scores, and exponential in the score outside of all, so that no two scores have the same
    value and the worst stay in order.

    Args:
        scores: (N,).
        held_out: Sorted, (n,).
    """
    count, spread = len(held_out), held_out.std(correction=0).clamp(min=1e-6)
    below = (held_out <= scores.unsqueeze(1)).sum(dim=1)
    left, right = held_out[(below - 1).clamp(min=0)], held_out[below.clamp(max=count - 1)]
    part = ((scores - left) / (right - left).clamp(min=1e-12)).clamp(0, 1)
    inside = (below + part) / (count + 1)
    low = _tail(scores, held_out) / (count + 1)
    high = 1 - ((held_out[-1] - scores) / spread).clamp(max=0).exp() / (count + 1)
    return torch.where(below == 0, low, torch.where(below == count, high, inside))


def fit_novelty(
    source: Labeled,
    labeled: Labeled,
    unlabeled: Tensor,
    cosines: Tensor,
    folds: Sequence[tuple[Tensor, Tensor]],
    *,
    none: Tensor | None = None,
) -> tuple[Novelty, Tensor]:
    """Score D_u and flag what fits no class.

    Args:
        source: D_s as embeddings, (N_s, width).
        labeled: D_t as embeddings.
        unlabeled: D_u as embeddings, (N_u, width).
        cosines: The largest cosine of S+T for each image of D_u, (N_u,).
        folds: Of each fold the positions in D_t of the images that were held out, (n,), and the largest cosine that
            S+T without them gives to each, standardised by those that it gives to D_u, (n,).
        none: Embeddings of images that people said are of no class, (N_0, width), if any.

    Returns:
        The score, and which images of D_u are flagged, (N_u,) bool.
    """
    assert isinstance(source.inputs, Tensor), "embeddings"
    assert isinstance(labeled.inputs, Tensor), "embeddings"
    n_classes = int(max(source.labels.max(), labeled.labels.max())) + 1
    plain, center = unit(source.inputs), unit(unlabeled).mean(dim=0)
    of_source, target = unit(plain - plain.mean(dim=0)), unit(unit(labeled.inputs) - center)
    rows = unit(unit(unlabeled) - center)
    rejected = None if none is None or not len(none) else unit(unit(none) - center)

    def fit_to_classes(images: Tensor, kept: Tensor) -> Tensor:
        means = class_means([(of_source, source.labels), (target[kept], labeled.labels[kept])], n_classes)
        return nearest_cosine(images, means)

    def against_none(images: Tensor, kept: Tensor) -> Tensor:
        assert rejected is not None
        return nearest_cosine(images, target[kept]) - nearest_cosine(images, rejected)

    every = torch.ones(len(labeled), dtype=torch.bool)
    signals = [fit_to_classes] if rejected is None else [fit_to_classes, against_none]
    first = standardize(cosines, cosines) + sum(standardize(each := signal(rows, every), each) for signal in signals)
    held, images = [], torch.cat([images for images, _ in folds])
    for positions, standardized in folds:
        kept = every.clone()
        kept[positions] = False
        held.append(
            standardized + sum(standardize(signal(target[positions], kept), signal(rows, kept)) for signal in signals)
        )
    both = torch.cat([rows, target[images]])
    near = torch.cat(
        [
            nearest_rows(rows, rows, NEIGHBORS, own=True),
            nearest_rows(target[images], rows, min(NEIGHBORS, len(rows) - 1), own=False),
        ]
    )
    smoothed = smooth(torch.cat([first, *held]), near, SMOOTHING)
    weight, bias = fit_ridge(both, smoothed, RIDGE)
    scores = both @ weight + bias
    of_unlabeled, of_held_out = scores[: len(rows)], scores[len(rows) :].sort().values
    p_values = conformal_p_values(of_unlabeled, of_held_out)
    flagged, share, threshold = flag(p_values), KnownShare(1.0, 1.0), -math.inf
    if len(images) >= _LEAST_HELD_OUT:
        share = estimate_known(p_values, len(images))
    if len(images) < _LEAST_HELD_OUT or int((~flagged).sum()) < 2:
        flagged = torch.zeros_like(flagged)
    if bool(flagged.any()):  # between the two, so that rounding moves nothing across
        threshold = float(of_unlabeled[flagged].max() + of_unlabeled[~flagged].min()) / 2
    return Novelty(center, weight, bias, of_held_out, tuple(folds), threshold, *share), flagged
