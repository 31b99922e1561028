"""Eq. (4)-(8) against plain loops."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from qurate.selection.reward import (
    ClassSums,
    align_distribution,
    assortativity,
    center_probabilities,
    entropy_drop,
    leave_one_out_center_probabilities,
    neighbor_probabilities,
    product_of_experts,
    quality,
    reward,
)


def draw(n: int = 12, d: int = 5, k: int = 4) -> tuple[Tensor, Tensor]:
    rng = torch.Generator().manual_seed(0)
    return torch.randn(n, d, generator=rng, dtype=torch.float64), torch.randint(k - 1, (n,), generator=rng)


def plain_centers(features: list[list[float]], labels: list[int], k: int) -> list[list[float]]:
    """Eq. (6) by hand; the last class has no samples."""
    centers = []
    for j in range(k):
        members = [x for x, y in zip(features, labels, strict=True) if y == j]
        centers.append([sum(column) / len(members) for column in zip(*members, strict=True)] if members else [0.0] * 5)
    return centers


def plain_center_prob(x: list[float], centers: list[list[float]], scale: float) -> list[float]:
    """Eq. (5) by hand."""

    def cosine(a: list[float], b: list[float]) -> float:
        lengths = math.sqrt(sum(v * v for v in a)) * math.sqrt(sum(v * v for v in b))
        return sum(v * w for v, w in zip(a, b, strict=True)) / lengths if lengths else 0.0

    masses = [math.exp(scale * cosine(x, z)) for z in centers]
    return [mass / sum(masses) for mass in masses]


def test_centres_equal_the_plain_loop_and_an_empty_class_is_zero() -> None:
    features, labels = draw()
    expected = plain_centers(features.tolist(), labels.tolist(), 4)
    means = ClassSums.of(features, labels, 4).means()
    torch.testing.assert_close(means, torch.tensor(expected, dtype=torch.float64))
    assert means[3].abs().sum() == 0


def test_sums_with_a_row_more_or_less_equal_sums_made_anew() -> None:
    features, labels = draw()
    some = ClassSums.of(features[:8], labels[:8], 4)
    for grown, expected in (
        (some.plus(features[8:], labels[8:]), ClassSums.of(features, labels, 4)),
        (some.plus(features[5:8], labels[5:8], times=-1), ClassSums.of(features[:5], labels[:5], 4)),
        (some.plus(features[:0], labels[:0]), some),
    ):
        torch.testing.assert_close(grown.means(), expected.means())
        assert torch.equal(grown.counts, expected.counts)


def test_centre_probabilities_equal_the_plain_loop() -> None:
    features, labels = draw()
    centers = ClassSums.of(features, labels, 4).means()
    probabilities = center_probabilities(features, centers, scale=7.0)
    for x, row in zip(features.tolist(), probabilities.tolist(), strict=True):
        assert row == pytest.approx(plain_center_prob(x, centers.tolist(), 7.0))


def test_leaving_one_out_equals_centres_computed_without_it() -> None:
    features, labels = draw()
    fast = leave_one_out_center_probabilities(features, labels, ClassSums.of(features, labels, 4), scale=7.0)
    for i in range(len(labels)):
        others = [j for j in range(len(labels)) if j != i]
        centers = plain_centers(features[others].tolist(), labels[others].tolist(), 4)
        assert fast[i].tolist() == pytest.approx(plain_center_prob(features[i].tolist(), centers, 7.0))


def test_a_sample_alone_in_its_class_has_no_centre_left() -> None:
    features, labels = torch.eye(3), torch.arange(3)
    probabilities = leave_one_out_center_probabilities(features, labels, ClassSums.of(features, labels, 3), scale=5.0)
    torch.testing.assert_close(probabilities, torch.full((3, 3), 1 / 3))


def test_neighbours_vote_by_their_mean() -> None:
    probabilities = torch.tensor([[1.0, 0.0], [0.2, 0.8], [0.6, 0.4]])
    votes = neighbor_probabilities(probabilities, torch.tensor([[1, 2], [0, 2]]))
    torch.testing.assert_close(votes, torch.tensor([[0.4, 0.6], [0.8, 0.2]]))


def test_the_drop_is_the_entropy_before_less_the_entropy_after() -> None:
    assert entropy_drop(before=0.7, after=0.2) == pytest.approx(0.5)  # the action made predictions more certain
    assert entropy_drop(before=0.2, after=0.7) == pytest.approx(-0.5)


def test_quality_is_the_sum_of_its_three_terms() -> None:
    phi = quality(torch.tensor([0.5, 1.0]), torch.tensor([0.25, 1.0]), 0.3, center_weight=2.0, entropy_drop_weight=0.1)
    assert phi.tolist() == pytest.approx([math.log(0.5) + 2 * math.log(0.25) + 0.03, 0.03])


def test_quality_of_an_impossible_label_is_finite() -> None:
    phi = quality(torch.tensor([0.0]), torch.tensor([0.0]), 0.0, center_weight=1.0, entropy_drop_weight=0.1)
    assert bool(phi.isfinite().all())


def test_the_reward_is_strict() -> None:
    assert reward(-0.1, -0.2) == 1.0
    assert reward(-0.3, -0.2) == -1.0
    assert reward(-0.2, -0.2) == -1.0  # phi = tau


def test_assortativity_is_that_of_the_graph_of_neighbours() -> None:
    rng = torch.Generator().manual_seed(0)
    everyone = torch.randint(4, (40,), generator=rng)  # ten labelled samples, then thirty pseudo-labelled ones
    neighbors = torch.stack([torch.randperm(40, generator=rng)[:5] for _ in range(30)])
    edges = [(int(everyone[10 + i]), int(everyone[j])) for i, row in enumerate(neighbors) for j in row]
    mixing = [[edges.count((a, b)) / len(edges) for b in range(4)] for a in range(4)]  # e_ij of Newman's Eq. (2)
    trace = sum(mixing[a][a] for a in range(4))
    squared = sum(mixing[a][b] * mixing[b][c] for a in range(4) for b in range(4) for c in range(4))
    expected = (trace - squared) / (1 - squared)  # ||e^2|| is the sum of all elements of the square
    assert assortativity(everyone[10:], neighbors, everyone, 4) == pytest.approx(expected)


def test_assortativity_is_one_where_all_neighbours_agree_and_about_zero_by_chance() -> None:
    labels = torch.arange(3000) % 3
    same = torch.stack([torch.arange(3000).roll(3 * shift) for shift in (1, 2)], dim=1)
    assert assortativity(labels, same, labels, 3) == 1.0
    anyone = torch.randint(3000, (3000, 10), generator=torch.Generator().manual_seed(0))
    assert abs(assortativity(labels, anyone, labels, 3)) < 0.02
    assert assortativity(torch.zeros(5, dtype=torch.int64), same[:5], torch.zeros_like(labels), 3) == 1.0


def test_aligned_products_equal_the_plain_loop() -> None:
    rng = torch.Generator().manual_seed(0)
    network, baseline = (torch.randn(9, 4, generator=rng, dtype=torch.float64).softmax(dim=1) for _ in range(2))
    for other in (None, baseline):
        products = []
        for i in range(9):
            row = [float(network[i, j]) * (1.0 if other is None else float(other[i, j])) for j in range(4)]
            products.append([value / sum(row) for value in row])
        means = [sum(row[j] for row in products) / 9 for j in range(4)]
        divided = [[value / means[j] for j, value in enumerate(row)] for row in products]
        expected = [[value / sum(row) for value in row] for row in divided]
        product = network if other is None else product_of_experts(network, other.log())
        torch.testing.assert_close(align_distribution(product), torch.tensor(expected, dtype=torch.float64))


def test_alignment_gives_to_a_class_that_is_predicted_too_rarely_and_leaves_equal_shares_alone() -> None:
    rare = torch.tensor([[0.9, 0.1], [0.8, 0.2], [0.55, 0.45]])
    assert rare.argmax(dim=1).tolist() == [0, 0, 0]
    assert align_distribution(rare).argmax(dim=1).tolist() == [0, 0, 1]
    equal = torch.tensor([[0.9, 0.1], [0.1, 0.9]])
    torch.testing.assert_close(align_distribution(equal), equal)
    never = torch.tensor([[1.0, 0.0], [1.0, 0.0]])
    torch.testing.assert_close(align_distribution(never), never)
