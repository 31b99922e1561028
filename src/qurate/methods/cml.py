"""CML: the margin on source and target alike, the paper's ablation of TML."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from qurate.data.batches import Batch
from qurate.losses import complete_margin_loss
from qurate.methods.ent import EntropyMinimization
from qurate.methods.tml import TargetMarginConfig


@dataclass(frozen=True)
class CompleteMarginConfig(TargetMarginConfig):
    """TML's numbers."""

    name: str = field(init=False, default="cml")


class CompleteMargin(EntropyMinimization):
    """Complete margin loss on D_s and D_t plus the entropy on D_u.

    L = L_cml + alpha * L_ent

    Paper: Eq. (12) in place of L_tml in Eq. (3), row CML.
    """

    Config = CompleteMarginConfig
    config: CompleteMarginConfig

    def labeled_loss(self, batch: Batch, source: Tensor, target: Tensor) -> Tensor:
        """L_cml, Eq. (12)."""
        return complete_margin_loss(
            self.network.classifier.cosines(torch.cat([source, target])),
            torch.cat([batch.source_labels, batch.target_labels]),
            scale=self.network.classifier.scale,
            margin=self.config.margin,
            monotone=self.config.monotone,
        )
