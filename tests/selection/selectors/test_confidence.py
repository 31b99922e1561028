from __future__ import annotations

import dataclasses

import pytest
import torch
from tests.selection.problem import make_round

from qurate.config import SelectorConfig
from qurate.selection.selectors import ConfidenceConfig, ConfidenceSelector
from qurate.selection.state import View


@pytest.mark.parametrize("threshold", [0.5, 0.9, 0.99])
def test_it_takes_what_a_plain_loop_takes(threshold: float) -> None:
    round = make_round(noise=3.0)
    expected = {}
    for i, row in enumerate(round.unlabeled.probabilities.tolist()):
        label = max(range(len(row)), key=lambda j: row[j])
        if row[label] > threshold:
            expected[i] = label
    chosen = ConfidenceSelector(ConfidenceConfig(threshold=threshold)).select(round)
    assert dict(zip(chosen.indices.tolist(), chosen.labels.tolist(), strict=True)) == expected
    assert 0 < len(chosen) < 80


def test_the_threshold_itself_is_not_enough() -> None:
    round = make_round()
    rows = torch.cat([round.unlabeled.features, torch.tensor([[0.75, 0.25, 0.0, 0.0]]).repeat(80, 1)], dim=1)
    rows[7, -4:] = torch.tensor([0.875, 0.125, 0.0, 0.0])
    round = dataclasses.replace(
        round, unlabeled=View(rows, round.unlabeled.d), pseudo_labels=torch.zeros(80, dtype=torch.int64)
    )
    assert ConfidenceSelector(ConfidenceConfig(threshold=0.75)).select(round).indices.tolist() == [7]


def test_the_papers_threshold_is_the_default() -> None:
    assert SelectorConfig.of("confidence") == ConfidenceConfig(threshold=0.9)
