"""The state of the selection problem: lines 7 and 12, and what the Q-network is shown of it."""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from qurate.selection.reward import ClassSums

RELATIONS = 9
"""Numbers that `relate` gives for each candidate."""


class View(NamedTuple):
    """What a network makes of some samples.

    Args:
        rows: [F(x), C(x)], features and softmax outputs side by side, (N, d + K).
        d: Width of the features.
    """

    rows: Tensor
    d: int

    @property
    def features(self) -> Tensor:
        """F(x), (N, d)."""
        return self.rows[:, : self.d]

    @property
    def probabilities(self) -> Tensor:
        """C(x), (N, K)."""
        return self.rows[:, self.d :]


class State(NamedTuple):
    """The three parts of the state.

    Args:
        candidates: [F(x), C(x)] of each candidate, zeros where it is spent, (N_c, d + K).
        labeled: Mean of [F(x), C(x)] over each class of D_t and D_p, (K, d + K).
        unlabeled: The same over the pseudo-classes of D_u, (K, d + K).
    """

    candidates: Tensor
    labeled: Tensor
    unlabeled: Tensor

    def flat(self) -> Tensor:
        """The state as the paper has it: one vector of (N_c + 2K)(d + K) numbers."""
        return torch.cat([part.flatten() for part in self])


def state_size(candidates: int, features: int, classes: int) -> int:
    """(N_c + 2K)(d + K), the dimension of the flat state."""
    return (candidates + 2 * classes) * (features + classes)


def build_state(candidates: Tensor, spent: Tensor, labeled: ClassSums, unlabeled: ClassSums) -> State:
    """Concatenate the candidates and the class means of D_t with D_p and of D_u.

    Paper: "States"; lines 7 and 12.

    Args:
        candidates: [F(x), C(x)] of D_c, (N_c, d + K).
        spent: Which candidates were chosen already, (N_c,) bool.
        labeled: Rows of D_t and D_p by their labels, true and pseudo.
        unlabeled: Rows of D_u by pseudo-label.
    """
    return State(candidates.masked_fill(spent.unsqueeze(1), 0.0), labeled.means(), unlabeled.means())


def project(state: State, projection: Tensor) -> State:
    """The state with its d features mapped to fewer by a fixed matrix, (d, f); probabilities stay.

    The named way out where (N_c + 2K)(d + K) numbers do not fit.
    """
    d = projection.shape[0]
    return State(*(torch.cat([part[:, :d] @ projection, part[:, d:]], dim=1) for part in state))


def fixed_projection(features: int, fewer: int) -> Tensor:
    """A random matrix (features, fewer) that keeps lengths on average; the same in every round and run."""
    return torch.randn(features, fewer, generator=torch.Generator().manual_seed(0)) / math.sqrt(fewer)


def relate(state: State, scale: float) -> Tensor:
    """Each candidate by its relations to the three parts of the state: (N_c, 9).

    The columns: p_c of its pseudo-label; the lead of that class over the next in cosine; the entropy of C(x) over
    log K; cosine to its class's mean in D_t and D_p, and its lead there; p_f there; cosine to its class's mean in
    D_u, and its lead there; p_f there. A spent candidate is all zeros.

    All of it is a function of the state, so nothing is shown that the paper's agent does not see; the same
    relations mean the same for every candidate and class, which lets one network judge them all (decision 21).

    Args:
        state: The three parts.
        scale: s, for p_f.
    """
    n_classes = state.labeled.shape[0]
    features, probabilities = state.candidates[:, :-n_classes], state.candidates[:, -n_classes:]
    spent = probabilities.sum(dim=1) == 0
    classes = probabilities.argmax(dim=1)
    logs = probabilities.clamp_min(1e-12).log()
    certainty, lead = _certainty_and_lead(logs / scale, classes)
    entropy = -(probabilities * logs).sum(dim=1) / torch.log(torch.tensor(float(n_classes)))
    columns = [(certainty * scale).exp(), lead, entropy]
    directions = F.normalize(features, dim=1)
    for means in (state.labeled, state.unlabeled):
        cosines = directions @ F.normalize(means[:, :-n_classes], dim=1).T
        cosine, lead = _certainty_and_lead(cosines, classes)
        prob = F.softmax(scale * cosines, dim=1).gather(1, classes.unsqueeze(1)).squeeze(1)
        columns += [cosine, lead, prob]
    return torch.stack(columns, dim=1).masked_fill(spent.unsqueeze(1), 0.0)


def _certainty_and_lead(scores: Tensor, classes: Tensor) -> tuple[Tensor, Tensor]:
    columns = classes.unsqueeze(1)
    own = scores.gather(1, columns).squeeze(1)
    rival = scores.scatter(1, columns, float("-inf")).max(dim=1).values
    return own, own - rival


def moments(relations: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and deviation of each column: (N, 9) to (9,) and (9,)."""
    correction = min(1, len(relations) - 1)  # a single row has no deviation, and Bessel's would be 0 / 0
    return relations.mean(dim=0), relations.std(dim=0, correction=correction).clamp_min(1e-6)


def standardize(relations: Tensor, mean: Tensor, deviation: Tensor) -> Tensor:
    """Relations shifted and scaled to mean 0 and deviation 1 over D_u at the start of the round."""
    return (relations - mean) / deviation
