"""AdaMatch: pseudo-labels of a weak view, aligned with the source, teach a strong view."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import torch
from torch import Tensor
from torch.nn import functional as F

from qurate.config import MethodConfig
from qurate.data.batches import Batch
from qurate.methods.base import Method, Minimize, strong_view, trust
from qurate.networks.heads import Network, held_statistics
from qurate.runtime.validation import Below1, Share, Weight

_SMALLEST_SHARE = 1e-6


@dataclass(frozen=True)
class AdaMatchConfig(MethodConfig):
    """The numbers of AdaMatch."""

    name: str = field(init=False, default="adamatch")
    unlabeled_weight: Weight = 0.5
    """Weight of the loss on D_u after its warm-up. AdaMatch's authors: 1, beside the sum of two supervised means, where
    ours is one mean."""
    confidence: Share = 0.9
    """The threshold is this share of the mean confidence on the source. AdaMatch's authors: 0.9."""
    momentum: Below1 = 0.99
    """Of the running means of predictions, which are aligned. Our choice; AdaMatch's authors: 0.999 on the source, and
    the mean of 128 batches on the target, over 100 times as many steps."""
    interpolate: bool = True
    """Draw labelled logits between those of a pass of labelled samples alone and of all. AdaMatch's authors: on."""
    strong_dropout: Below1 = 0.5
    """Of what the backbone gives, in the strong view. Our choice; AdaMatch's authors augment pixels."""
    alignment: bool = True
    """Align the distribution of pseudo-labels with that of predictions on the source. AdaMatch's authors: on."""


class AdaMatch(Method):
    """Cross-entropy on two views of D_s and D_t, and on the strong view of D_u under labels of its weak view.

    L = cross-entropy + mu w 1/N_u sum_i [max q_i >= c] cross-entropy(strong view of x_i, argmax q_i)
    q = p(weak view) * mean p(x_s) / mean p(x_u), normalised;  c = confidence * mean max p(weak view of x_s)

    mu rises from 0 to 1 by a cosine over the first half of training. Labelled logits are drawn between those of a pass
    of labelled samples alone and those of a pass of all (random logit interpolation).

    Paper: Berthelot et al., "AdaMatch: A Unified Approach to Semi-Supervised Learning and Domain Adaptation", 2022.
    """

    Config = AdaMatchConfig
    config: AdaMatchConfig
    of_source: Tensor
    of_target: Tensor

    def __init__(self, network: Network, config: AdaMatchConfig) -> None:
        super().__init__(network, config)
        for name in ("of_source", "of_target"):
            self.register_buffer(name, torch.full((network.n_classes,), 1 / network.n_classes))

    def update(self, batch: Batch, progress: float, minimize: Minimize) -> dict[str, float]:
        """Minimise L."""

        def compute() -> dict[str, Tensor]:
            views, alone = self._views(batch)
            features = self.network.bottleneck(views)
            logits = self.network.classifier(features)
            n_source, n_labeled = len(batch.source), len(batch.source) + len(batch.target)
            labeled, (weak, strong) = logits[: 2 * n_labeled], logits[2 * n_labeled :].chunk(2)
            if alone is not None:
                labeled = torch.lerp(labeled, alone, torch.rand_like(labeled))
            known = self.labels(batch, features[:n_source])
            supervised = F.cross_entropy(labeled, torch.cat([known, known]))
            labels, mask = self.pseudo_label(labeled[:n_source].detach(), weak.detach())
            unlabeled = (mask * F.cross_entropy(strong, labels, reduction="none")).mean()
            weight = self.config.unlabeled_weight * half_cosine(progress)
            return {
                "loss": supervised + weight * unlabeled,
                "labeled": supervised,
                "unlabeled": unlabeled,
                "trusted": mask.mean(),
            }

        return minimize(compute)

    def _views(self, batch: Batch) -> tuple[Tensor, Tensor | None]:
        """Weak and strong views of labelled, then of unlabelled samples, and logits of the labelled ones alone."""
        vectors = self.network.embed(torch.cat([batch.source, batch.target, batch.unlabeled]))
        known, unknown = vectors.split([len(batch.source) + len(batch.target), len(batch.unlabeled)])
        dropout = self.config.strong_dropout
        labeled = torch.cat([known, strong_view(known, dropout)])
        alone = None
        if self.config.interpolate:
            with held_statistics(self.network.bottleneck):
                alone = self.network.classifier(self.network.bottleneck(labeled))
        return torch.cat([labeled, unknown, strong_view(unknown, dropout)]), alone

    @torch.no_grad()
    def pseudo_label(self, source: Tensor, weak: Tensor) -> tuple[Tensor, Tensor]:
        """Pseudo-labels of unlabelled samples, (B,) int64, and which of them are trusted, (B,) of 0 and 1.

        Args:
            source: Logits of weak views of source samples, (B_s, K).
            weak: Logits of weak views of unlabelled samples, (B, K).
        """
        of_source, of_target = F.softmax(source, dim=1), F.softmax(weak, dim=1)
        self.of_source.lerp_(of_source.mean(dim=0), 1 - self.config.momentum)
        self.of_target.lerp_(of_target.mean(dim=0), 1 - self.config.momentum)
        if self.config.alignment:
            of_target = align(of_target, self.of_source, self.of_target)
        return trust(of_target, relative_threshold(of_source, self.config.confidence))


def align(probabilities: Tensor, source: Tensor, target: Tensor) -> Tensor:
    """Predictions q = p * source / target, normalised, (N, K): as if their mean, target (K,), were source (K,)."""
    aligned = probabilities * (source + _SMALLEST_SHARE) / (target + _SMALLEST_SHARE)
    return aligned / aligned.sum(dim=1, keepdim=True)


def relative_threshold(source: Tensor, confidence: float) -> Tensor:
    """The threshold c = confidence * mean over the source of the highest probability, (N_s, K) to a scalar."""
    return confidence * source.amax(dim=1).mean()


def half_cosine(progress: float) -> float:
    """The warm-up mu = 1/2 - cos(min(pi, 2 pi progress)) / 2: from 0 to 1 over the first half of training."""
    return 0.5 - math.cos(min(math.pi, 2 * math.pi * progress)) / 2
