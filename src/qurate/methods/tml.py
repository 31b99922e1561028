"""TML: target margin loss and entropy, the paper's base model."""

from __future__ import annotations

from dataclasses import dataclass, field

from torch import Tensor

from qurate.data.batches import Batch
from qurate.losses import target_margin_loss
from qurate.methods.ent import EntropyConfig, EntropyMinimization
from qurate.runtime.validation import Angle


@dataclass(frozen=True)
class TargetMarginConfig(EntropyConfig):
    """The numbers of TML."""

    name: str = field(init=False, default="tml")
    margin: Angle = 0.5
    """Angular margin m in radians. Paper: 0.5."""
    monotone: bool = True
    """Continue the margin logit monotonically past pi - margin (decision 11). Our choice; False is as printed."""


class TargetMargin(EntropyMinimization):
    """Target margin loss on D_s and D_t plus the entropy on D_u.

    L = L_tml + alpha * L_ent

    Paper: Eq. (3), row TML.
    """

    Config = TargetMarginConfig
    config: TargetMarginConfig

    def labeled_loss(self, batch: Batch, source: Tensor, target: Tensor) -> Tensor:
        """L_tml, Eq. (1)."""
        cosines = self.network.classifier.cosines
        return target_margin_loss(
            cosines(source),
            self.source_labels(batch, source),
            cosines(target),
            batch.target_labels,
            scale=self.network.classifier.scale,
            margin=self.config.margin,
            monotone=self.config.monotone,
        )
