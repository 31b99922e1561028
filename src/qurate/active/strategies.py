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
from qurate.neighbors import nearest_rows
from qurate.runtime.randomness import generator, stream_seed


@dataclass(frozen=True, eq=False)
class Pool:
    """Unlabelled images and the predictions of the model for them.

    Args:
        features: Of N images, (N, d); near means alike.
        probabilities: Of K classes by the model, (N, K). Of an image that a person has labelled: 1 for its class.
        trusted: Pseudo-label of each image that the model was trained on, (N,) int64, -1 for the others; none unless
            given.
        closed: Images that nobody is to be asked about, such as those with an answer, (N,) bool; none unless given.

    Example:
        >>> pool = Pool(torch.eye(3), torch.tensor([[0.9, 0.1], [0.5, 0.5], [0.6, 0.4]]))
        >>> pool.open.tolist(), pool.uncertainty.argmax().item()
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
            if not all(bool(part.isfinite().all()) for part in values.split(_SLICE)):
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
    def uncertainty(self) -> Tensor:
        """Entropy of each prediction, (N,): 0 for a certain one, log K for a uniform one."""
        return entropy(self.probabilities)

    def first(self, count: int) -> Pool:
        """The pool of the first images alone."""
        rest = (None if values is None else values[:count] for values in (self.trusted, self.closed))
        return Pool(self.features[:count], self.probabilities[:count], *rest)

    def most_uncertain(self) -> Tensor:
        """Positions of the open images, the most uncertain first."""
        return self.open[self.uncertainty[self.open].argsort(descending=True, stable=True)]


def _shape(values: object) -> str:
    if isinstance(values, Tensor):
        return f"a tensor {tuple(values.shape)} of {values.dtype}"
    return type(values).__name__


NEIGHBORS = 10
"""Images in a neighbourhood besides the one in its middle. Our choice."""
MOST_IMAGES = 10_000
"""Of more images than this, features are reduced to their main directions, and only the most uncertain images are
compared with each other. Our choice."""
_DIRECTIONS = 128
_SLICE = 2**16
_LEAST_WEIGHT = 1e-6  # so that certain predictions can be clustered too


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
    return nearest_rows(directions[rows], directions, count, rows)


def main_directions(features: Tensor) -> Tensor:
    """Features of length 1; of very many, projected on the directions in which a sample of them is largest.

    Args:
        features: (N, d).

    Returns:
        (N, d) where N is at most `MOST_IMAGES`, else (N, min(d, 128)).
    """
    if len(features) <= MOST_IMAGES or features.shape[1] <= _DIRECTIONS:
        return F.normalize(features.float(), dim=1)
    sample = F.normalize(features[torch.linspace(0, len(features) - 1, MOST_IMAGES).long()].float(), dim=1)
    _, vectors = torch.linalg.eigh(sample.T @ sample)  # in rising order
    parts = (F.normalize(part.float(), dim=1) @ vectors[:, -_DIRECTIONS:] for part in features.split(_SLICE))
    return F.normalize(torch.cat(list(parts)), dim=1)


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
    """Base of the query strategies in `qurate.registry`, which also explain why they ask."""

    def ask(self, pool: Pool, count: int, seed: int) -> Tensor:
        """Positions of open images, see `QueryStrategy`; most strategies use no randomness."""
        raise NotImplementedError(f"{type(self).__name__} must define ask.")

    def explain(self, pool: Pool, asked: Tensor, classes: Sequence[str]) -> list[str]:
        """Why each of these images is asked about, as a sentence.

        Args:
            pool: That they were chosen from.
            asked: Their positions, (n,) int64.
            classes: Names of the K classes.
        """
        raise NotImplementedError(f"{type(self).__name__} must define explain.")


def _lowest(pool: Pool, scores: Tensor, count: int) -> Tensor:
    """Positions of the open images of lowest score, (N,) for all images; of equal ones the first."""
    return pool.open[scores[pool.open].argsort(stable=True)[:count]]


def _explain_likeliest(pool: Pool, asked: Tensor, classes: Sequence[str], sentence: str) -> list[str]:
    """The sentence with the most probable class of each image and its probability."""
    values, labels = pool.probabilities[asked].max(dim=1)
    return [
        sentence.format(f"{classes[k]} has {100 * p:.0f} %")
        for p, k in zip(values.tolist(), labels.tolist(), strict=True)
    ]


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
        return ["Drawn at random: only such images give an honest estimate of the accuracy."] * len(asked)


class ProbabilityStrategy(NamedStrategy):
    """The images whose most probable class is least probable: max_k p_k, lowest first."""

    def ask(self, pool: Pool, count: int, seed: int) -> Tensor:
        return _lowest(pool, pool.probabilities.amax(dim=1), count)

    def explain(self, pool: Pool, asked: Tensor, classes: Sequence[str]) -> list[str]:
        sentence = "The model is least sure of such images: {}, and no class has more."
        return _explain_likeliest(pool, asked, classes, sentence)


class MarginStrategy(NamedStrategy):
    """The images whose two most probable classes are closest: p_(1) - p_(2), smallest first."""

    def ask(self, pool: Pool, count: int, seed: int) -> Tensor:
        first, second = pool.probabilities.topk(2, dim=1).values.unbind(dim=1)
        return _lowest(pool, first - second, count)

    def explain(self, pool: Pool, asked: Tensor, classes: Sequence[str]) -> list[str]:
        values, labels = pool.probabilities[asked].topk(2, dim=1)
        return [
            f"The model wavers between two classes: {classes[i]} has {100 * p:.0f} % and {classes[j]} {100 * q:.0f} %."
            for (p, q), (i, j) in zip(values.tolist(), labels.tolist(), strict=True)
        ]


class ClustersStrategy(NamedStrategy):
    """Weighted k-means with as many clusters as questions; of each cluster the image nearest to its center.

    The weight of an image is the entropy of its prediction, so clusters gather where the model is uncertain, and cover
    all of it. The cluster of the largest total weight is asked about first.
    """

    def ask(self, pool: Pool, count: int, seed: int) -> Tensor:
        """The seed decides where the clusters begin."""
        order = pool.most_uncertain()
        if count == 0 or count >= len(order):
            return order[:count]
        points = order[: max(MOST_IMAGES, count)].sort().values
        rows = main_directions(pool.features)[points].double()
        weights = pool.uncertainty[points].double() + _LEAST_WEIGHT
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ConvergenceWarning)  # fewer different images than clusters
            clusters = KMeans(count, n_init=1, max_iter=50, random_state=stream_seed(seed, 22) % 2**32)
            labels = torch.from_numpy(clusters.fit(rows.numpy(), sample_weight=weights.numpy()).labels_).long()
        distances = (rows - torch.from_numpy(clusters.cluster_centers_)[labels]).norm(dim=1)
        nearest_to: dict[int, int] = {}
        for i in distances.argsort(stable=True).tolist():
            nearest_to.setdefault(int(labels[i]), int(points[i]))
        totals = torch.zeros(count, dtype=torch.float64).index_add_(0, labels, weights)
        largest = totals.argsort(descending=True, stable=True).tolist()
        asked = dict.fromkeys(nearest_to[cluster] for cluster in largest if cluster in nearest_to)
        for i in order.tolist():  # where clusters are empty
            if len(asked) == count:
                break
            asked.setdefault(i)
        return torch.tensor(list(asked), dtype=torch.int64)

    def explain(self, pool: Pool, asked: Tensor, classes: Sequence[str]) -> list[str]:
        return _explain_likeliest(pool, asked, classes, "It stands in the middle of a group of doubtful images: {}.")


class DensityStrategy(NamedStrategy):
    """Images in the middle of a dense neighbourhood that the model is uncertain about.

    With S(i) the image i and its k nearest ones, H the entropy and p the predictions, the score is

        H(mean_{j in S(i)} p_j) * mean_{j in S(i)} H(p_j)

    so the neighbourhood must be undecided as a whole, and its members uncertain themselves. The highest score is asked
    first, then the next that is no neighbour of one asked: a label for one informs the model about the others. Where
    only neighbours of asked images are left, those follow.
    """

    def ask(self, pool: Pool, count: int, seed: int) -> Tensor:
        uncertain = pool.most_uncertain()
        middles = uncertain[:MOST_IMAGES].sort().values
        around = nearest(pool.features, middles, NEIGHBORS)
        members = torch.cat([middles.unsqueeze(1), around], dim=1)
        scores = entropy(_mean_predictions(pool, members)) * pool.uncertainty[members].mean(dim=1)
        neighbors: list[list[int]] = around.tolist()
        asked: dict[int, None] = {}
        left_out: list[int] = []
        beside: set[int] = set()
        order = scores.argsort(descending=True, stable=True)
        for row, i in zip(order.tolist(), middles[order].tolist(), strict=True):
            if len(asked) == count:
                break
            if i in beside or not asked.keys().isdisjoint(neighbors[row]):
                left_out.append(i)
            else:
                asked[i] = None
                beside.update(neighbors[row])
        chosen = dict.fromkeys([*asked, *left_out, *uncertain.tolist()])  # the last: more wanted than were compared
        return torch.tensor(list(chosen)[:count], dtype=torch.int64)

    def explain(self, pool: Pool, asked: Tensor, classes: Sequence[str]) -> list[str]:
        """Between which classes the neighbourhood wavers."""
        around = nearest(pool.features, asked, NEIGHBORS)
        means = _mean_predictions(pool, torch.cat([asked.unsqueeze(1), around], dim=1))
        top = means.topk(min(3, len(classes)), dim=1)
        sentences = []
        for values, labels in zip(top.values.tolist(), top.indices.tolist(), strict=True):
            likely = [classes[k] for k, p in zip(labels, values, strict=True) if p >= values[0] / 5]
            if len(likely) == 1:
                likely.append(f"one of the {len(classes) - 1} other classes")
            sentences.append(
                f"Of this image and the {around.shape[1]} most like it the model cannot tell whether they are "
                f"{', '.join(likely[:-1])} or {likely[-1]}."
            )
        return sentences


def _mean_predictions(pool: Pool, members: Tensor) -> Tensor:
    """Mean probabilities of neighbourhoods, positions (M, k) to (M, K)."""
    first, *others = members.unbind(dim=1)
    total = pool.probabilities[first].clone()
    for column in others:  # (M, k, K) at once would be large
        total += pool.probabilities[column]
    return total / members.shape[1]


class CheckStrategy(NamedStrategy):
    """The trusted pseudo-labels that are most likely wrong, to be confirmed or corrected.

    With y(i) the pseudo-label of image i and N(i) its k nearest images, the score is

        p_i(y(i)) * mean_{j in N(i)} p_j(y(i))

    and the lowest is asked first. The model was trained on its positives, so it is sure of most; their neighbours are
    the better evidence. Images without a trusted label are never asked about.
    """

    def ask(self, pool: Pool, count: int, seed: int) -> Tensor:
        if pool.trusted is None:
            return torch.empty(0, dtype=torch.int64)
        suspects = pool.open[pool.trusted[pool.open] >= 0]
        if len(suspects) > MOST_IMAGES:  # those that the model is least sure of
            own = pool.probabilities[suspects, pool.trusted[suspects]]
            suspects = suspects[own.argsort(stable=True)[: max(MOST_IMAGES, count)]].sort().values
        order = label_support(pool, suspects, pool.trusted[suspects]).argsort(stable=True)
        return suspects[order[:count]]

    def explain(self, pool: Pool, asked: Tensor, classes: Sequence[str]) -> list[str]:
        if pool.trusted is None:
            return []
        labels = pool.trusted[asked]
        shares = _neighbor_support(pool, asked, labels).tolist()
        return [
            f"It was trusted as {classes[k]}, and the images most like it are {100 * p:.0f} % in favour of that."
            for k, p in zip(labels.tolist(), shares, strict=True)
        ]


def label_support(pool: Pool, rows: Tensor, labels: Tensor) -> Tensor:
    """How far the model and the neighbourhood of each image support its label, (M,) between 0 and 1.

    Args:
        pool: All images.
        rows: Positions of those in question, (M,).
        labels: Of each, (M,).
    """
    own = pool.probabilities[rows, labels]
    return own * _neighbor_support(pool, rows, labels)


def _neighbor_support(pool: Pool, rows: Tensor, labels: Tensor) -> Tensor:
    """Mean probability of each label among the nearest images, (M,)."""
    around = nearest(pool.features, rows, NEIGHBORS)
    return pool.probabilities[around, labels.unsqueeze(1)].mean(dim=1)
