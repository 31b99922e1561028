"""CDAC: cross-domain adaptive clustering."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import torch
from torch import Tensor
from torch.nn import functional as F

from qurate.config import MethodConfig
from qurate.data.batches import Batch
from qurate.methods.base import Method, Minimize, pseudo_label_loss, strong_view
from qurate.networks.adversarial import reverse_gradient
from qurate.runtime.compute import at_least_float32, without_autocast
from qurate.runtime.validation import Below1, Inside, Positive, Share, Weight

_SMALLEST_PROBABILITY = 1e-7


@dataclass(frozen=True)
class AdaptiveClusteringConfig(MethodConfig):
    """The numbers of CDAC."""

    name: str = field(init=False, default="cdac")
    cluster_weight: Weight = 0.5
    """Weight of the adversarial clustering loss. Our choice; CDAC's authors: 1."""
    top: Positive = 5
    """How many of the largest features two samples must share to be alike. CDAC's authors: 5."""
    pseudo_weight: Weight = 1.0
    """Weight of the pseudo-labels. CDAC's authors: 1."""
    threshold: Share = 0.95
    """Probability from which a pseudo-label counts. CDAC's authors: 0.95."""
    consistency_weight: Weight = 0.24
    """Weight of the consistency after its ramp. CDAC's authors: 30 of a mean over the classes too, which for the 126 of
    DomainNet is 0.24 of their sum."""
    ramp: Inside = 0.4
    """Share of training over which that weight rises. CDAC's authors: 20,000 of 50,000 steps."""
    strong_dropout: Below1 = 0.5
    """Of what the backbone gives, in the two strong views. Our choice; CDAC's authors augment pixels."""


class AdaptiveClustering(Method):
    """Samples of D_u whose largest features are the same are of one cluster; C is against it, F for it.

    C: min cross-entropy - a * L_aac + b * L_pl + w(t) * L_con;  F: the same with + a * L_aac
    L_aac = - mean_ij [s_ij log p_i . p'_j + (1 - s_ij) log(1 - p_i . p'_j)]
    L_pl  = mean_i [max p_i >= threshold] cross-entropy(x''_i, argmax p_i);  L_con = mean_i |p'_i - p''_i|^2

    p is of the sample as it is, p' and p'' are of two strong views. As in MME, a gradient reversal between F and C
    does both in one step.

    Paper: Li et al., "Cross-Domain Adaptive Clustering for Semi-Supervised Domain Adaptation", 2021.
    """

    Config = AdaptiveClusteringConfig
    config: AdaptiveClusteringConfig

    def update(self, batch: Batch, progress: float, minimize: Minimize) -> dict[str, float]:
        """Minimise cross-entropy - a L_aac(C(reversed F)) + b L_pl + w(t) L_con."""
        config, classifier = self.config, self.network.classifier

        def compute() -> dict[str, Tensor]:
            labeled = self.labeled_loss(batch, *self.encode_labeled(batch))
            vectors = self.network.embed(batch.unlabeled)
            strong = [strong_view(vectors, config.strong_dropout) for _ in range(2)]
            plain, first, second = self.network.bottleneck(torch.cat([vectors, *strong])).chunk(3)
            against = [classifier(reverse_gradient(features)) for features in (plain, first)]
            clusters = clustering_loss(against[0], against[1], rank_similarity(plain.detach(), config.top))
            pseudo = pseudo_label_loss(classifier(plain).detach(), classifier(second), config.threshold)
            consistency = consistency_loss(classifier(first), classifier(second))
            weight = config.consistency_weight * sigmoid_ramp(progress / config.ramp)
            loss = labeled - config.cluster_weight * clusters + config.pseudo_weight * pseudo + weight * consistency
            terms = {"clusters": clusters, "pseudo": pseudo, "consistency": consistency}
            return {"loss": loss, "labeled": labeled, **terms}

        return minimize(compute)


def rank_similarity(features: Tensor, top: int) -> Tensor:
    """s_ij = 1 if the sets of the `top` largest features of i and j are the same, else 0: (N, d) to (N, N)."""
    largest = features.topk(min(top, features.shape[1]), dim=1).indices.sort(dim=1).values
    return (largest.unsqueeze(1) == largest.unsqueeze(0)).all(dim=2).to(features.dtype)


def clustering_loss(first: Tensor, second: Tensor, similar: Tensor) -> Tensor:
    """L_aac = - mean_ij [s_ij log p_i . p'_j + (1 - s_ij) log(1 - p_i . p'_j)].

    Args:
        first: Logits of one view, (N, K), whose softmax is p.
        second: Logits of another view, (N, K), whose softmax is p'.
        similar: s, (N, N).
    """
    with without_autocast(first.device):  # in bfloat16 a product near 1 is 1, and the slope of log(1 - 1 + 1e-7) is 1e7
        same = F.softmax(at_least_float32(first), dim=1) @ F.softmax(at_least_float32(second), dim=1).T
    small = _SMALLEST_PROBABILITY
    return -(similar * (same + small).log() + (1 - similar) * (1 - same + small).log()).mean()


def consistency_loss(first: Tensor, second: Tensor) -> Tensor:
    """L_con = mean_i |p'_i - p''_i|^2 of the probabilities of two sets of logits, (N, K) and (N, K)."""
    return (F.softmax(first, dim=1) - F.softmax(second, dim=1)).square().sum(dim=1).mean()


def sigmoid_ramp(progress: float) -> float:
    """exp(-5 (1 - t)^2) with t = progress up to 1 (Laine and Aila, "Temporal Ensembling", 2017)."""
    return math.exp(-5 * (1 - min(1.0, progress)) ** 2)
