from __future__ import annotations

import dataclasses

import pytest
import torch
from tests.selection.problem import make_round

from qurate.selection.selectors import ShareSelector, TopShareConfig


@pytest.mark.parametrize(("progress", "count"), [(0.0, 24), (0.5, 40), (1.0, 56)])
def test_it_takes_what_a_plain_loop_takes(progress: float, count: int) -> None:
    round = dataclasses.replace(make_round(noise=2.0), progress=progress)
    phi, labels = round.phi.tolist(), round.pseudo_labels.tolist()
    expected = {(i, labels[i]) for i in sorted(range(80), key=lambda i: -phi[i])[:count]}
    chosen = ShareSelector(TopShareConfig(share_start=0.3, share_end=0.7)).select(round)
    assert chosen.pairs() == expected


def test_a_class_of_poor_quality_gives_nothing() -> None:
    labels = torch.arange(80) % 2
    round = dataclasses.replace(make_round(), pseudo_labels=labels, progress=0.0)
    round.__dict__["phi"] = -labels.float() - torch.arange(80) / 1000
    chosen = ShareSelector(TopShareConfig()).select(round)
    assert torch.bincount(chosen.labels, minlength=2).tolist() == [16, 0]  # a fifth of 80
