"""S+T: plain training on labelled source and labelled target."""

from __future__ import annotations

from dataclasses import dataclass, field

from qurate.config import MethodConfig
from qurate.data.batches import Batch
from qurate.methods.base import Method, Minimize


@dataclass(frozen=True)
class SourceTargetConfig(MethodConfig):
    """S+T has no numbers of its own."""

    name: str = field(init=False, default="source_target")


class SourceTarget(Method):
    """Cross-entropy on D_s and D_t; D_u is not used.

    Paper: baseline S+T, after Saito et al., "Semi-supervised Domain Adaptation via Minimax Entropy", 2019.
    """

    Config = SourceTargetConfig
    config: SourceTargetConfig

    def update(self, batch: Batch, progress: float, minimize: Minimize) -> dict[str, float]:
        """Minimise L = cross-entropy(D_s and D_t)."""
        return self.update_labeled(batch, progress, minimize)
