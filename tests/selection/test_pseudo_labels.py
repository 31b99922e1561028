"""Line 5, and the sets that are chosen from its labels; also where the backbone is trained."""

from __future__ import annotations

import dataclasses
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from tests.selection.problem import K, agent_of, blobs, config, make_round

from qurate.config import NetworkConfig, RewardConfig, RunConfig
from qurate.data.batches import TrainingData
from qurate.data.digits import digits_split
from qurate.data.samples import Labeled, Split, Unlabeled
from qurate.evaluation import true_labels
from qurate.presets import make_config
from qurate.selection.algorithm import fit
from qurate.selection.environment import SelectionEnv
from qurate.selection.pseudo_labels import Positives, Round, find_neighbors, pseudo_label, view
from qurate.selection.reward import align_distribution
from qurate.training import Trainer, start


def test_line_5_labels_each_sample_by_its_largest_probability() -> None:
    split, run = blobs(), config(rounds=5)
    trainer = start(split, run)
    round = pseudo_label(trainer, TrainingData.of(split), Positives.none(), 3, run, None)
    inputs = split.target_unlabeled.inputs
    assert isinstance(inputs, torch.Tensor)
    for row, label in zip(trainer.method.predict(inputs).tolist(), round.pseudo_labels.tolist(), strict=True):
        assert row[label] == max(row)
    assert (round.number, round.progress) == (3, 0.75)


def test_neighbours_are_the_nearest_and_not_the_sample_itself() -> None:
    round = make_round()
    target, unlabeled = round.data.target.inputs, round.data.unlabeled
    assert isinstance(target, torch.Tensor)
    assert isinstance(unlabeled, torch.Tensor)
    assert round.neighbors is not None
    everything = torch.cat([target, unlabeled])
    for i in (0, 17, 79):
        cosines = [
            (float(torch.nn.functional.cosine_similarity(unlabeled[i], x, dim=0)), j)
            for j, x in enumerate(everything)
            if j != len(target) + i
        ]
        assert set(round.neighbors[i].tolist()) == {j for _, j in sorted(cosines)[-5:]}


def test_class_quantiles_are_those_of_the_own_class() -> None:
    round = make_round(RewardConfig(network="round", threshold="class_median"))
    for label in range(K):
        members = round.pseudo_labels == label
        expected = float(np.median(round.phi[members].numpy()))
        assert round.threshold[members].tolist() == pytest.approx([expected] * int(members.sum()), abs=1e-5)


def test_remembering_needs_the_same_label() -> None:
    round = make_round()
    before = dataclasses.replace(round.positives_at(torch.tensor([3, 4])), rewards=torch.tensor([1.0, -1.0]))
    now = dataclasses.replace(round.positives_at(torch.tensor([4, 3, 5])), rounds=torch.tensor([7, 7, 7]))
    now = dataclasses.replace(now, labels=torch.tensor([int(now.labels[0]), (int(now.labels[1]) + 1) % K, 0]))
    remembered = now.remembering(before)
    assert remembered.rounds.tolist() == [0, 7, 7]
    assert remembered.rewards[0] == -1.0
    assert bool(remembered.rewards[1:].isnan().all())


def few_digits() -> Split:
    split = digits_split(shots=2, seed=0)
    source, unlabeled = split.source, split.target_unlabeled.inputs
    assert isinstance(source.inputs, torch.Tensor)
    assert isinstance(unlabeled, torch.Tensor)
    some = torch.arange(0, len(source), 8)
    return replace(
        split, source=Labeled(source.inputs[some], source.labels[some]), target_unlabeled=Unlabeled(unlabeled[:90])
    )


def whole_run(**episode: Any) -> RunConfig:
    network = NetworkConfig(backbone="digits", bottleneck="normalized", features=64)
    run = make_config("tml", "dqn", network=network, steps=20, rounds=2, round_steps=4)
    agent = agent_of(run)
    small = replace(agent.episode, candidates=8, actions=4, entropy_samples=30, **episode)
    return replace(run, selection=replace(run.selection, selector=replace(agent, episode=small)))


def whole_round(run: RunConfig) -> tuple[Trainer, TrainingData, Round]:
    split = few_digits()
    trainer, data = start(split, run), TrainingData.of(split)
    trainer.run(data, steps=20, seed=0)
    neighbors = find_neighbors(trainer.method.network, data, 5)
    return trainer, data, pseudo_label(trainer, data, Positives.none(), 0, run, neighbors)


