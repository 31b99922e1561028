from __future__ import annotations

import dataclasses
import math
import statistics

import pytest
import torch
from tests.selection.problem import K, make_round

from qurate.config import RewardConfig
from qurate.selection.pseudo_labels import Round
from qurate.selection.selectors import QualityConfig, QualitySelector


def plain_phi(round: Round) -> list[float]:
    """log p_c + log p_f with centres over D_t, by hand."""
    target, labels = round.target.features, round.data.target.labels.tolist()
    centers = [torch.stack([target[i] for i, y in enumerate(labels) if y == j]).mean(0) for j in range(K)]
    values = []
    for features, probabilities, label in zip(
        round.unlabeled.features, round.unlabeled.probabilities, round.pseudo_labels.tolist(), strict=True
    ):
        cosines = [float(torch.nn.functional.cosine_similarity(features, center, dim=0)) for center in centers]
        masses = [math.exp(30 * cosine) for cosine in cosines]
        values.append(math.log(float(probabilities[label])) + math.log(masses[label] / sum(masses)))
    return values


@pytest.mark.parametrize("threshold", ["fixed", "class_median"])
def test_it_takes_what_a_plain_loop_takes(threshold: str) -> None:
    round = make_round(RewardConfig(threshold=threshold), noise=2.0)  # type: ignore[arg-type]  # one of the two
    phi, labels = plain_phi(round), round.pseudo_labels.tolist()
    expected = set()
    for i, (value, label) in enumerate(zip(phi, labels, strict=True)):
        median = statistics.median(other for other, own in zip(phi, labels, strict=True) if own == label)
        tau = 2 * math.log(0.9) if threshold == "fixed" else median
        if value > tau + 1e-5:
            expected.add((i, label))
        else:
            assert value < tau - 1e-5 or threshold == "class_median"  # nobody is on the edge, but the median itself
    chosen = QualitySelector(QualityConfig()).select(round)
    assert chosen.pairs() == expected
    assert 0 < len(chosen) < 80


def test_the_threshold_itself_is_not_enough() -> None:
    labels = torch.zeros(80, dtype=torch.int64)
    labels[5] = 2  # alone in its class, it is the median
    round = dataclasses.replace(make_round(RewardConfig(threshold="class_median")), pseudo_labels=labels)
    assert float(round.phi[5]) == float(round.threshold[5])
    chosen = QualitySelector(QualityConfig()).select(round).indices.tolist()
    assert 5 not in chosen
    assert len(chosen) > 30
