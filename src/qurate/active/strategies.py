"""Query strategies: which images a person should label next. Pure functions of tensors."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Protocol

import torch
from sklearn.cluster import KMeans
from sklearn.exceptions import ConvergenceWarning
from torch import Tensor
from torch.nn import functional as F

from qurate.errors import DataError
from qurate.losses import entropy
from qurate.runtime.randomness import generator, stream_seed


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


NEIGHBORS = 10
"""Images in a neighbourhood besides the one in its middle. Our choice."""
MOST_EXACT = 10_000
"""Of more images than this, features are first reduced to their main directions. Our choice."""
_DIRECTIONS = 128
_CELLS = 2**24  # cosines at a time: 64 MB


@torch.no_grad()
def nearest(features: Tensor, rows: Tensor, count: int) -> Tensor:
    """The images most like each of some images, itself not among them, the nearest first.

    Args:
        features: (N, d).
        rows: Positions of those in question, (M,) int64.
        count: How many for each; N - 1 at most.

    Returns:
        Positions, (M, count) int64.
    """
    directions = main_directions(features)
    count = min(count, len(features) - 1)
    found = [torch.empty(0, count, dtype=torch.int64)]
    for part in rows.split(max(1, _CELLS // len(features))):
        cosines = directions[part] @ directions.T
        cosines[torch.arange(len(part)), part] = -2.0
        found.append(cosines.topk(count, dim=1).indices)
    return torch.cat(found)


def main_directions(features: Tensor) -> Tensor:
    """Features of length 1; of very many, projected on the directions in which a sample of them is largest.

    Args:
        features: (N, d).

    Returns:
        (N, d) where N is at most `MOST_EXACT`, else (N, min(d, 128)).
    """
    unit = F.normalize(features.float(), dim=1)
    if len(unit) <= MOST_EXACT or unit.shape[1] <= _DIRECTIONS:
        return unit
    sample = unit[torch.linspace(0, len(unit) - 1, MOST_EXACT).long()]
    _, vectors = torch.linalg.eigh(sample.T @ sample)  # in rising order
    return F.normalize(unit @ vectors[:, -_DIRECTIONS:], dim=1)


class QueryStrategy(Protocol):
    """Says which images a person should label next.

    An asker of your own is one small class, passed as `model.suggest(count, asker=First())`:

        class First:
            def ask(self, pool: Pool, count: int, seed: int) -> Tensor:
                return pool.open[:count]
    """

    def ask(self, pool: Pool, count: int, seed: int) -> Tensor:
        """Positions of different open images, the most useful first: `count` of them, or all that there are."""
        ...


class NamedStrategy:
    """Base of the askers that have a name in `qurate.registry`; a subclass has its own file."""

    def ask(self, pool: Pool, count: int, seed: int) -> Tensor:
        """Positions of open images, see `QueryStrategy`."""
        raise NotImplementedError(f"{type(self).__name__} must define ask.")

    def explain(self, pool: Pool, asked: Tensor, classes: Sequence[str]) -> list[str]:
        """Why each of these images is asked about, as a sentence.

        Args:
            pool: That they were chosen from.
            asked: Their positions, (n,) int64.
            classes: Names of the K classes.
        """
        raise NotImplementedError(f"{type(self).__name__} must define explain.")


def take_lowest(pool: Pool, scores: Tensor, count: int) -> Tensor:
    """Positions of the open images of lowest score; of equal ones the first.

    Args:
        pool: All images.
        scores: Of each, (N,).
        count: How many.
    """
    order = scores[pool.open].argsort(stable=True)
    return pool.open[order[:count]]


def percent(share: float) -> str:
    """A probability for a sentence: 0.314 as '31 %'."""
    return f"{100 * share:.0f} %"


WHY = "Drawn at random: only such images give an honest estimate of the accuracy."


class RandomStrategy(NamedStrategy):
    """Images drawn at random, each as likely as any other: the control, and the honest sample."""

    def ask(self, pool: Pool, count: int, seed: int) -> Tensor:
        """The first open ones of an order of all N images that the seed decides.

        A larger count asks the same images and more, and so does a pool of which some were closed meanwhile.
        """
        order = torch.randperm(len(pool), generator=generator(seed, 21))
        if pool.closed is not None:
            order = order[~pool.closed[order]]
        return order[:count]

    def explain(self, pool: Pool, asked: Tensor, classes: Sequence[str]) -> list[str]:
        """The same for all."""
        return [WHY] * len(asked)


class ProbabilityStrategy(NamedStrategy):
    """The images whose most probable class is least probable: max_k p_k, lowest first."""

    def ask(self, pool: Pool, count: int, seed: int) -> Tensor:
        """Nothing is random here."""
        return take_lowest(pool, pool.probabilities.amax(dim=1), count)

    def explain(self, pool: Pool, asked: Tensor, classes: Sequence[str]) -> list[str]:
        """How sure the model is."""
        sure, best = pool.probabilities[asked].max(dim=1)
        return [
            f"The model is least sure of such images: {classes[k]} has {percent(p)}, and no class has more."
            for p, k in zip(sure.tolist(), best.tolist(), strict=True)
        ]


class MarginStrategy(NamedStrategy):
    """The images whose two most probable classes are closest: p_(1) - p_(2), smallest first."""

    def ask(self, pool: Pool, count: int, seed: int) -> Tensor:
        """Nothing is random here."""
        first, second = pool.probabilities.topk(2, dim=1).values.unbind(dim=1)
        return take_lowest(pool, first - second, count)

    def explain(self, pool: Pool, asked: Tensor, classes: Sequence[str]) -> list[str]:
        """Which two classes."""
        values, labels = pool.probabilities[asked].topk(2, dim=1)
        return [
            f"The model wavers between two classes: {classes[i]} has {percent(p)} and {classes[j]} {percent(q)}."
            for (p, q), (i, j) in zip(values.tolist(), labels.tolist(), strict=True)
        ]


MOST_POINTS = 10_000
"""Of more open images than this, the most doubtful are put into groups. Our choice."""
_LEAST_WEIGHT = 1e-6  # so that certain predictions can be grouped too


class ClustersStrategy(NamedStrategy):
    """K-means weighted by doubt: as many groups as questions, and of each group the image nearest to its middle.

    The weight of an image is the entropy of its prediction, so groups gather where doubt is, and cover all of it. The
    group with most doubt, by the sum of its weights, is asked about first.
    """

    def ask(self, pool: Pool, count: int, seed: int) -> Tensor:
        """The seed decides where the groups begin."""
        order = pool.open[pool.doubt[pool.open].argsort(descending=True, stable=True)]
        if count == 0 or count >= len(order):
            return order[:count]
        points = order[: max(MOST_POINTS, count)].sort().values
        rows = main_directions(pool.features)[points].double()
        weights = pool.doubt[points].double() + _LEAST_WEIGHT
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ConvergenceWarning)  # fewer different images than groups
            groups = KMeans(count, n_init=1, max_iter=50, random_state=stream_seed(seed, 22) % 2**32)
            labels = torch.from_numpy(groups.fit(rows.numpy(), sample_weight=weights.numpy()).labels_).long()
        centers = torch.from_numpy(groups.cluster_centers_)
        away = (rows - centers[labels]).norm(dim=1)
        middles: dict[int, int] = {}
        for i in away.argsort(stable=True).tolist():
            middles.setdefault(int(labels[i]), int(points[i]))
        doubt = torch.zeros(count, dtype=torch.float64).index_add_(0, labels, weights)
        asked = [middles[group] for group in doubt.argsort(descending=True, stable=True).tolist() if group in middles]
        chosen = set(asked)
        asked += [i for i in order.tolist() if i not in chosen][: count - len(asked)]
        return torch.tensor(asked, dtype=torch.int64)

    def explain(self, pool: Pool, asked: Tensor, classes: Sequence[str]) -> list[str]:
        """The class in doubt."""
        sure, best = pool.probabilities[asked].max(dim=1)
        return [
            f"It stands in the middle of a group of doubtful images: {classes[k]} has {percent(p)}."
            for p, k in zip(sure.tolist(), best.tolist(), strict=True)
        ]


MOST_MIDDLES = 10_000
"""Of more open images than this, only the most doubtful are looked at. Our choice."""


class DensityStrategy(NamedStrategy):
    """The densest doubt: images in the middle of a neighbourhood that the model cannot tell.

    With S(i) the image i and its k nearest ones, H the entropy and p the predictions, the score is

        H(mean_{j in S(i)} p_j) * mean_{j in S(i)} H(p_j)

    so the neighbourhood must be undecided as a whole, and its members in doubt themselves. The highest score is asked
    first, then the next that is no neighbour of one asked: a label for one speaks for the others. Where all that is
    left are neighbours of images asked, those follow.
    """

    def ask(self, pool: Pool, count: int, seed: int) -> Tensor:
        """Nothing is random here."""
        middles = pool.open
        if len(middles) > MOST_MIDDLES:
            middles = middles[pool.doubt[middles].argsort(descending=True, stable=True)[:MOST_MIDDLES]].sort().values
        around = nearest(pool.features, middles, NEIGHBORS)
        order = density_scores(pool, middles, around).argsort(descending=True, stable=True)
        near: list[list[int]] = around.tolist()
        asked: list[int] = []
        passed: list[int] = []
        taken: set[int] = set()
        beside: set[int] = set()
        for row, i in zip(order.tolist(), middles[order].tolist(), strict=True):
            if len(asked) == count:
                break
            if i in beside or not taken.isdisjoint(near[row]):
                passed.append(i)
            else:
                asked.append(i)
                taken.add(i)
                beside.update(near[row])
        if len(asked) + len(passed) < min(count, len(pool.open)):  # more are wanted than were looked at
            known = {*asked, *passed}
            rest = pool.open[pool.doubt[pool.open].argsort(descending=True, stable=True)].tolist()
            passed += [i for i in rest if i not in known]
        return torch.tensor((asked + passed)[:count], dtype=torch.int64)

    def explain(self, pool: Pool, asked: Tensor, classes: Sequence[str]) -> list[str]:
        """Between which classes the neighbourhood wavers."""
        around = nearest(pool.features, asked, NEIGHBORS)
        means = _mean_predictions(pool, asked, around)
        likely = means.topk(min(3, len(classes)), dim=1)
        return [
            f"Of this image and the {around.shape[1]} most like it the model cannot tell whether they are "
            f"{_list([classes[k] for k, p in zip(labels, values, strict=True) if p >= values[0] / 5], classes)}."
            for values, labels in zip(likely.values.tolist(), likely.indices.tolist(), strict=True)
        ]


def density_scores(pool: Pool, middles: Tensor, around: Tensor) -> Tensor:
    """Doubt of neighbourhoods, (M,).

    Args:
        pool: All images.
        middles: Positions of those in the middle, (M,).
        around: Of their neighbours, (M, k).
    """
    members = torch.cat([middles.unsqueeze(1), around], dim=1)
    return entropy(_mean_predictions(pool, middles, around)) * pool.doubt[members].mean(dim=1)


def _mean_predictions(pool: Pool, middles: Tensor, around: Tensor) -> Tensor:
    total = pool.probabilities[middles].clone()
    for column in around.unbind(dim=1):  # (M, k, K) at once would be large
        total += pool.probabilities[column]
    return total / (1 + around.shape[1])


def _list(likely: list[str], classes: Sequence[str]) -> str:
    if len(likely) == 1:
        return f"{likely[0]} or one of the {len(classes) - 1} other classes"
    return f"{', '.join(likely[:-1])} or {likely[-1]}"


MOST_SUSPECTS = 10_000
"""Of more trusted images than this, only those that the model is least sure of are looked at. Our choice."""


class CheckStrategy(NamedStrategy):
    """The trusted pseudo-labels that are most likely wrong, to be confirmed or corrected.

    With y(i) the pseudo-label of image i and N(i) its k nearest images, the score is

        p_i(y(i)) * mean_{j in N(i)} p_j(y(i))

    and the lowest is asked first. The model was trained on its positives, so it is sure of most; their neighbours are
    the better witnesses. Images without a trusted label are never asked about.
    """

    def ask(self, pool: Pool, count: int, seed: int) -> Tensor:
        """Nothing is random here."""
        if pool.trusted is None:
            return torch.empty(0, dtype=torch.int64)
        suspects = pool.open[pool.trusted[pool.open] >= 0]
        if len(suspects) > MOST_SUSPECTS:
            own = pool.probabilities[suspects, pool.trusted[suspects]]
            suspects = suspects[own.argsort(stable=True)[: max(MOST_SUSPECTS, count)]].sort().values
        order = label_support(pool, suspects, pool.trusted[suspects]).argsort(stable=True)
        return suspects[order[:count]]

    def explain(self, pool: Pool, asked: Tensor, classes: Sequence[str]) -> list[str]:
        """What the neighbours say."""
        if pool.trusted is None:
            return []
        labels = pool.trusted[asked]
        shares = neighbor_shares(pool, asked, labels).tolist()
        return [
            f"It was trusted as {classes[k]}, and the images most like it are {percent(share)} in favour of that."
            for k, share in zip(labels.tolist(), shares, strict=True)
        ]


def label_support(pool: Pool, rows: Tensor, labels: Tensor) -> Tensor:
    """How far the model and the neighbourhood of each image support its label, (M,) between 0 and 1.

    Args:
        pool: All images.
        rows: Positions of those in question, (M,).
        labels: Of each, (M,).
    """
    own = pool.probabilities[rows, labels]
    return own * neighbor_shares(pool, rows, labels)


def neighbor_shares(pool: Pool, rows: Tensor, labels: Tensor) -> Tensor:
    """Mean probability of each label among the nearest images, (M,)."""
    around = nearest(pool.features, rows, NEIGHBORS)
    return pool.probabilities[around, labels.unsqueeze(1)].mean(dim=1)
