"""SLA: labels of the source mixed with what prototypes of the target say, with every method."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from tests.methods.problem import NORMALIZED, Recorder, accuracy, make, make_batch, mislabelled
from torch import Tensor

from qurate.config import MethodConfig, NetworkConfig, RunConfig, SourceLabelConfig, TrainingConfig, fingerprint_fields
from qurate.data.batches import TrainingData
from qurate.methods.source_labels import class_means, prototype_probabilities
from qurate.presets import baseline_of, is_baseline, make_config
from qurate.registry import TRAINED
from qurate.runtime.randomness import random_state, seeded
from qurate.training import start

WEIGHTS = SourceLabelConfig(weight=0.8)


def test_prototypes_equal_the_plain_loop_and_an_empty_class_has_that_of_its_labels() -> None:
    features, labeled = torch.randn(7, 2), torch.randn(3, 2)
    predicted, labels = [0, 0, 1, 0, 1, 1, 1], [2, 2, 0]
    found = class_means(features, torch.tensor(predicted), labeled, torch.tensor(labels), 4)
    for j, expected in enumerate(
        [
            [features[i] for i in range(7) if predicted[i] == 0],
            [features[i] for i in range(7) if predicted[i] == 1],
            [labeled[0], labeled[1]],
            [torch.zeros(2)],
        ]
    ):
        torch.testing.assert_close(found[j], sum(expected, torch.zeros(2)) / len(expected))


def test_what_prototypes_say_equals_the_plain_loop() -> None:
    features, centers = torch.randn(4, 3, dtype=torch.float64), torch.randn(5, 3, dtype=torch.float64)
    said = prototype_probabilities(features, centers, 12.0)
    for i, x in enumerate(features.tolist()):
        each = [math.exp(-12 * math.dist(x, center)) for center in centers.tolist()]
        assert said[i].tolist() == pytest.approx([value / sum(each) for value in each])


def test_a_class_without_a_prototype_is_what_no_sample_is() -> None:
    features, centers = torch.tensor([[0.6, 0.8]]), torch.tensor([[-1.0, 0.0], [0.0, 0.0], [0.0, -1.0]])
    assert torch.cdist(features, centers).argmin() == 1
    found = prototype_probabilities(features, centers, 12.0)
    assert found[0, 1] == 0
    torch.testing.assert_close(found[:, [0, 2]], prototype_probabilities(features, centers[[0, 2]], 12.0))


def test_labels_are_mixed_by_the_weight_once_there_are_prototypes() -> None:
    method, batch = make("source_target", source_labels=SourceLabelConfig(weight=0.25)), make_batch()
    features = method.network.features(batch.source)
    assert torch.equal(method.source_labels(batch, features), batch.source_labels)
    assert method.prototypes is not None
    method.prototypes.centers.copy_(torch.randn(4, 16))
    unit = features / features.norm(dim=1, keepdim=True)
    said = prototype_probabilities(unit, method.prototypes.centers, 12.0)
    for row, label, p in zip(method.source_labels(batch, features), batch.source_labels.tolist(), said, strict=True):
        expected = [0.75 * (j == label) + 0.25 * p[j].item() for j in range(4)]
        assert row.tolist() == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize("name", TRAINED)
def test_every_method_learns_from_adapted_labels_and_a_weight_of_zero_changes_nothing(name: str) -> None:
    batch, gradients = make_batch(), []
    for chosen in (None, SourceLabelConfig(weight=0.0), WEIGHTS):
        method = make(name, source_labels=chosen)
        if method.prototypes is not None:
            method.prototypes.centers.copy_(torch.randn(4, 16, generator=torch.Generator().manual_seed(0)))
        recorder = Recorder(method)
        with seeded(0):
            method.update(batch, 0.9, recorder)
        gradients.append(torch.cat([value.flatten() for value in recorder.gradients[0].values()]))
    torch.testing.assert_close(gradients[1], gradients[0])
    assert not torch.allclose(gradients[2], gradients[0])


def test_prototypes_are_computed_after_the_warm_up_and_then_at_the_interval() -> None:
    split = mislabelled()
    chosen = SourceLabelConfig(warmup=0.5, interval=0.2)
    run = RunConfig(NetworkConfig(features=8), MethodConfig.of("tml", source_labels=chosen), TrainingConfig(steps=20))
    trainer = start(split, run)
    prototypes = trainer.method.prototypes
    assert prototypes is not None
    seen = [prototypes.centers.clone()]
    trainer.run(
        TrainingData.of(split), steps=20, seed=0, on_step=lambda step, _: seen.append(prototypes.centers.clone())
    )
    changed = [step for step in range(20) if not torch.equal(seen[step], seen[step + 1])]
    assert changed == [10, 14, 18]
    trainer.run(TrainingData.of(split), steps=20, seed=1, labeled_only=True)
    assert torch.equal(prototypes.centers, seen[-1])


def test_a_run_has_it_by_name_and_its_baseline_is_plain() -> None:
    config = make_config("S+T + SLA", "none")
    assert (config.method.row_name, config.method.source_labels) == ("source_target+sla", SourceLabelConfig())
    assert not is_baseline(config)
    assert is_baseline(baseline_of(config))
    assert RunConfig.from_dict({"method": {"name": "mme+sla"}}).method == MethodConfig.of("MME + SLA")
    stored = {"name": "mme", "source_labels": {"weight": 0.5}}
    assert MethodConfig.from_dict(stored).source_labels == SourceLabelConfig(weight=0.5)
    assert "source_labels" in fingerprint_fields(config)["method"]
    assert "source_labels" not in fingerprint_fields(make_config("mme"))["method"]


def test_a_run_that_was_stopped_goes_on_with_the_prototypes_it_had() -> None:
    """Stopped between two steps at which prototypes are computed."""
    split, run = mislabelled(), make_config("mme+sla", "none", network=NetworkConfig(features=8), steps=30)
    run = replace(run, method=MethodConfig.of("mme", source_labels=SourceLabelConfig(interval=0.5)))
    data, whole, first = TrainingData.of(split), start(split, run), start(split, run)
    whole.run(data, steps=30, seed=0)
    stopped: list[Tensor] = []

    def stop(step: int, terms: dict[str, float]) -> None:
        if step == 10:
            stopped.append(random_state(torch.device("cpu")))
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        first.run(data, steps=30, seed=0, on_step=stop)
    again = start(split, run)
    again.load_state_dict(first.state_dict())
    assert again.method.prototypes is not None
    assert again.method.prototypes.centers.any()
    again.run(data, steps=30, seed=0, first=10, random=stopped[0])
    expected, found = whole.method.state_dict(), again.method.state_dict()
    assert all(torch.equal(found[name], values) for name, values in expected.items())


def test_it_solves_what_its_method_alone_does_not() -> None:
    split, plain = mislabelled(), MethodConfig.of("source_target")
    assert accuracy(split, plain, NORMALIZED) < 0.85
    assert accuracy(split, replace(plain, source_labels=WEIGHTS), NORMALIZED) > 0.95
