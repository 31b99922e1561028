"""Eq. (2) against a plain loop, and by its properties."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from qurate.losses import entropy, entropy_loss, sample_entropy


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


def test_gradients_in_float64() -> None:
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
