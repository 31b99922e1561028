"""The harvest: D_p chosen again from all of D_u at the end of a round (decision 24)."""

from __future__ import annotations

import math

from torch import Tensor

from qurate.config import DQNConfig
from qurate.selection.balance import balance, best_within_room
from qurate.selection.positives import Positives
from qurate.selection.pseudo_labels import Round


def harvest(round: Round, scores: Tensor, config: DQNConfig) -> Positives:
    """The best by score, a share of D_u that grows over the rounds.

    'adaptive': no class gives more than its room, which is nearly equal for all where the predicted classes are, and
    without bound where they are lopsided; see `qurate.selection.balance`.

    'equal': each class gives at most ceil(share * N_u / K) samples, and none from the worst (1 - share) / 2 of it by
    phi.

    Args:
        round: Pseudo-labels and their quality.
        scores: The higher the sooner chosen, (N_u,).
        config: Which of the two, and its shares.
    """
    if config.episode.harvest == "adaptive":
        return round.positives_at(best_within_room(round, scores, balance(round, config), config))
    share = config.share_at(round.progress)
    most = math.ceil(share * len(scores) / round.n_classes)
    good = round.phi >= round.class_quantile(round.phi, (1 - share) / 2)
    chosen = round.best_of_each_class(scores.masked_fill(~good, -math.inf), count=most)
    return round.positives_at(chosen[good[chosen]])
