from __future__ import annotations

import dataclasses

import pytest
import torch
from tests.selection.problem import make_round

from qurate.runtime.randomness import generator
from qurate.selection.pseudo_labels import Round
from qurate.selection.selectors import RandomConfig, RandomSelector

SELECTOR = RandomSelector(RandomConfig(share_start=0.25, share_end=0.75))


@pytest.fixture(scope="module")
def round() -> Round:
    return make_round()


@pytest.mark.parametrize(("progress", "count"), [(0.0, 20), (0.5, 40), (0.51, 41), (1.0, 60)])
def test_it_takes_its_share_rounded_up_each_once_under_its_pseudo_label(
    round: Round, progress: float, count: int
) -> None:
    chosen = SELECTOR.select(dataclasses.replace(round, progress=progress))
    assert len(set(chosen.indices.tolist())) == len(chosen) == count
    assert chosen.labels.tolist() == [int(round.pseudo_labels[i]) for i in chosen.indices.tolist()]


def test_the_generator_of_the_round_decides_and_favours_nobody(round: Round) -> None:
    taken = torch.zeros(80)
    for seed in range(400):
        first, second = (
            SELECTOR.select(dataclasses.replace(round, progress=0.5, rng=generator(seed))) for _ in range(2)
        )
        assert first.indices.tolist() == second.indices.tolist()
        taken[first.indices] += 1
    assert float(taken.mean()) == 200
    assert 150 < float(taken.min()) < 200 < float(taken.max()) < 250  # five deviations of a fair draw
