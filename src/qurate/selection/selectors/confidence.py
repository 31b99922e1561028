"""Selector 'confidence'."""

from __future__ import annotations

from dataclasses import dataclass, field

from qurate.config import SelectorConfig
from qurate.runtime.checked import Inside
from qurate.selection.positives import Positives
from qurate.selection.pseudo_labels import Round
from qurate.selection.selectors.base import NamedSelector


@dataclass(frozen=True)
class ConfidenceConfig(SelectorConfig):
    """The threshold of SPL."""

    name: str = field(init=False, default="confidence")
    threshold: Inside = 0.9
    """A pseudo-label is taken where its probability is higher. Paper: 0.9."""


class ConfidenceSelector(NamedSelector):
    """All pseudo-labels with a probability above the threshold. Paper: TML_SPL."""

    Config = ConfidenceConfig

    def __init__(self, config: ConfidenceConfig) -> None:
        self.threshold = config.threshold

    def select(self, round: Round) -> Positives:
        """Where p_c > threshold."""
        return round.positives_at((round.classifier_prob > self.threshold).nonzero().squeeze(1))
