"""CDAN: the discriminator sees features and predictions multiplied."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from qurate.data.batches import Batch
from qurate.losses import sample_entropy
from qurate.methods.base import Method, Minimize, warmup
from qurate.methods.dann import DomainAdversarialConfig
from qurate.networks.adversarial import DomainDiscriminator, reverse_gradient
from qurate.networks.heads import Network
from qurate.runtime.validation import Below1, Positive

_WIDEST_OUTER_PRODUCT = 4096


class OuterProduct(nn.Module):
    """T(f, g) = f g^T flattened: (N, d), (N, K) to (N, d * K)."""

    def __init__(self, features: int, classes: int) -> None:
        super().__init__()
        self.width = features * classes

    def forward(self, features: Tensor, predictions: Tensor) -> Tensor:
        """The products of every feature with every prediction."""
        return (features.unsqueeze(2) * predictions.unsqueeze(1)).flatten(1)


class RandomizedMap(nn.Module):
    """T(f, g) = (R_f f) * (R_g g) / sqrt(width) with fixed normal matrices: (N, d), (N, K) to (N, width)."""

    features_matrix: Tensor
    predictions_matrix: Tensor

    def __init__(self, features: int, classes: int, width: int) -> None:
        super().__init__()
        self.width = width
        self.register_buffer("features_matrix", torch.randn(features, width))
        self.register_buffer("predictions_matrix", torch.randn(classes, width))

    def forward(self, features: Tensor, predictions: Tensor) -> Tensor:
        """An unbiased sketch of the outer product's inner products."""
        product = (features @ self.features_matrix) * (predictions @ self.predictions_matrix)
        return product / math.sqrt(self.width)


@dataclass(frozen=True)
class ConditionalDomainAdversarialConfig(DomainAdversarialConfig):
    """The numbers of CDAN."""

    name: str = field(init=False, default="cdan")
    entropy_conditioning: bool = True
    """Weigh samples by certainty (CDAN+E). CDAN's authors: on in their best variant."""
    random_map: Positive = 1024
    """Width of the randomised multilinear map, used when d * K exceeds 4096. CDAN's authors: 1024."""
    discriminator_dropout: Below1 = 0.5
    """Dropout after each hidden layer of the discriminator. CDAN's authors: 0.5."""


class ConditionalDomainAdversarial(Method):
    """A discriminator on T(f, g), the joint of features and predictions.

    L = cross-entropy + w * sum_i e_i BCE(D(reversed T(f_i, g_i)), domain_i), with the certainty weights
    e_i proportional to 1 + exp(-H(g_i)) within each domain (entropy conditioning) or equal ones.

    T is the outer product up to 4096 numbers and the randomised multilinear map above. Predictions enter T
    detached, as in the authors' code.

    Paper: baseline CDAN; Long et al., "Conditional Adversarial Domain Adaptation", 2018.
    """

    Config = ConditionalDomainAdversarialConfig
    config: ConditionalDomainAdversarialConfig

    def __init__(self, network: Network, config: ConditionalDomainAdversarialConfig) -> None:
        super().__init__(network, config)
        d, k = network.n_features, network.n_classes
        narrow = d * k <= _WIDEST_OUTER_PRODUCT
        self.joint = OuterProduct(d, k) if narrow else RandomizedMap(d, k, config.random_map)
        self.discriminator = DomainDiscriminator(
            self.joint.width, config.discriminator_width, config.discriminator_dropout
        )

    def update(self, batch: Batch, progress: float, minimize: Minimize) -> dict[str, float]:
        """Minimise L; the discriminator learns, the features learn against it."""

        def compute() -> dict[str, Tensor]:
            source, target = self.encode_labeled(batch)
            unlabeled = self.encode_unlabeled(batch)
            domain = self.domain_loss(source, unlabeled, warmup(progress, self.config.warmup_rate))
            labeled = self.labeled_loss(batch, source, target)
            return {"loss": labeled + self.config.domain_weight * domain, "labeled": labeled, "domain": domain}

        return minimize(compute)

    def domain_loss(self, source: Tensor, unlabeled: Tensor, strength: float) -> Tensor:
        """The weighted domain loss of source and unlabelled features."""
        features = torch.cat([source, unlabeled])
        logits = self.network.classifier(features)
        joint = self.joint(reverse_gradient(features, strength), F.softmax(logits, dim=1).detach())
        labels = domain_labels(source, unlabeled)
        losses = F.binary_cross_entropy_with_logits(self.discriminator(joint), labels, reduction="none")
        weights = torch.ones_like(losses)
        if self.config.entropy_conditioning:
            weights = 1 + torch.exp(-reverse_gradient(sample_entropy(logits), strength))
        return (balance_domains(weights, labels) * losses).sum() / 2


def domain_labels(source: Tensor, target: Tensor) -> Tensor:
    """Domain of each sample, source first: source = 1, target = 0."""
    return torch.cat([source.new_ones(len(source)), target.new_zeros(len(target))])


def balance_domains(weights: Tensor, labels: Tensor) -> Tensor:
    """Weights scaled to sum to one within each domain; the sums carry no gradient."""
    source, target = weights * labels, weights * (1 - labels)
    return source / source.sum().detach() + target / target.sum().detach()
