"""Eq. (1), (2) and (12) against plain loops, and by their properties."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from torch.nn import functional as F

from qurate.losses import (
    complete_margin_loss,
    entropy,
    entropy_loss,
    margin_cosines,
    sample_entropy,
    target_margin_loss,
)


def draw(n: int, k: int, seed: int) -> tuple[Tensor, Tensor]:
    rng = torch.Generator().manual_seed(seed)
    cosines = torch.rand(n, k, generator=rng, dtype=torch.float64) * 1.98 - 0.99
    return cosines, torch.randint(k, (n,), generator=rng)


def reference_margin_term(cosines: Tensor, labels: Tensor, scale: float, margin: float, monotone: bool) -> float:
    """- 1/N sum log(e^{s cos(theta_y + m)} / (e^{s cos(theta_y + m)} + sum_{j != y} e^{s cos theta_j})), by hand."""
    total = 0.0
    for row, label in zip(cosines.tolist(), labels.tolist(), strict=True):
        theta = math.acos(row[label])
        widened = math.cos(theta + margin)
        if monotone and theta > math.pi - margin:
            widened = row[label] - margin * math.sin(margin)
        true = math.exp(scale * widened)
        others = sum(math.exp(scale * value) for j, value in enumerate(row) if j != label)
        total -= math.log(true / (true + others))
    return total / len(labels)


@pytest.mark.parametrize("monotone", [True, False])
@pytest.mark.parametrize("margin", [0.0, 0.2, 0.5, 1.2])
def test_target_margin_loss_equals_the_plain_loop(margin: float, monotone: bool) -> None:
    source, source_labels = draw(7, 5, seed=1)
    target, target_labels = draw(9, 5, seed=2)
    loss = target_margin_loss(
        source, source_labels, target, target_labels, scale=30.0, margin=margin, monotone=monotone
    )
    by_hand = reference_margin_term(source, source_labels, 30.0, 0.0, monotone)
    by_hand += reference_margin_term(target, target_labels, 30.0, margin, monotone)
    assert loss.item() == pytest.approx(by_hand, rel=1e-9)


@pytest.mark.parametrize("monotone", [True, False])
def test_complete_margin_loss_equals_the_plain_loop(monotone: bool) -> None:
    cosines, labels = draw(11, 6, seed=3)
    loss = complete_margin_loss(cosines, labels, scale=30.0, margin=0.5, monotone=monotone)
    assert loss.item() == pytest.approx(reference_margin_term(cosines, labels, 30.0, 0.5, monotone), rel=1e-9)
    assert loss.item() > 0  # the printed Eq. (12) lacks the minus sign


def test_the_angles_of_both_branches_are_drawn() -> None:
    cosines, labels = draw(9, 5, seed=2)
    true = cosines.gather(1, labels.unsqueeze(1))
    assert bool((true < -math.cos(1.2)).any())
    assert bool((true > -math.cos(1.2)).any())


@pytest.mark.parametrize("margin", [0.0, 0.5])
def test_gradients_of_the_margin_losses_in_float64(margin: float) -> None:
    source, source_labels = draw(4, 3, seed=4)
    target, target_labels = draw(5, 3, seed=5)
    source.requires_grad_()
    target.requires_grad_()

    def loss(a: Tensor, b: Tensor) -> Tensor:
        return target_margin_loss(a, source_labels, b, target_labels, scale=3.0, margin=margin)

    assert torch.autograd.gradcheck(loss, (source, target))
    labels = torch.cat([source_labels, target_labels])
    assert torch.autograd.gradcheck(
        lambda a, b: complete_margin_loss(torch.cat([a, b]), labels, scale=3.0, margin=margin), (source, target)
    )


def test_margin_zero_is_cosine_cross_entropy() -> None:
    source, source_labels = draw(6, 4, seed=6)
    target, target_labels = draw(8, 4, seed=7)
    plain = F.cross_entropy(30 * source, source_labels) + F.cross_entropy(30 * target, target_labels)
    loss = target_margin_loss(source, source_labels, target, target_labels, scale=30.0, margin=0.0)
    assert torch.equal(loss, plain)


@given(margin=st.floats(0.01, math.pi / 2), low=st.floats(0.0, math.pi), high=st.floats(0.0, math.pi))
def test_the_target_logit_is_monotone_in_the_angle(margin: float, low: float, high: float) -> None:
    near, far = sorted((low, high))
    cosines = torch.tensor([[math.cos(near), 0.0], [math.cos(far), 0.0]], dtype=torch.float64)
    widened = margin_cosines(cosines, torch.tensor([0, 0]), margin)
    # the sine is held constant within a thousandth of a radian of 0 and pi
    assert widened[1, 0] <= widened[0, 0] + 1e-3


def test_the_printed_logit_is_not_monotone() -> None:
    angles = torch.tensor([math.pi - 0.5, math.pi], dtype=torch.float64)
    cosines = torch.stack([angles.cos(), torch.zeros(2, dtype=torch.float64)], dim=1)
    labels = torch.tensor([0, 0])
    printed = margin_cosines(cosines, labels, 0.5, monotone=False)[:, 0]
    ours = margin_cosines(cosines, labels, 0.5)[:, 0]
    assert printed[1] > printed[0]  # a worse angle, a better logit: decision 11
    assert ours[1] < ours[0]


def test_only_the_true_column_changes_and_the_input_is_kept() -> None:
    cosines, labels = draw(10, 4, seed=8)
    before = cosines.clone()
    widened = margin_cosines(cosines, labels, 0.5)
    assert torch.equal(cosines, before)
    changed = widened != cosines
    assert torch.equal(changed.nonzero()[:, 1], labels)


@pytest.mark.parametrize("value", [-1.0, 1.0])
def test_the_gradient_is_finite_at_the_poles(value: float) -> None:
    cosines = torch.tensor([[value, 0.3]], requires_grad=True)
    complete_margin_loss(cosines, torch.tensor([0]), scale=30.0, margin=0.5).backward()
    assert cosines.grad is not None
    assert bool(cosines.grad.isfinite().all())


def test_a_margin_is_in_proportion_to_the_probability_of_its_class() -> None:
    cosines = torch.tensor([[0.6, -0.2, 0.1], [0.3, -0.95, 0.9]], dtype=torch.float64)
    labels = torch.tensor([[0.5, 0.25, 0.25], [0.0, 1.0, 0.0]], dtype=torch.float64)
    found = margin_cosines(cosines, labels, 0.5).tolist()
    for i, (row, shares) in enumerate(zip(cosines.tolist(), labels.tolist(), strict=True)):
        for j, (cosine, share) in enumerate(zip(row, shares, strict=True)):
            theta = math.acos(cosine)
            widened = math.cos(theta + 0.5) if theta <= math.pi - 0.5 else cosine - 0.5 * math.sin(0.5)
            assert found[i][j] == pytest.approx((1 - share) * cosine + share * widened)
    assert found[1] == pytest.approx(margin_cosines(cosines, torch.tensor([1, 1]), 0.5)[1].tolist())


def test_a_larger_margin_is_a_larger_loss() -> None:
    cosines, labels = draw(20, 5, seed=9)
    losses = [complete_margin_loss(cosines, labels, scale=10.0, margin=m).item() for m in (0.0, 0.2, 0.5, 0.8)]
    assert losses == sorted(losses)
    assert losses[0] < losses[-1]


def test_entropy_equals_the_plain_loop() -> None:
    logits = torch.randn(13, 7, generator=torch.Generator().manual_seed(0), dtype=torch.float64) * 4
    total = 0.0
    for row in logits.tolist():
        masses = [math.exp(value) for value in row]
        for mass in masses:
            p = mass / sum(masses)
            total -= p * math.log(p)
    assert entropy_loss(logits).item() == pytest.approx(total / 13, rel=1e-12)


def test_entropy_of_probabilities_is_that_of_their_logits_and_zero_counts_zero() -> None:
    logits = torch.randn(13, 7, generator=torch.Generator().manual_seed(0), dtype=torch.float64) * 4
    torch.testing.assert_close(entropy(logits.softmax(dim=1)), sample_entropy(logits))
    assert entropy(torch.tensor([[1.0, 0.0], [0.5, 0.5]])).tolist() == pytest.approx([0.0, math.log(2)])


def test_gradients_of_the_entropy_in_float64() -> None:
    logits = torch.randn(4, 5, generator=torch.Generator().manual_seed(1), dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(entropy_loss, (logits,))


def test_one_hot_has_no_entropy_and_finite_gradient() -> None:
    logits = torch.tensor([[2000.0, 0.0, 0.0]], requires_grad=True)
    loss = entropy_loss(logits)
    loss.backward()
    assert loss.item() == 0
    assert logits.grad is not None
    assert bool(logits.grad.isfinite().all())


@given(k=st.integers(2, 200), level=st.floats(-50, 50))
def test_uniform_has_log_k(k: int, level: float) -> None:
    assert entropy_loss(torch.full((3, k), level, dtype=torch.float64)).item() == pytest.approx(math.log(k))


@given(st.lists(st.lists(st.floats(-40, 40), min_size=4, max_size=4), min_size=1, max_size=6))
def test_each_sample_lies_between_zero_and_log_k(rows: list[list[float]]) -> None:
    entropies = sample_entropy(torch.tensor(rows, dtype=torch.float64))
    assert bool((entropies >= 0).all())
    assert bool((entropies <= math.log(4) + 1e-12).all())
