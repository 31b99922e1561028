from __future__ import annotations

import torch
from tests.selection.problem import K, blobs, config, make_round

from qurate.selection.algorithm import fit
from qurate.selection.selectors import OracleSelector


def test_it_takes_what_a_plain_loop_takes() -> None:
    round = make_round(noise=2.0)
    truth = [i % K for i in range(80)]
    expected = {
        (i, y) for i, (y, guess) in enumerate(zip(truth, round.pseudo_labels.tolist(), strict=True)) if y == guess
    }
    chosen = OracleSelector(torch.tensor(truth)).select(round)
    assert chosen.pairs() == expected
    assert 0 < len(chosen) < 80  # some pseudo-labels are wrong


def test_a_run_with_it_ends_with_right_labels_only() -> None:
    labels = torch.arange(80) % K
    result = fit(blobs(), config(rounds=1), selector=OracleSelector(labels))
    assert len(result.positives) > 0
    assert torch.equal(result.positives.labels, labels[result.positives.indices])
