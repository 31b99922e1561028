"""CML: the margin on source and target alike, the paper's ablation of TML."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from torch import Tensor

from qurate.data.batches import Batch
from qurate.losses import complete_margin_loss
from qurate.methods.ent import EntropyMinimization
from qurate.methods.tml import TargetMarginConfig


@dataclass(frozen=True)
class CompleteMarginConfig(TargetMarginConfig):
    """TML's numbers, and how source and target are weighed against each other."""

    name: str = field(init=False, default="cml")
    weighting: Literal["set_size", "batch"] = "set_size"
    """'set_size': every sample of D_s and D_t weighs the same, so the larger set weighs more (paper). 'batch': every
    sample of a batch does, half of which are target samples (decision 40)."""


class CompleteMargin(EntropyMinimization):
    """Complete margin loss on D_s and D_t plus the entropy on D_u.

    L = L_cml + alpha * L_ent

    Paper: Eq. (12) in place of L_tml in Eq. (3), row CML.
    """

    Config = CompleteMarginConfig
    config: CompleteMarginConfig

    def labeled_loss(self, batch: Batch, source: Tensor, target: Tensor) -> Tensor:
        """L_cml, Eq. (12): the means of the source and the target part of the batch, weighted by set size."""
        of_source = self._margin_loss(source, self.source_labels(batch, source))
        of_target = self._margin_loss(target, batch.target_labels)
        n_source, n_target = len(source), len(target)
        if self.config.weighting == "set_size" and batch.sizes is not None:
            n_source, n_target = batch.sizes
        return (n_source * of_source + n_target * of_target) / (n_source + n_target)

    def _margin_loss(self, features: Tensor, labels: Tensor) -> Tensor:
        classifier = self.network.classifier
        return complete_margin_loss(
            classifier.cosines(features),
            labels,
            scale=classifier.scale,
            margin=self.config.margin,
            monotone=self.config.monotone,
        )
