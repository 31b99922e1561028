"""The harvest against a plain loop."""

from __future__ import annotations

import math
import statistics

import pytest
import torch
from tests.selection.problem import K, make_round

from qurate.selection.harvest import harvest


@pytest.mark.parametrize("share", [0.2, 0.5, 0.9])
def test_a_harvest_is_balanced_gated_and_by_score(share: float) -> None:
    round = make_round(noise=2.0)
    scores = torch.rand(80, generator=torch.Generator().manual_seed(0))
    phi, labels = round.phi.tolist(), round.pseudo_labels.tolist()
    expected = set()
    for label in range(K):
        members = [i for i in range(80) if labels[i] == label]
        gate = quantile([phi[i] for i in members], (1 - share) / 2)
        good = sorted((i for i in members if phi[i] >= gate - 1e-6), key=lambda i: -float(scores[i]))
        expected |= {(i, label) for i in good[: math.ceil(share * 80 / K)]}
    chosen = harvest(round, scores, share)
    assert chosen.pairs() == expected
    assert 0 < len(chosen) < 80


def quantile(values: list[float], level: float) -> float:
    """With linear interpolation between the two nearest."""
    ordered = sorted(values)
    place = level * (len(ordered) - 1)
    below, above = ordered[math.floor(place)], ordered[math.ceil(place)]
    return below + (above - below) * (place - math.floor(place))


def test_the_median_is_a_quantile() -> None:
    assert quantile([3.0, 1.0, 2.0, 9.0], 0.5) == statistics.median([3.0, 1.0, 2.0, 9.0])
