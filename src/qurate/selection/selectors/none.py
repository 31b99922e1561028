"""Selector 'none'."""

from __future__ import annotations

from qurate.config import NoneConfig
from qurate.selection.positives import Positives
from qurate.selection.pseudo_labels import Round
from qurate.selection.selectors.base import NamedSelector


class NoneSelector(NamedSelector):
    """Trusts nothing: the base model alone, without rounds."""

    Config = NoneConfig

    def select(self, round: Round) -> Positives:
        """The empty set."""
        return Positives.none()
