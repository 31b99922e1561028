"""Query strategies: which images a person should label next. Pure functions of tensors."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Protocol

import torch
from sklearn.cluster import KMeans
from sklearn.exceptions import ConvergenceWarning
from torch import Tensor
from torch.nn import functional as F

from qurate.active.pool import MOST_IMAGES, NEIGHBORS, Pool, main_directions, nearest
from qurate.losses import entropy
from qurate.runtime.randomness import generator, stream_seed

_LEAST_WEIGHT = 1e-6  # so that certain predictions count too


class QueryStrategy(Protocol):
    """Says which images a person should label next.

    A query strategy of your own is one small class, passed as `model.suggest(count, query_strategy=First())`:

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
            f"The model cannot decide between two: {classes[i]} has {100 * p:.0f} % and {classes[j]} {100 * q:.0f} %."
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
        return _explain_likeliest(pool, asked, classes, "It is in the middle of a group of uncertain images: {}.")


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
        return _spread(scores, middles, around, uncertain)[:count]

    def explain(self, pool: Pool, asked: Tensor, classes: Sequence[str]) -> list[str]:
        """Between which classes the neighbourhood is undecided."""
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


def _spread(scores: Tensor, middles: Tensor, around: Tensor, uncertain: Tensor) -> Tensor:
    """All open images: those of highest score of which none is a neighbour of another, their neighbours, the rest.

    Args:
        scores: Of the images that were compared, (M,).
        middles: Their positions, (M,).
        around: Their neighbours, (M, k).
        uncertain: Positions of all open images, the most uncertain first.
    """
    neighbors: list[list[int]] = around.tolist()
    asked: dict[int, None] = {}
    left_out: list[int] = []
    beside: set[int] = set()
    order = scores.argsort(descending=True, stable=True)
    for row, i in zip(order.tolist(), middles[order].tolist(), strict=True):
        if i in beside or not asked.keys().isdisjoint(neighbors[row]):
            left_out.append(i)
        else:
            asked[i] = None
            beside.update(neighbors[row])
    return torch.tensor(list(dict.fromkeys([*asked, *left_out, *uncertain.tolist()])), dtype=torch.int64)


def _mean_predictions(pool: Pool, members: Tensor) -> Tensor:
    """Mean probabilities of neighbourhoods, positions (M, k) to (M, K)."""
    first, *others = members.unbind(dim=1)
    total = pool.probabilities[first].clone()
    for column in others:  # (M, k, K) at once would be large
        total += pool.probabilities[column]
    return total / members.shape[1]


class DegreeStrategy(NamedStrategy):
    """Images that many uncertain ones have among their nearest neighbours, each in a different place.

    In the graph with an edge j -> i where i is j itself or one of its k nearest images, the degree is

        d(i) = sum over the edges j -> i of H(p_j)

    The image of highest degree is asked first; it and the images with an edge to it are removed, and so are their
    edges, which lowers the degrees of the others. Where all are removed, the most uncertain of those left out follow.
    Paper: He, "Active semi-supervised domain adaptation via non-maximal degree node suppression", 2024, whose degree
    has no weights.
    """

    def ask(self, pool: Pool, count: int, seed: int) -> Tensor:
        uncertain = pool.most_uncertain()
        middles = uncertain[:MOST_IMAGES].sort().values
        around = nearest(pool.features, middles, NEIGHBORS)
        row_of = torch.full((len(pool),), -1)
        row_of[middles] = torch.arange(len(middles))
        ends = torch.cat([torch.arange(len(middles)).unsqueeze(1), row_of[around]], dim=1)  # -1: of no edge
        starts = torch.arange(len(middles)).unsqueeze(1).expand_as(ends)[ends >= 0]
        weights = pool.uncertainty[middles].double() + _LEAST_WEIGHT
        degrees = torch.zeros(len(middles), dtype=torch.float64).index_add_(0, ends[ends >= 0], weights[starts])
        edges_to: list[list[int]] = [[] for _ in range(len(middles))]
        for start, end in zip(starts.tolist(), ends[ends >= 0].tolist(), strict=True):
            edges_to[end].append(start)
        left = torch.ones(len(middles), dtype=torch.bool)
        chosen: list[int] = []
        while len(chosen) < count and bool(left.any()):
            best = int(torch.where(left, degrees, -1.0).argmax())
            chosen.append(int(middles[best]))
            removed = torch.tensor([start for start in edges_to[best] if left[start]])
            left[removed] = False
            lost = ends[removed]
            degrees.index_add_(0, lost[lost >= 0], -weights[removed].unsqueeze(1).expand_as(lost)[lost >= 0])
        return torch.tensor(list(dict.fromkeys([*chosen, *uncertain.tolist()]))[:count], dtype=torch.int64)

    def explain(self, pool: Pool, asked: Tensor, classes: Sequence[str]) -> list[str]:
        sentence = "Many uncertain images have it among their nearest neighbours: {}."
        return _explain_likeliest(pool, asked, classes, sentence)


