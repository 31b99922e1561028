"""The harvest: D_p chosen again from all of D_u at the end of a round (decision 24)."""

from __future__ import annotations

import math

from torch import Tensor

from qurate.config import DQNConfig
from qurate.selection.pseudo_labels import Positives, Round
from qurate.selection.selectors import balance, best_within_room


def harvest(round: Round, scores: Tensor, config: DQNConfig) -> Positives:
    """The best by score, a share of D_u that grows over the rounds; the worst (1 - share) / 2 by phi are left out.

    'adaptive': no class gives more than its room, which is nearly equal for all where the predicted classes are, and
    without bound where they are not; see `qurate.selection.selectors`. The worst are those of their class as far as
    it is balanced, else of all.

    'equal': each class gives at most ceil(share * N_u / K) samples, and the worst are those of their class.

    Args:
        round: Pseudo-labels and their quality.
        scores: The higher the sooner chosen, (N_u,).
        config: Which of the two, and its shares.
    """
    share = config.share_at(round.progress)
    worst = (1 - share) / 2
    gate = round.class_quantile(round.phi, worst)
    weight = balance(round, config) if config.episode.harvest == "adaptive" else 1.0
    good = round.phi >= weight * gate + (1 - weight) * round.phi.quantile(worst)
    scores = scores.masked_fill(~good, -math.inf)
    if config.episode.harvest == "adaptive":
        chosen = best_within_room(round, scores, weight, config)
    else:
        chosen = round.best_of_each_class(scores, count=math.ceil(share * len(scores) / round.n_classes))
    return round.positives_at(chosen[good[chosen]])
