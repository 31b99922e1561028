"""Line 7: the candidates D_c of an episode."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from qurate.config import EpisodeConfig
from qurate.selection.positives import Positives
from qurate.selection.pseudo_labels import Round


def draw_candidates(
    round: Round,
    positives: Positives,
    config: EpisodeConfig,
    rng: torch.Generator,
    *,
    among: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Line 7: positions in D_u of N_c candidates, and which slots are empty and so spent from the start.

    Candidates come from D_u without D_p (decision 6), or from all of D_u when the round ends with a harvest, which
    chooses D_p again from scratch. Even candidates take the same number from each pseudo-class as far as it has them.

    Args:
        round: Pseudo-labels of D_u.
        positives: D_p.
        config: How many, and whether even.
        rng: Decides which.
        among: Which samples of D_u to draw from, (N_u,) bool; all unless given.
    """
    n = min(config.candidates, len(round.pseudo_labels))
    open_to_choice = torch.ones(len(round.pseudo_labels), dtype=torch.bool)
    if config.harvest == "none":
        open_to_choice[positives.indices] = False
    if among is not None:
        open_to_choice &= among
    available = open_to_choice.nonzero().squeeze(1)
    order = available[torch.randperm(len(available), generator=rng)]
    if config.even_candidates:
        order = order[_rank_in_class(round.pseudo_labels[order]).argsort(stable=True)]
    chosen = order[:n]
    spent = torch.zeros(n, dtype=torch.bool)
    spent[len(chosen) :] = True
    return F.pad(chosen, (0, n - len(chosen))), spent


def _rank_in_class(labels: Tensor) -> Tensor:
    """How many of the same label come before each, (N,) to (N,)."""
    by_label = labels.argsort(stable=True)
    counts = torch.bincount(labels)
    firsts = counts.cumsum(0) - counts
    rank = torch.empty_like(labels)
    rank[by_label] = torch.arange(len(labels)) - firsts[labels[by_label]]
    return rank
