"""MME: minimax entropy."""

from __future__ import annotations

from dataclasses import dataclass, field

from torch import Tensor

from qurate.data.batches import Batch
from qurate.losses import entropy_loss
from qurate.methods.base import Method, Minimize
from qurate.methods.ent import EntropyConfig
from qurate.networks.adversarial import reverse_gradient


@dataclass(frozen=True)
class MinimaxEntropyConfig(EntropyConfig):
    """ENT's weight, which is lambda here."""

    name: str = field(init=False, default="mme")


class MinimaxEntropy(Method):
    """The classifier maximises the entropy on D_u, the features minimise it.

    C: min cross-entropy - lambda * H;  F: min cross-entropy + lambda * H

    One step does both: the loss holds -H, and a gradient reversal between F and C turns its sign for F.

    Paper: baseline MME; Saito et al., "Semi-supervised Domain Adaptation via Minimax Entropy", 2019.
    """

    Config = MinimaxEntropyConfig
    config: MinimaxEntropyConfig

    def update(self, batch: Batch, progress: float, minimize: Minimize) -> dict[str, float]:
        """Minimise cross-entropy - lambda * H(C(reversed F(x_u)))."""

        def compute() -> dict[str, Tensor]:
            labeled = self.labeled_loss(batch, *self.encode_labeled(batch))
            unlabeled = reverse_gradient(self.encode_unlabeled(batch))
            entropy = entropy_loss(self.network.classifier(unlabeled))
            return {"loss": labeled - self.config.entropy_weight * entropy, "labeled": labeled, "entropy": entropy}

        return minimize(compute)