def test_a_round_on_embeddings_sees_what_the_whole_network_sees() -> None:
    trainer, data, round = whole_round(whole_run())
    expected = view(trainer.method.network, data.unlabeled)
    torch.testing.assert_close(round.unlabeled.features, expected.features, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(
        round.unlabeled.probabilities, align_distribution(expected.probabilities), rtol=1e-3, atol=1e-4
    )
    assert isinstance(round.data.unlabeled, torch.Tensor)
    assert round.data.unlabeled.ndim == 2
    again = view(round.trainer.method.network, round.data.unlabeled)
    torch.testing.assert_close(again.rows, expected.rows, rtol=1e-4, atol=1e-5)


def test_no_more_of_the_source_is_embedded_than_the_actions_can_use() -> None:
    assert len(whole_round(whole_run(trial_steps=1))[2].data.source) == 4 * 24
    _, data, whole = whole_round(whole_run(trial_steps=0))
    assert len(whole.data.source) == len(data.source) > 4 * 24
    assert torch.equal(whole.data.source.labels, data.source.labels)


@pytest.mark.parametrize("layers", ["head", "all"])
def test_the_trial_network_trains_the_layers_asked_for_and_never_those_of_the_round(layers: str) -> None:
    trainer, _, round = whole_round(whole_run(trial_layers=layers))
    before = {name: values.clone() for name, values in trainer.method.state_dict().items()}
    env = SelectionEnv(round, agent_of(whole_run(trial_layers=layers)).episode, seed=0)
    env.reset(seed=0)
    env.step(np.int64(0))
    assert all(torch.equal(values, before[name]) for name, values in trainer.method.state_dict().items())
    trained = {name for name, _ in env.trial.method.named_parameters()}
    assert any("backbone" in name for name in trained) == (layers == "all")
    moved = [n for n, values in env.trial.method.named_parameters() if not torch.equal(values, before[n])]
    assert set(moved) == trained


@pytest.mark.parametrize("layers", ["head", "all"])
def test_a_whole_run_trains_the_backbone_and_is_reproducible(layers: str) -> None:
    first, second = (fit(few_digits(), whole_run(trial_layers=layers)) for _ in range(2))
    assert first.positives.same_as(second.positives)
    assert len(first.positives) > 0
    assert len(first.rounds) == 2


def test_neighbours_weigh_less_where_they_are_of_several_classes() -> None:
    split = blobs(noise=0.3)
    trusting = RewardConfig(network="round", center="neighbors", threshold="class_median", neighbor_trust="assortative")
    run = config("adaptive", reward=trusting)
    trainer, data = start(split, run), TrainingData.of(split)
    neighbors = find_neighbors(trainer.method.network, data, 10)
    clear = pseudo_label(trainer, data, Positives.none(), 0, run, neighbors)
    truth = true_labels(split.target_unlabeled)
    assert replace(clear, pseudo_labels=truth).center_weight == 1.0
    shuffled = truth[torch.randperm(len(truth), generator=torch.Generator().manual_seed(0))]
    mixed = replace(clear, pseudo_labels=shuffled)
    assert mixed.center_weight == 0.0
    torch.testing.assert_close(mixed.phi, mixed.classifier_prob.clamp_min(1e-12).log())
    assert replace(mixed, config=replace(trusting, neighbor_trust="full")).center_weight == 1.0


def test_the_combined_labeler_labels_by_both_networks() -> None:
    split, plain = blobs(), config("adaptive")
    run = replace(plain, selection=replace(plain.selection, labeler="combined"))
    trainer, data = start(split, run), TrainingData.of(split)
    certain = torch.full((len(split.target_unlabeled), 4), -60.0)
    certain[torch.arange(len(certain)), torch.arange(len(certain)) % 4] = 0.0  # S+T is sure of equal shares
    found = pseudo_label(trainer, data, Positives.none(), 0, run, None, certain)
    assert torch.equal(found.pseudo_labels, torch.arange(len(certain)) % 4)
    by_network = pseudo_label(trainer, data, Positives.none(), 0, plain, None, certain)
    assert torch.equal(by_network.pseudo_labels, by_network.unlabeled.probabilities.argmax(dim=1))
    assert not torch.equal(by_network.pseudo_labels, found.pseudo_labels)


def test_a_run_on_embeddings_of_half_precision_is_nearly_that_on_single() -> None:
    split, run = blobs(), config("adaptive", reward=RewardConfig(network="round", center="neighbors"))
    inputs = split.target_unlabeled.inputs
    assert isinstance(inputs, torch.Tensor)
    half = replace(split, target_unlabeled=Unlabeled(inputs.half(), split.target_unlabeled.sealed))
    trainer = start(split, run)
    found = [find_neighbors(trainer.method.network, TrainingData.of(part), 3) for part in (split, half)]
    assert float((found[0] == found[1]).double().mean()) > 0.9
    single, again = (fit(part, run).method.network for part in (split, half))
    labels = [view(single, inputs).probabilities.argmax(dim=1), view(again, inputs.half()).probabilities.argmax(dim=1)]
    assert float((labels[0] == labels[1]).double().mean()) >= 0.9  # rounding may move single images
