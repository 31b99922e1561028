"""Which target images belong to no class: a score, conformal p-values, and control of the false-discovery rate.

How well an image fits the classes is the sum of two cosines, each standardised over D_u:

    s(x) = z(largest cosine of S+T's classifier) + z(cosine to the nearest class mean of the embeddings)

and, where people answered 'none' about some images, of z(cosine to the nearest labelled target image - cosine to the
nearest image of no class). Embeddings are of unit length and centred on their domain. Images of no class lie together,
so s is smoothed over the nearest unlabelled images, and a ridge regression on the embedding makes it a function of the
image alone: new images get the score in the same way as those of D_u.

Labelled target images are held out in folds and scored as if they were of D_u: S+T, class means, the scores of their
neighbours and the regression are made without their labels. So an image of D_u that does belong to a class has a rank
among them that is uniformly distributed: its conformal p-value (Vovk et al., 2005). Images whose p-values are smaller
than chance explains are flagged by the procedure of Benjamini and Hochberg (1995), which controls the share of wrongly
flagged ones, as Bates et al., "Testing for outliers with conformal p-values", 2023.
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
from qurate.embedding.embed import MOST_IN_MEMORY
from qurate.neighbors import nearest_rows

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
_BOUND = 0.3
"""The same for the largest number of known images: with few held-out ones it is sharper than 1/2. Our choice."""
_STEPS = 30  # of smoothing: 0.8 ** 30 is 0.1 %
_SLICE = 1024
_RIDGE_SLICE = 2**16  # in float64: 0.7 GB of embeddings 1280 wide
_LEAST_HELD_OUT = 10
"""Held-out images below which nothing is flagged or counted: the smallest p-value would be above 0.09. Our choice."""


def unit(vectors: Tensor) -> Tensor:
    """Rows of length 1, (N, d)."""
    return F.normalize(vectors.float(), dim=1)


def standardize(values: Tensor, reference: Tensor) -> Tensor:
    """Values minus the mean of the reference, divided by its standard deviation; both (N,) of any N."""
    spread = reference.std(correction=0)
    return (values - reference.mean()) / spread.clamp(min=1e-12)


def mean_direction(embeddings: Tensor) -> Tensor:
    """The mean of the rows, each made of length 1, (N, d) to (d,); in slices of very many."""
    sums = [unit(part).sum(dim=0) for part in embeddings.split(MOST_IN_MEMORY)]
    return torch.stack(sums).sum(dim=0) / len(embeddings)


def domain_means(rows: Tensor, labels: Tensor, n_classes: int, middle: Tensor | None = None) -> Tensor:
    """The mean of each class of a domain, (K, d); 0 for a class that it lacks.

    Args:
        rows: Embeddings, (N, d).
        labels: (N,) int64.
        n_classes: K.
        middle: What to centre them on, (d,), in slices of very many; they are centred already unless given.
    """
    sums = torch.zeros(n_classes, rows.shape[1])
    for part, classes in zip(rows.split(MOST_IN_MEMORY), labels.split(MOST_IN_MEMORY), strict=True):
        sums.index_add_(0, classes, part if middle is None else unit(unit(part) - middle))
    return sums / torch.bincount(labels, minlength=n_classes).clamp(min=1).unsqueeze(1)


def class_means(domains: Sequence[Tensor]) -> Tensor:
    """The mean direction of each class: the mean over domains of the domain's class mean, (K, d) of unit length.

    Args:
        domains: `domain_means` of each, (K, d).
    """
    return unit(torch.stack(list(domains)).sum(dim=0))


def nearest_cosine(rows: Tensor, others: Tensor) -> Tensor:
    """The cosine of each row to the nearest of the others, (N,); all of unit length."""
    return torch.cat([(part.float() @ others.float().T).amax(dim=1) for part in rows.split(_SLICE)])


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
    total = torch.stack([part.sum(dim=0, dtype=torch.float64) for part in rows.split(_RIDGE_SLICE)]).sum(dim=0)
    center, middle = total / len(rows), values.double().mean()
    gram, moment = center.new_zeros(rows.shape[1], rows.shape[1]), torch.zeros_like(center)
    for part, y in zip(rows.split(_RIDGE_SLICE), values.split(_RIDGE_SLICE), strict=True):
        x = part.double() - center
        gram += x.T @ x
        moment += x.T @ (y.double() - middle)
    gram.diagonal().add_(penalty)
    weight = torch.linalg.solve(gram, moment)
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
    """The estimated share of images that belong to a class: (1 + #{p > 1/2}) / (N / 2), at most 1. Storey, 2002.

    Images of no class that look like a class count as known, so it is rather too high.
    """
    return min(1.0, (1 + int((p_values > _STOREY).sum())) / ((1 - _STOREY) * len(p_values)))


def highest_known_share(p_values: Tensor, held_out: int) -> float:
    """The share of images that belong to a class is no more than this, with a confidence of 95 %.

    With n held-out images and r = floor(0.3 (n + 1)), an image of a class has a p-value above 0.3 if it fits better
    than the r-th of them. That may be a high or a low one, so of m images of the classes a number with the
    beta-binomial distribution of m, n + 1 - r and r has such a p-value. The highest m is the largest for which what is
    seen, or less, has a probability above 5 %.

    Args:
        p_values: Of all images of the folder, (N,).
        held_out: n, at least 3.
    """
    images, rank = len(p_values), int(_BOUND * (held_out + 1))
    above = int((p_values * (held_out + 1) > rank + 0.5).sum())  # p-values above 0.3 are whole ranks
    low, high = above, images  # the largest m that is not too many is between them
    while low < high:
        middle = (low + high + 1) // 2
        if betabinom.cdf(above, middle, held_out + 1 - rank, rank) > 1 - CONFIDENCE:
            low = middle
        else:
            high = middle - 1
    return low / images


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


class HeldOutScores(NamedTuple):
    """How well the images of a fold fit the classes by the two cosines, scored as if they were of D_u.

    Args:
        images: Their positions in D_t, (n,) int64.
        scores: (n,).
    """

    images: Tensor
    scores: Tensor


@dataclass(frozen=True, eq=False)
class Novelty:
    """How well images fit the classes, as a function of their embedding.

    Args:
        center: Mean direction of the unlabelled images, (width,).
        weight: Of the regression, (width,).
        bias: Of the regression.
        held_out: Scores of held-out labelled target images, sorted, (n,).
        folds: The held-out scores by the two cosines, for `fit_novelty` with answers of people.
        threshold: Images with a score below this are flagged; -inf flags none.
        share: Estimated share of the unlabelled images that belong to a class.
        highest_share: It is no more than this, with a confidence of 95 %.
    """

    center: Tensor
    weight: Tensor
    bias: float
    held_out: Tensor
    folds: tuple[HeldOutScores, ...] = ()
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
        parts = embeddings.split(_RIDGE_SLICE)
        return torch.cat([unit(unit(part) - self.center) @ self.weight for part in parts]) + self.bias

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


class ScoreFitter:
    """Scores the images of a split: embeddings of unit length, centred on their domain, and the neighbours in D_u.

    Args:
        source: D_s as embeddings, (N_s, width).
        labeled: D_t as embeddings.
        unlabeled: D_u as embeddings, (N_u, width).
        none: Embeddings of images that people said are of no class, (N_0, width), if any.
    """

    def __init__(self, source: Labeled, labeled: Labeled, unlabeled: Tensor, none: Tensor | None = None) -> None:
        assert isinstance(source.inputs, Tensor), "embeddings"
        assert isinstance(labeled.inputs, Tensor), "embeddings"
        self.center, middle = mean_direction(unlabeled), mean_direction(source.inputs)
        self._n_classes = int(max(source.labels.max(), labeled.labels.max())) + 1
        self._source_means = domain_means(source.inputs, source.labels, self._n_classes, middle)
        self._target, self._target_labels = self._centered(labeled.inputs.float()), labeled.labels
        self._rows = self._centered(unlabeled)
        self._none = None if none is None or not len(none) else self._centered(none)
        self._neighbors = nearest_rows(self._rows, self._rows, NEIGHBORS, torch.arange(len(self._rows)))

    def fit(self, cosines: Tensor) -> tuple[Tensor, float, Tensor]:
        """Weight and bias of the regression, and the scores of D_u, (N_u,).

        Args:
            cosines: The largest cosine of S+T for each image of D_u, (N_u,).
        """
        nothing = torch.zeros(0, dtype=torch.int64)
        signals = cosines, self._to_classes(nothing)
        more = () if self._none is None else (self._to_none(nothing),)
        weight, bias = self._regress(nothing, *signals, *more)
        return weight, bias, torch.cat([part.float() @ weight for part in self._rows.split(_RIDGE_SLICE)]) + bias

    def score_fold(self, images: Tensor, cosines: Tensor) -> HeldOutScores:
        """Score held-out labelled images by the two cosines.

        Args:
            images: Positions in D_t, (n,) int64.
            cosines: The largest cosine for D_u and then these images, (N_u + n,), by S+T trained without them.
        """
        weight, bias = self._regress(images, cosines, self._to_classes(images))
        return HeldOutScores(images, self._target[images] @ weight + bias)

    def with_answers(self, fold: HeldOutScores) -> Tensor:
        """The scores of a fold, (n,), with the third cosine where people answered; all is linear in the cosines."""
        if self._none is None:
            return fold.scores
        weight, bias = self._regress(fold.images, self._to_none(fold.images))
        return fold.scores + self._target[fold.images] @ weight + bias

    def _centered(self, embeddings: Tensor) -> Tensor:
        kind = torch.float16 if embeddings.dtype == torch.float16 else torch.float32  # very many are float16
        return torch.cat([unit(unit(part) - self.center).to(kind) for part in embeddings.split(_RIDGE_SLICE)])

    def _as_unlabeled(self, images: Tensor) -> tuple[Tensor, Tensor]:
        """D_u and then these images of D_t; and which of D_t are not among them."""
        kept = torch.ones(len(self._target), dtype=torch.bool)
        kept[images] = False
        return torch.cat([self._rows, self._target[images].to(self._rows.dtype)]), kept

    def _to_classes(self, images: Tensor) -> Tensor:
        rows, kept = self._as_unlabeled(images)
        target = domain_means(self._target[kept], self._target_labels[kept], self._n_classes)
        return nearest_cosine(rows, class_means([self._source_means, target]))

    def _to_none(self, images: Tensor) -> Tensor:
        assert self._none is not None
        rows, kept = self._as_unlabeled(images)
        return nearest_cosine(rows, self._target[kept]) - nearest_cosine(rows, self._none)

    def _regress(self, images: Tensor, *signals: Tensor) -> tuple[Tensor, float]:
        """The regression of the smoothed sum of signals, (N_u + n,) each, of D_u and these images."""
        count = len(self._rows)
        total = torch.stack([standardize(each, each[:count]) for each in signals]).sum(dim=0)
        near = nearest_rows(self._target[images], self._rows, self._neighbors.shape[1])
        smoothed = smooth(total, torch.cat([self._neighbors, near]), SMOOTHING)
        return fit_ridge(self._as_unlabeled(images)[0], smoothed, RIDGE)


def fit_novelty(fitter: ScoreFitter, cosines: Tensor, folds: Sequence[HeldOutScores]) -> tuple[Novelty, Tensor]:
    """Score D_u and flag what fits no class.

    Args:
        fitter: Of the split.
        cosines: The largest cosine of S+T for each image of D_u, (N_u,).
        folds: Scores of held-out labelled images.

    Returns:
        The score, and which images of D_u are flagged, (N_u,) bool.
    """
    weight, bias, scores = fitter.fit(cosines)
    held_out = torch.cat([fitter.with_answers(fold) for fold in folds]).sort().values
    p_values = conformal_p_values(scores, held_out)
    flagged, share, highest, threshold = flag(p_values), 1.0, 1.0, -math.inf
    if len(held_out) >= _LEAST_HELD_OUT:
        highest = highest_known_share(p_values, len(held_out))
        share = min(highest, known_share(p_values))
    if len(held_out) < _LEAST_HELD_OUT or int((~flagged).sum()) < 2:
        flagged = torch.zeros_like(flagged)
    if bool(flagged.any()):  # between the two, so that rounding moves nothing across
        threshold = float(scores[flagged].max() + scores[~flagged].min()) / 2
    return Novelty(fitter.center, weight, bias, held_out, tuple(folds), threshold, share, highest), flagged
