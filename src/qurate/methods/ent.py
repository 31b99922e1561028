"""ENT: entropy minimisation on the unlabelled target."""

from __future__ import annotations

from dataclasses import dataclass, field

from torch import Tensor

from qurate.config import MethodConfig
from qurate.data.batches import Batch
from qurate.losses import entropy_loss
from qurate.methods.base import Method, Minimize
from qurate.runtime.validation import Weight


@dataclass(frozen=True)
class EntropyConfig(MethodConfig):
    """The numbers of ENT."""

    name: str = field(init=False, default="ent")
    entropy_weight: Weight = 0.1
    """Weight alpha of the entropy term. Paper: 0.1; MME reference code: 0.1."""


class EntropyMinimization(Method):
    """Cross-entropy on D_s and D_t plus the entropy of the predictions on D_u.

    L = cross-entropy + alpha * L_ent

    Paper: baseline ENT; Grandvalet and Bengio, "Semi-supervised Learning by Entropy Minimization", 2005.
    TML and CML are this with another supervised part.
    """

    Config = EntropyConfig
    config: EntropyConfig

    def update(self, batch: Batch, progress: float, minimize: Minimize) -> dict[str, float]:
        """Minimise L, Eq. (3) where the supervised part is L_tml."""

        def compute() -> dict[str, Tensor]:
            labeled = self.labeled_loss(batch, *self.encode_labeled(batch))
            entropy = entropy_loss(self.network.classifier(self.encode_unlabeled(batch)))
            return {"loss": labeled + self.config.entropy_weight * entropy, "labeled": labeled, "entropy": entropy}

        return minimize(compute)
