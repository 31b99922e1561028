"""Line 5, and the sets that are chosen from its labels."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import torch
from tests.selection.problem import K, blobs, config, make_round

from qurate.config import RewardConfig
from qurate.data.batches import TrainingData
from qurate.selection.pseudo_labels import Positives, pseudo_label
from qurate.training import start


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
