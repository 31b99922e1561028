"""ADR: adversarial dropout regularisation."""

from __future__ import annotations

from dataclasses import dataclass, field

from torch import Tensor
from torch.nn import functional as F

from qurate.config import MethodConfig
from qurate.data.batches import Batch
from qurate.methods.base import Method, Minimize
from qurate.runtime.validation import Inside, Positive, Weight


def symmetric_divergence(first: Tensor, second: Tensor) -> Tensor:
    """Mean of KL(p || q) + KL(q || p), halved, for two sets of logits: (N, K), (N, K) to a scalar."""
    p, q = F.log_softmax(first, dim=1), F.log_softmax(second, dim=1)
    return ((p.exp() - q.exp()) * (p - q)).sum(dim=1).mean() / 2


@dataclass(frozen=True)
class AdversarialDropoutConfig(MethodConfig):
    """The numbers of ADR."""

    name: str = field(init=False, default="adr")
    critic_dropout: Inside = 0.5
    """Dropout on the classifier's input in the two passes. ADR's authors: 0.5."""
    critic_weight: Weight = 0.1
    """Weight of the symmetric KL. Our choice; ADR's authors: 1, of a mean over the classes (B7 in docs/paper.md)."""
    feature_steps: Positive = 4
    """Feature updates per classifier update. ADR's authors: 4."""


class AdversarialDropout(Method):
    """Two dropout passes of C disagree near the boundary; C looks for disagreement on D_u, F avoids it.

    Three steps per batch, as the authors give them: (1) F, C: min cross-entropy; (2) C: min cross-entropy - w * d;
    (3) F: min w * d, `feature_steps` times, with d the symmetric KL between two dropout passes of C on D_u.

    Paper: baseline ADR; Saito et al., "Adversarial Dropout Regularization", 2018.
    """

    Config = AdversarialDropoutConfig
    config: AdversarialDropoutConfig

    def update(self, batch: Batch, progress: float, minimize: Minimize) -> dict[str, float]:
        """Take the three steps on one batch."""
        weight, network = self.config.critic_weight, self.network

        def disagree() -> dict[str, Tensor]:
            supervised = self.labeled_loss(batch, *self.encode_labeled(batch))
            return {"loss": supervised - weight * self.divergence(self.encode_unlabeled(batch))}

        def agree() -> dict[str, Tensor]:
            divergence = self.divergence(self.encode_unlabeled(batch))
            return {"loss": weight * divergence, "divergence": divergence}

        labeled = self.update_labeled(batch, progress, minimize)["loss"]
        minimize(disagree, only=network.classifier.parameters())
        features = [*network.backbone.parameters(), *network.bottleneck.parameters()]
        terms = [minimize(agree, only=features) for _ in range(self.config.feature_steps)]
        return {"loss": labeled, "labeled": labeled, "divergence": terms[-1]["divergence"]}

    def divergence(self, features: Tensor) -> Tensor:
        """How far two dropout passes of C differ on these features."""
        first, second = (self.network.classifier(F.dropout(features, self.config.critic_dropout)) for _ in range(2))
        return symmetric_divergence(first, second)
