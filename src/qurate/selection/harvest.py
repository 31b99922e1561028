"""The harvest: D_p chosen again from all of D_u at the end of a round (decision 24)."""

from __future__ import annotations

import math

from torch import Tensor

from qurate.selection.positives import Positives
from qurate.selection.pseudo_labels import Round


def harvest(round: Round, scores: Tensor, share: float) -> Positives:
    """The best by score, as many from each pseudo-class as balance allows.

    Each class may give ceil(share * N_u / K) samples, so that no class outweighs another, and none from the
    worst (1 - share) / 2 of it by phi.

    Args:
        round: Pseudo-labels and their quality.
        scores: The higher the sooner chosen, (N_u,).
        share: Share of D_u wanted.
    """
    most = math.ceil(share * len(scores) / round.n_classes)
    good = round.phi >= round.class_quantile(round.phi, (1 - share) / 2)
    chosen = round.best_of_each_class(scores.masked_fill(~good, -math.inf), count=most)
    return round.positives_at(chosen[good[chosen]])
