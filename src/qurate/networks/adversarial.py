"""What adversarial methods add to a network: a domain discriminator, and gradients that are reversed."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from qurate.networks.heads import Dropout


class DomainDiscriminator(nn.Module):
    """Says whether a feature is of the source (1) or of the target (0): (N, width) to logits (N,).

    Args:
        width: Of the features.
        hidden: Of both hidden layers.
        dropout: After each of them.
    """

    def __init__(self, width: int, hidden: int, dropout: float = 0.0) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Linear(width, hidden),
            nn.Sequential(nn.ReLU(), Dropout(dropout)),
            nn.Linear(hidden, hidden),
            nn.Sequential(nn.ReLU(), Dropout(dropout)),
            nn.Linear(hidden, 1),
        )

    def forward(self, features: Tensor) -> Tensor:
        """Domain logits, (N,)."""
        logits: Tensor = self.layers(features)
        return logits.squeeze(1)


class _ReverseGradient(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, inputs: Tensor, strength: float) -> Tensor:
        ctx.strength = strength
        return inputs.view_as(inputs)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        return -ctx.strength * gradient, None


def reverse_gradient(inputs: Tensor, strength: float = 1.0) -> Tensor:
    """The identity forwards; the gradient times -strength backwards (Ganin and Lempitsky, 2015)."""
    reversed_inputs: Tensor = _ReverseGradient.apply(inputs, strength)
    return reversed_inputs
