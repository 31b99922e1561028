from __future__ import annotations

import torch
from tests.selection.problem import blobs, config, make_round

from qurate.config import NoneConfig
from qurate.data.batches import TrainingData
from qurate.runtime.randomness import stream_seed
from qurate.selection.algorithm import fit
from qurate.selection.selectors import NoneSelector
from qurate.training import start


def test_nothing_is_trusted_even_where_all_is_certain() -> None:
    assert len(NoneSelector(NoneConfig()).select(make_round(noise=0.1))) == 0


def test_the_result_is_the_base_model_and_there_are_no_rounds() -> None:
    split, run = blobs(), config("none", rounds=5)
    result = fit(split, run)
    trainer = start(split, run)
    trainer.run(TrainingData.of(split), steps=60, seed=stream_seed(run.seed, 1))
    assert result.rounds == ()
    assert result.stopped == "no selector: the base model is the result"
    for name, values in trainer.method.state_dict().items():
        assert torch.equal(values, result.method.state_dict()[name]), name
