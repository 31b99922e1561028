"""The state against a plain loop, and what relations say."""

from __future__ import annotations

import math

import pytest
import torch

from qurate.selection.reward import ClassSums
from qurate.selection.state import RELATIONS, State, View, build_state, project, relate, state_size

D, K = 6, 3


def make_view(n: int, seed: int) -> View:
    rng = torch.Generator().manual_seed(seed)
    features, probabilities = torch.randn(n, D, generator=rng), torch.randn(n, K, generator=rng).softmax(dim=1)
    return View(torch.cat([features, probabilities], dim=1), D)


def make_state(spent: list[bool]) -> tuple[State, View, View, View, torch.Tensor, torch.Tensor]:
    candidates, labeled, unlabeled = make_view(len(spent), 0), make_view(7, 1), make_view(9, 2)
    labels, pseudo = torch.arange(7) % 2, torch.arange(9) % K  # class 2 has no labelled sample
    sums = ClassSums.of(labeled.rows, labels, K), ClassSums.of(unlabeled.rows, pseudo, K)
    state = build_state(candidates.rows, torch.tensor(spent), *sums)
    return state, candidates, labeled, unlabeled, labels, pseudo


def test_the_state_equals_the_plain_loop() -> None:
    state, candidates, labeled, unlabeled, labels, pseudo = make_state([False, True, False, False])
    expected: list[float] = []
    for i, spent in enumerate([False, True, False, False]):
        row = candidates.features[i].tolist() + candidates.probabilities[i].tolist()
        expected += [0.0] * len(row) if spent else row
    for view, classes in ((labeled, labels.tolist()), (unlabeled, pseudo.tolist())):
        for j in range(K):
            members = [
                view.features[i].tolist() + view.probabilities[i].tolist() for i, y in enumerate(classes) if y == j
            ]
            expected += [sum(c) / len(members) for c in zip(*members, strict=True)] if members else [0.0] * (D + K)
    assert state.flat().tolist() == pytest.approx(expected, abs=1e-6)
    assert len(expected) == state_size(4, D, K) == (4 + 2 * K) * (D + K)


def test_the_papers_sizes() -> None:
    assert state_size(100, 512, 126) == 224_576  # DomainNet
    assert state_size(100, 4096, 65) == 957_030  # Office-Home with VGG-16


def test_a_projection_narrows_features_and_keeps_probabilities() -> None:
    state, *_ = make_state([False] * 4)
    matrix = torch.randn(D, 2, generator=torch.Generator().manual_seed(3))
    narrow = project(state, matrix)
    assert narrow.flat().numel() == state_size(4, 2, K)
    torch.testing.assert_close(narrow.candidates[:, 2:], state.candidates[:, D:])
    torch.testing.assert_close(narrow.labeled[:, :2], state.labeled[:, :D] @ matrix)


def test_relations_equal_the_plain_loop() -> None:
    state, candidates, *_ = make_state([False, True, False, False])
    rows = relate(state, scale=5.0)
    assert rows.shape == (4, RELATIONS)
    assert rows[1].abs().sum() == 0  # spent
    for i in (0, 2, 3):
        p = candidates.probabilities[i].tolist()
        own = max(range(K), key=lambda j: p[j])
        rival = max(p[j] for j in range(K) if j != own)
        expected = [p[own], math.log(p[own] / rival) / 5.0, -sum(v * math.log(v) for v in p) / math.log(K)]
        for means in (state.labeled, state.unlabeled):
            cosines = torch.nn.functional.cosine_similarity(candidates.features[i], means[:, :D]).tolist()
            masses = [math.exp(5.0 * c) for c in cosines]
            lead = cosines[own] - max(cosines[j] for j in range(K) if j != own)
            expected += [cosines[own], lead, masses[own] / sum(masses)]
        assert rows[i].tolist() == pytest.approx(expected, abs=1e-5)


def test_relations_do_not_depend_on_the_order_of_candidates() -> None:
    state, *_ = make_state([False] * 4)
    order = torch.tensor([2, 0, 3, 1])
    shuffled = state._replace(candidates=state.candidates[order])
    torch.testing.assert_close(relate(shuffled, 5.0), relate(state, 5.0)[order])
