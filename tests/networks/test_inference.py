"""The one pass through a network in evaluation mode."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from qurate.networks.heads import CosineClassifier, Network
from qurate.networks.inference import backbone_output, evaluation_mode, infer, log_probabilities

INPUTS = torch.randn(11, 5, generator=torch.Generator().manual_seed(0))


def network() -> Network:
    torch.manual_seed(0)
    return Network(
        nn.Identity(), nn.Sequential(nn.Linear(5, 4), nn.Dropout(0.5)), CosineClassifier(4, 3, 30.0), pretrained=False
    )


@pytest.mark.parametrize("size", [1, 4, 11, 50])
def test_rows_are_in_order_whatever_the_size_of_a_batch(size: int) -> None:
    found = infer(network(), INPUTS, lambda batch: batch * 2, batch_size=size)
    assert torch.equal(found, INPUTS * 2)
    into = torch.empty(11, 5)
    assert infer(network(), INPUTS, lambda batch: batch * 2, batch_size=size, out=into) is into
    assert torch.equal(into, INPUTS * 2)


def test_nothing_is_dropped_and_no_gradient_kept() -> None:
    one = network().train()
    first, second = log_probabilities(one, INPUTS), log_probabilities(one, INPUTS)
    assert torch.equal(first, second)
    assert not first.requires_grad
    assert torch.allclose(first.exp().sum(dim=1), torch.ones(11))
    assert torch.equal(backbone_output(one, INPUTS), INPUTS)


@pytest.mark.parametrize("mode", [True, False])
def test_the_mode_is_restored_also_after_an_error(mode: bool) -> None:
    one = network().train(mode)

    def fail(batch: Tensor) -> Tensor:
        assert not one.training
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        infer(one, INPUTS, fail)
    assert one.training is mode
    with evaluation_mode(one):
        assert not one.training
    assert one.training is mode
