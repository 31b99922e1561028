"""Selection where the backbone is trained too."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from tests.selection.problem import agent_of

from qurate.config import NetworkConfig, RunConfig
from qurate.data.batches import TrainingData
from qurate.data.digits import digits_split
from qurate.data.samples import Labeled, Split, Unlabeled
from qurate.presets import make_config
from qurate.selection.algorithm import fit
from qurate.selection.environment import SelectionEnv
from qurate.selection.pseudo_labels import Positives, Round, find_neighbors, pseudo_label, view
from qurate.training import Trainer, start


def few_digits() -> Split:
    split = digits_split(shots=2, seed=0)
    source, unlabeled = split.source, split.target_unlabeled.inputs
    assert isinstance(source.inputs, torch.Tensor)
    assert isinstance(unlabeled, torch.Tensor)
    some = torch.arange(0, len(source), 8)
    return replace(
        split, source=Labeled(source.inputs[some], source.labels[some]), target_unlabeled=Unlabeled(unlabeled[:90])
    )


def config(**episode: Any) -> RunConfig:
    network = NetworkConfig(backbone="digits", bottleneck="normalized", features=64)
    run = make_config("tml", "dqn", network=network, steps=20, rounds=2, round_steps=4)
    agent = agent_of(run)
    small = replace(agent.episode, candidates=8, actions=4, entropy_samples=30, **episode)
    return replace(run, selection=replace(run.selection, selector=replace(agent, episode=small)))


def make_round(run: RunConfig) -> tuple[Trainer, TrainingData, Round]:
    split = few_digits()
    trainer, data = start(split, run), TrainingData.of(split)
    trainer.run(data, steps=20, seed=0)
    neighbors = find_neighbors(trainer.method.network, data, 5)
    return trainer, data, pseudo_label(trainer, data, Positives.none(), 0, run, neighbors)


def test_a_round_on_embeddings_sees_what_the_whole_network_sees() -> None:
    trainer, data, round = make_round(config())
    expected = view(trainer.method.network, data.unlabeled)
    torch.testing.assert_close(round.unlabeled.rows, expected.rows, rtol=1e-4, atol=1e-5)
    assert isinstance(round.data.unlabeled, torch.Tensor)
    assert round.data.unlabeled.ndim == 2
    again = view(round.trainer.method.network, round.data.unlabeled)
    torch.testing.assert_close(again.rows, expected.rows, rtol=1e-4, atol=1e-5)


def test_no_more_of_the_source_is_embedded_than_the_actions_can_use() -> None:
    assert len(make_round(config(trial_steps=1))[2].data.source) == 4 * 24
    _, data, whole = make_round(config(trial_steps=0))
    assert len(whole.data.source) == len(data.source) > 4 * 24
    assert torch.equal(whole.data.source.labels, data.source.labels)


@pytest.mark.parametrize("layers", ["head", "all"])
def test_the_trial_network_trains_the_layers_asked_for_and_never_those_of_the_round(layers: str) -> None:
    trainer, _, round = make_round(config(trial_layers=layers))
    before = {name: values.clone() for name, values in trainer.method.state_dict().items()}
    env = SelectionEnv(round, agent_of(config(trial_layers=layers)).episode, seed=0)
    env.reset(seed=0)
    env.step(np.int64(0))
    assert all(torch.equal(values, before[name]) for name, values in trainer.method.state_dict().items())
    trained = {name for name, _ in env.trial.method.named_parameters()}
    assert any("backbone" in name for name in trained) == (layers == "all")
    moved = [n for n, values in env.trial.method.named_parameters() if not torch.equal(values, before[n])]
    assert set(moved) == trained


@pytest.mark.parametrize("layers", ["head", "all"])
def test_a_whole_run_trains_the_backbone_and_is_reproducible(layers: str) -> None:
    first, second = (fit(few_digits(), config(trial_layers=layers)) for _ in range(2))
    assert first.positives.same_as(second.positives)
    assert len(first.positives) > 0
    assert len(first.rounds) == 2