class BadgeStrategy(NamedStrategy):
    """Images whose labels would move the last layer most, and each in another direction.

    With x the features at length 1 and e_y the unit vector of the most probable class, the gradient of the
    cross-entropy of an image under its own prediction, with respect to a linear last layer, is the outer product

        g_i = (p_i - e_y(i)) x_i^T

    The longest is asked first; then each is drawn with probability in proportion to its squared distance from the
    nearest asked one (k-means++). Paper: Ash et al., "Deep batch active learning by diverse, uncertain gradient lower
    bounds", 2020.
    """

    def ask(self, pool: Pool, count: int, seed: int) -> Tensor:
        """The seed decides the draws."""
        order = pool.most_uncertain()
        points = order[: max(MOST_IMAGES, count)].sort().values
        rows, p = main_directions(pool.features)[points].double(), pool.probabilities[points].double()
        errors = p - F.one_hot(p.argmax(dim=1), p.shape[1])
        squares = errors.square().sum(dim=1)
        rng = generator(seed, 23)
        chosen = [int(squares.argmax())] if min(count, len(points)) else []
        distances = torch.full_like(squares, torch.inf)
        while chosen:
            i = chosen[-1]
            products = (errors @ errors[i]) * (rows @ rows[i])  # <g_j, g_i>
            distances = torch.minimum(distances, squares + squares[i] - 2 * products).clamp(min=0)
            distances[i] = 0
            if len(chosen) == min(count, len(points)) or not bool((distances > 0).any()):
                break
            draw = torch.rand((), generator=rng, dtype=torch.float64) * distances.sum()
            drawn = int(torch.searchsorted(distances.cumsum(dim=0), draw).clamp(max=len(points) - 1))
            chosen.append(drawn if distances[drawn] > 0 else int(distances.argmax()))
        asked = dict.fromkeys([*points[chosen].tolist(), *order.tolist()])  # the last: where all others are equal
        return torch.tensor(list(asked)[:count], dtype=torch.int64)

    def explain(self, pool: Pool, asked: Tensor, classes: Sequence[str]) -> list[str]:
        sentence = "Its label would change the model in another way than those above: {}."
        return _explain_likeliest(pool, asked, classes, sentence)


class CommitteeStrategy(NamedStrategy):
    """Images in dense places on which the adapted model and plain training (S+T) disagree.

    With p of the model, q of S+T and H the entropy, the score is the Jensen-Shannon divergence times the mean cosine of
    the k nearest images N(i):

        (H((p_i + q_i) / 2) - (H(p_i) + H(q_i)) / 2) * mean_{j in N(i)} cos(x_i, x_j)

    Neighbours of one asked are left to the end, as `density` does. Where there is no S+T, q is the mean prediction of
    the neighbours.
    """

    def ask(self, pool: Pool, count: int, seed: int) -> Tensor:
        uncertain = pool.most_uncertain()
        middles = uncertain[:MOST_IMAGES].sort().values
        around = nearest(pool.features, middles, NEIGHBORS)
        p, q = pool.probabilities[middles], _second_opinion(pool, middles, around)
        disagreement = entropy((p + q) / 2) - (entropy(p) + entropy(q)) / 2
        near = (_unit(pool, column) for column in around.unbind(dim=1))  # of very many features a part at a time
        mean = sum(near, torch.zeros(1)) / max(1, around.shape[1])
        scores = disagreement * (_unit(pool, middles) * mean).sum(dim=1)
        return _spread(scores, middles, around, uncertain)[:count]

    def explain(self, pool: Pool, asked: Tensor, classes: Sequence[str]) -> list[str]:
        q = _second_opinion(pool, asked, nearest(pool.features, asked, NEIGHBORS))
        other = "the images most like it" if pool.baseline is None else "plain training (S+T)"
        return [
            f"The model takes it for {classes[i]}, {other} for {classes[j]}."
            if i != j
            else f"The model and {other} take it for {classes[i]}, and are not equally sure."
            for i, j in zip(pool.probabilities[asked].argmax(dim=1).tolist(), q.argmax(dim=1).tolist(), strict=True)
        ]


def _unit(pool: Pool, rows: Tensor) -> Tensor:
    return F.normalize(pool.features[rows].float(), dim=1)


def _second_opinion(pool: Pool, rows: Tensor, around: Tensor) -> Tensor:
    """Probabilities of some images by S+T, or else by their neighbours, (M, K)."""
    if pool.baseline is not None:
        return pool.baseline[rows]
    return _mean_predictions(pool, around) if around.shape[1] else pool.probabilities[rows]


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
