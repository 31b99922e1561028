from __future__ import annotations

import dataclasses
import math

import pytest
import torch
from tests.selection.problem import K, make_round

from qurate.selection.selectors import BalancedConfig, BalancedSelector


@pytest.mark.parametrize(("progress", "share"), [(0.0, 0.3), (0.5, 0.5), (1.0, 0.7)])
def test_it_takes_what_a_plain_loop_takes(progress: float, share: float) -> None:
    round = dataclasses.replace(make_round(noise=2.0), progress=progress)
    phi, labels = round.phi.tolist(), round.pseudo_labels.tolist()
    expected = set()
    for label in range(K):
        members = sorted((i for i in range(80) if labels[i] == label), key=lambda i: -phi[i])
        expected |= {(i, label) for i in members[: math.ceil(share * len(members))]}
    chosen = BalancedSelector(BalancedConfig(share_start=0.3, share_end=0.7)).select(round)
    assert chosen.pairs() == expected
    assert len(chosen) == len(expected) < 80


def test_a_class_of_one_gives_it_and_an_empty_class_nothing() -> None:
    labels = torch.zeros(80, dtype=torch.int64)
    labels[5] = 2
    round = dataclasses.replace(make_round(), pseudo_labels=labels, progress=0.0)
    chosen = BalancedSelector(BalancedConfig()).select(round)
    assert torch.bincount(chosen.labels, minlength=K).tolist() == [16, 0, 1, 0]  # a fifth of 79, rounded up
