"""What a method is: a network and two verbs, `update` and `predict`."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import ClassVar, Protocol, TypeAlias

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from qurate.config import MethodConfig
from qurate.data.batches import Batch
from qurate.methods.source_labels import TargetPrototypes
from qurate.networks.heads import Network
from qurate.networks.inference import evaluation_mode

Compute: TypeAlias = Callable[[], dict[str, Tensor]]
"""Passes a batch and returns the terms of a loss by name; 'loss' is what is minimised."""


class Minimize(Protocol):
    """One optimiser step: forward, backward on the loss, then a step of all parameters or only of some."""

    def __call__(self, compute: Compute, only: Iterable[nn.Parameter] | None = None) -> dict[str, float]:
        """Take the step on what `compute` returns, as torch's optimisers do on their closures; its terms as numbers."""
        ...


class Method(nn.Module):
    """One row of the paper's tables: how a network learns from a batch.

    A new method is one file with a subclass and its config, and one line in `qurate.registry`: override `update`, and
    `labeled_loss` if its supervised part is not plain cosine cross-entropy; it takes the labels of the source from
    `source_labels`, which may adapt them. Modules made in `__init__` are trained with the network.

    Args:
        network: F and C.
        config: The method's numbers.
    """

    Config: ClassVar[type[MethodConfig]]
    """The class of its numbers."""
    config: MethodConfig

    def __init__(self, network: Network, config: MethodConfig) -> None:
        super().__init__()
        self.network = network
        self.config = config
        self.prototypes = None if config.source_labels is None else TargetPrototypes(network, config.source_labels)

    def update(self, batch: Batch, progress: float, minimize: Minimize) -> dict[str, float]:
        """Learn from one batch.

        Args:
            batch: Source, labelled target and unlabelled target.
            progress: Share of training done, in [0, 1).
            minimize: Takes an optimiser step on a loss. All passes are made within what it is given to compute.

        Returns:
            The terms of the loss by name, 'loss' among them.
        """
        raise NotImplementedError(f"{type(self).__name__} must define update.")

    def update_labeled(self, batch: Batch, progress: float, minimize: Minimize) -> dict[str, float]:
        """Learn from the labelled samples alone. Paper: line 11 of Algorithm 1."""
        return minimize(lambda: {"loss": self.labeled_loss(batch, *self.encode_labeled(batch))})

    def forward(self, compute: Compute) -> dict[str, Tensor]:
        """The terms of a loss: a step is one forward pass, whatever wraps the method."""
        return compute()

    @torch.no_grad()
    def predict(self, inputs: Tensor) -> Tensor:
        """Class probabilities, (N, ...) to (N, K), in evaluation mode."""
        with evaluation_mode(self):
            return F.softmax(self.network(inputs), dim=1)

    def labeled_loss(self, batch: Batch, source: Tensor, target: Tensor) -> Tensor:
        """Cosine cross-entropy over source and labelled target together.

        Args:
            batch: For its labels.
            source: Features of the source samples, (B, d).
            target: Features of the labelled target samples, (B, d).
        """
        logits = self.network.classifier(torch.cat([source, target]))
        return F.cross_entropy(logits, self.labels(batch, source))

    def source_labels(self, batch: Batch, source: Tensor) -> Tensor:
        """Labels of the source samples, (B,) int64; where they are adapted, the probability of each class, (B, K).

        Args:
            batch: For its labels.
            source: Features of the source samples, (B, d).
        """
        return batch.source_labels if self.prototypes is None else self.prototypes.adapt(batch.source_labels, source)

    def labels(self, batch: Batch, source: Tensor) -> Tensor:
        """Labels of source and labelled target together, as `source_labels` gives them."""
        of_source, of_target = self.source_labels(batch, source), batch.target_labels
        if of_source.ndim == 2:
            of_target = F.one_hot(of_target, self.network.n_classes).to(of_source.dtype)
        return torch.cat([of_source, of_target])

    def encode_labeled(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """Features of source and labelled target, in one pass."""
        features = self.network.features(torch.cat([batch.source, batch.target]))
        source, target = features.split([len(batch.source), len(batch.target)])  # slices have a costlier gradient
        return source, target

    def encode_unlabeled(self, batch: Batch) -> Tensor:
        """Features of the unlabelled target, in a pass of their own."""
        return self.network.features(batch.unlabeled)


def strong_view(vectors: Tensor, dropout: float) -> Tensor:
    """What the backbone gives of samples, with more dropped at random than the network does: a strong augmentation."""
    return F.dropout(vectors, dropout)


def trust(probabilities: Tensor, threshold: Tensor | float) -> tuple[Tensor, Tensor]:
    """The most probable classes, (N,) int64, and 1 where they reach the threshold, else 0, (N,)."""
    highest, labels = probabilities.max(dim=1)
    return labels, (highest >= threshold).to(probabilities.dtype)


def pseudo_label_loss(plain: Tensor, strong: Tensor, threshold: float) -> Tensor:
    """L_pl = mean_i [max p_i >= threshold] cross-entropy(strong_i, argmax p_i), of logits (N, K) and (N, K)."""
    labels, trusted = trust(F.softmax(plain, dim=1), threshold)
    return (trusted * F.cross_entropy(strong, labels, reduction="none")).mean()


def warmup(progress: float, rate: float) -> float:
    """Reversal strength 2 / (1 + exp(-rate * progress)) - 1, from 0 towards 1 (Ganin and Lempitsky, 2015)."""
    return 2 / (1 + math.exp(-rate * progress)) - 1
