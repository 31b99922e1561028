"""DECOTA: co-training of two tasks, with mixup."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor
from torch.distributions import Beta
from torch.nn import functional as F

from qurate.config import MethodConfig
from qurate.data.batches import Batch
from qurate.methods.base import Method, Minimize, trust
from qurate.networks.heads import cosines
from qurate.runtime.validation import Below1, Rate, Share, Weight


@dataclass(frozen=True)
class CoTrainingConfig(MethodConfig):
    """The numbers of DECOTA."""

    name: str = field(init=False, default="decota")
    threshold: Share = 0.5
    """Probability from which a classifier's pseudo-label teaches the other. DECOTA's authors: 0.5."""
    mix_weight: Weight = 1.0
    """Weight of the loss on mixtures. DECOTA's authors: 1."""
    warmup: Below1 = 0.2
    """Share of training before they teach each other. Our choice; DECOTA's authors start from trained classifiers."""
    beta: Rate = 1.0
    """Both parameters of the beta distribution of the mixing ratio. DECOTA's authors: 1."""


class CoTraining(Method):
    """Two classifiers, one of D_t and D_u, one of D_s and D_u; each learns from what the other is sure of.

    L = L_t + L_s,  L_t = cross-entropy(D_t) + w cross-entropy(r x_t + (1 - r) x_u, r y_t + (1 - r) y_s(x_u))
                    L_s = cross-entropy(D_s) + w cross-entropy((1 - r) x_s + r x_u, (1 - r) y_s + r y_t(x_u))

    y_s(x_u) is what the classifier of the source says where it is sure, y_t(x_u) what that of the target says; r is of
    Beta(beta, beta), drawn once per batch. The two classifiers are the two halves of F(x) and of the class weights:
    they share no weight after the backbone. The network is their ensemble: its logits are of both halves together.

    Paper: Yang et al., "Deep Co-Training with Task Decomposition for Semi-Supervised Domain Adaptation", 2021.
    """

    Config = CoTrainingConfig
    config: CoTrainingConfig

    def update(self, batch: Batch, progress: float, minimize: Minimize) -> dict[str, float]:
        """Minimise L."""

        def compute() -> dict[str, Tensor]:
            source, target = self.encode_labeled(batch)
            source_labels = self.source_labels(batch, source)
            labeled = self.halves_loss(source, source_labels, target, batch.target_labels)
            with torch.no_grad():
                by_target, by_source = self.logits(self.encode_unlabeled(batch))
            mixed, trusted = self.mixture_loss(batch, source_labels, by_target, by_source)
            weight = self.config.mix_weight if progress >= self.config.warmup else 0.0
            return {"loss": labeled + weight * mixed, "labeled": labeled, "mixed": mixed, "trusted": trusted}

        return minimize(compute)

    def labeled_loss(self, batch: Batch, source: Tensor, target: Tensor) -> Tensor:
        """See `halves_loss`."""
        return self.halves_loss(source, self.source_labels(batch, source), target, batch.target_labels)

    def halves_loss(self, source: Tensor, source_labels: Tensor, target: Tensor, target_labels: Tensor) -> Tensor:
        """Cross-entropy of the one half on D_t plus that of the other on D_s."""
        of_target = F.cross_entropy(self.logits(target)[0], target_labels)
        return of_target + F.cross_entropy(self.logits(source)[1], source_labels)

    def logits(self, features: Tensor) -> tuple[Tensor, Tensor]:
        """What the first half says, which learns from D_t, and the second, which learns from D_s: (N, K) each."""
        classifier, half = self.network.classifier, features.shape[1] // 2
        weight = classifier.weight
        of_target = cosines(features[:, :half], weight[:, :half])
        of_source = cosines(features[:, half:], weight[:, half:])
        return classifier.scale * of_target, classifier.scale * of_source

    def mixture_loss(
        self, batch: Batch, source_labels: Tensor, by_target: Tensor, by_source: Tensor
    ) -> tuple[Tensor, Tensor]:
        """The loss of both halves on mixtures, and the share of D_u that the one or the other is sure of.

        Args:
            batch: Inputs and labels.
            source_labels: Of the source samples, (B,) or (B, K).
            by_target: Logits of D_u by the half of the target, (B_u, K).
            by_source: The same by the half of the source, (B_u, K).
        """
        ratio, n = float(Beta(self.config.beta, self.config.beta).sample()), len(batch.unlabeled)
        with_target, with_source = (torch.randint(len(part), (n,)) for part in (batch.target, batch.source))
        for_target = mix(batch.target[with_target], batch.unlabeled, ratio)
        for_source = mix(batch.unlabeled, batch.source[with_source], ratio)
        features = self.network.features(torch.cat([for_target, for_source]))
        threshold, known = self.config.threshold, batch.target_labels[with_target]
        said, is_sure = trust(F.softmax(by_source, dim=1), threshold)
        loss = mixup_loss(self.logits(features[:n])[0], known, said, ratio, is_sure)
        said, is_also = trust(F.softmax(by_target, dim=1), threshold)
        loss = loss + mixup_loss(self.logits(features[n:])[1], said, source_labels[with_source], ratio, is_also)
        return loss, (is_sure + is_also).mean() / 2


def mix(first: Tensor, second: Tensor, ratio: float) -> Tensor:
    """The mixture r x + (1 - r) x', row by row. Zhang et al., "mixup: Beyond Empirical Risk Minimization", 2018."""
    return torch.lerp(second, first, ratio)


def mixup_loss(logits: Tensor, first: Tensor, second: Tensor, ratio: float, weights: Tensor) -> Tensor:
    """Mean over rows, by their weights, of r cross-entropy(first labels) + (1 - r) cross-entropy(second labels).

    Args:
        logits: Of mixtures, (N, K).
        first: Labels of what the ratio is of, (N,) int64 or the probability of each class, (N, K).
        second: Labels of the rest.
        ratio: r.
        weights: (N,); where all are 0, so is the loss.
    """
    each = [F.cross_entropy(logits, labels, reduction="none") for labels in (first, second)]
    return (weights * mix(each[0], each[1], ratio)).sum() / weights.sum().clamp_min(1)
