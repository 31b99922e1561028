"""DANN: a domain discriminator behind gradient reversal."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor
from torch.nn import functional as F

from qurate.config import MethodConfig
from qurate.data.batches import Batch
from qurate.methods.base import Method, Minimize, warmup
from qurate.networks.adversarial import DomainDiscriminator, reverse_gradient
from qurate.networks.heads import Network
from qurate.runtime.validation import Positive, Weight


@dataclass(frozen=True)
class DomainAdversarialConfig(MethodConfig):
    """The numbers of DANN."""

    name: str = field(init=False, default="dann")
    domain_weight: Weight = 0.1
    """Weight of the domain loss. Our choice: at 1 the domain loss drowns three labels per class."""
    discriminator_width: Positive = 1024
    """Hidden width of the domain discriminator. CDAN's authors: 1024; MME reference code: 512."""
    warmup_rate: Weight = 10.0
    """Rate of the reversal warm-up 2 / (1 + exp(-rate * progress)) - 1. DANN's authors: 10."""


class DomainAdversarial(Method):
    """Features that a discriminator cannot tell apart by domain.

    L = cross-entropy + w * BCE(D(reversed F(x)), domain), the reversal warming up as
    2 / (1 + exp(-10 p)) - 1 over training. The domain loss is the mean of the means of both domains, so that a batch
    may hold more samples of one (decision 42).

    Labelled data are source and labelled target, as the paper says; the discriminator separates D_s from D_u.

    Paper: baseline DANN; Ganin et al., "Domain-Adversarial Training of Neural Networks", 2016.
    """

    Config = DomainAdversarialConfig
    config: DomainAdversarialConfig

    def __init__(self, network: Network, config: DomainAdversarialConfig) -> None:
        super().__init__(network, config)
        self.discriminator = DomainDiscriminator(network.n_features, config.discriminator_width)

    def update(self, batch: Batch, progress: float, minimize: Minimize) -> dict[str, float]:
        """Minimise L; the discriminator learns, the features learn against it."""

        def compute() -> dict[str, Tensor]:
            source, target = self.encode_labeled(batch)
            unlabeled = self.encode_unlabeled(batch)
            strength = warmup(progress, self.config.warmup_rate)
            domains = self.discriminator(reverse_gradient(torch.cat([source, unlabeled]), strength))
            of_source, of_target = domains[: len(source)], domains[len(source) :]
            domain = (_domain_loss(of_source, 1.0) + _domain_loss(of_target, 0.0)) / 2
            labeled = self.labeled_loss(batch, source, target)
            return {"loss": labeled + self.config.domain_weight * domain, "labeled": labeled, "domain": domain}

        return minimize(compute)


def _domain_loss(logits: Tensor, domain: float) -> Tensor:
    return F.binary_cross_entropy_with_logits(logits, torch.full_like(logits, domain))
