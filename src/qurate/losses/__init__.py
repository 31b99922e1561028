"""The paper's losses: pure functions of tensors."""

from qurate.losses.entropy import entropy, entropy_loss, sample_entropy
from qurate.losses.target_margin import complete_margin_loss, margin_cosines, target_margin_loss

__all__ = ["complete_margin_loss", "entropy", "entropy_loss", "margin_cosines", "sample_entropy", "target_margin_loss"]
