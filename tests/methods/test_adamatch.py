"""AdaMatch: alignment, relative threshold, interpolation of logits."""

from __future__ import annotations

import pytest
import torch
from tests.methods.problem import WIDTH, K, Recorder, accuracy, make, make_batch, moved
from torch import Tensor, nn
from torch.nn import functional as F

from qurate.config import MethodConfig, NetworkConfig
from qurate.methods import build_method
from qurate.methods.adamatch import align, half_cosine, relative_threshold
from qurate.methods.base import trust
from qurate.networks.heads import build_network
from qurate.runtime.randomness import seeded

PROBABILITIES = [[0.7, 0.2, 0.1], [0.5, 0.3, 0.2], [0.4, 0.35, 0.25]]


def test_alignment_equals_the_plain_loop() -> None:
    source, target = [0.2, 0.3, 0.5], [0.6, 0.3, 0.1]
    aligned = align(torch.tensor(PROBABILITIES), torch.tensor(source), torch.tensor(target))
    for row, found in zip(PROBABILITIES, aligned.tolist(), strict=True):
        raw = [p * (s + 1e-6) / (t + 1e-6) for p, s, t in zip(row, source, target, strict=True)]
        assert found == pytest.approx([value / sum(raw) for value in raw], rel=1e-5)


def test_predictions_with_the_mean_of_the_source_stay_as_they_are() -> None:
    mean = torch.tensor([0.2, 0.3, 0.5])
    torch.testing.assert_close(align(torch.tensor(PROBABILITIES), mean, mean), torch.tensor(PROBABILITIES))


def test_the_threshold_is_a_share_of_the_mean_confidence_on_the_source() -> None:
    expected = 0.9 * (0.7 + 0.5 + 0.4) / 3
    assert relative_threshold(torch.tensor(PROBABILITIES), 0.9).item() == pytest.approx(expected)
    labels, trusted = trust(torch.tensor(PROBABILITIES), expected)
    assert (labels.tolist(), trusted.tolist()) == ([0, 0, 0], [1.0, 1.0, 0.0])


def test_the_weight_rises_over_the_first_half() -> None:
    assert [half_cosine(share) for share in (0.0, 0.25, 0.5, 1.0)] == pytest.approx([0.0, 0.5, 1.0, 1.0])


def test_the_loss_by_hand() -> None:
    """No interpolation, alignment or strong view: the means of cross-entropies of the network's own logits."""
    method, batch = make("adamatch", strong_dropout=0.0, interpolate=False, alignment=False), make_batch()
    terms = method.update(batch, 0.5, Recorder(method))
    said = [method.network(part).log_softmax(1) for part in (batch.source, batch.target, batch.unlabeled)]
    labels = [*batch.source_labels.tolist(), *batch.target_labels.tolist()]
    labeled = [-row[y].item() for row, y in zip(torch.cat(said[:2]), labels, strict=True)]
    threshold = 0.9 * sum(row.exp().max().item() for row in said[0]) / len(said[0])
    each = [-row.max().item() * (row.exp().max().item() >= threshold) for row in said[2]]
    assert any(each)
    assert terms["labeled"] == pytest.approx(sum(labeled) / len(labeled), rel=1e-4)
    assert terms["unlabeled"] == pytest.approx(sum(each) / len(each), rel=1e-4)
    assert terms["loss"] == pytest.approx(terms["labeled"] + 0.5 * terms["unlabeled"], rel=1e-5)


@pytest.mark.parametrize("factor", [1.0, 0.3])
def test_labelled_logits_are_drawn_between_those_of_two_passes(factor: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """With a normalized bottleneck: a pass of labelled samples alone, and one of all; the first moves no statistics."""
    config = NetworkConfig(bottleneck="normalized", features=16, dropout=0.0)
    network = build_network(config, n_classes=K, input_width=WIDTH, seed=0)
    method = build_method(MethodConfig.of("adamatch", strong_dropout=0.0, unlabeled_weight=0.0), network, seed=0)
    batch, rng = make_batch(), torch.Generator().manual_seed(0)
    batch = batch._replace(unlabeled=batch.unlabeled + 2)
    assert isinstance(network.bottleneck, nn.Sequential)
    linear, norm = network.bottleneck[1:3]
    assert isinstance(norm, nn.BatchNorm1d)
    with torch.no_grad():
        norm.weight.uniform_(0.5, 1.5, generator=rng)
        norm.bias.uniform_(-0.5, 0.5, generator=rng)
        known, unknown = linear(torch.cat([batch.source, batch.target])), linear(batch.unlabeled)
    # both views of each sample are the same
    alone, together = torch.cat([known, known]), torch.cat([known, known, unknown, unknown])

    def logits(batch: Tensor) -> Tensor:
        normalized = (known - batch.mean(dim=0)) / (batch.var(dim=0, correction=0) + norm.eps).sqrt()
        features = (norm.weight * normalized + norm.bias).relu()
        return 30 * F.cosine_similarity(features.unsqueeze(1), network.classifier.weight, dim=2)

    monkeypatch.setattr(torch, "rand_like", lambda values: torch.full_like(values, factor))
    found = method.train().update(batch, 0.5, Recorder(method))["labeled"]
    mixed = (1 - factor) * logits(together) + factor * logits(alone)
    labels = torch.cat([batch.source_labels, batch.target_labels])
    assert found == pytest.approx(F.cross_entropy(mixed, labels).item(), rel=1e-5)
    assert found != pytest.approx(F.cross_entropy(logits(together), labels).item(), rel=1e-2)
    torch.testing.assert_close(norm.running_mean, 0.1 * together.mean(dim=0))
    torch.testing.assert_close(norm.running_var, 0.9 + 0.1 * together.var(dim=0))


def test_without_weight_and_views_it_is_source_target() -> None:
    batch, gradients = make_batch(), []
    for method in (make("adamatch", unlabeled_weight=0.0, strong_dropout=0.0), make("source_target")):
        recorder = Recorder(method)
        with seeded(0):
            method.update(batch, 0.7, recorder)
        gradients.append(recorder.gradients[0])
    for name, gradient in gradients[1].items():
        torch.testing.assert_close(gradients[0][name], gradient)


def test_the_means_of_predictions_run_with_the_momentum() -> None:
    method = make("adamatch", momentum=0.75)
    logits = torch.tensor([[0.0, 50.0, 0.0, 0.0]])
    method.pseudo_label(logits, logits)  # type: ignore[operator]  # a function of AdaMatch
    torch.testing.assert_close(method.of_source, torch.tensor([0.1875, 0.4375, 0.1875, 0.1875]))


def test_alignment_matters_where_the_classes_differ_in_size() -> None:
    """Six of ten are of one class, and the target is moved towards another."""
    split = moved(0.7, 0.6, to_first=True, order=(0, 1, 1, 1, 1, 1, 1, 2, 3, 4))
    assert accuracy(split, MethodConfig.of("source_target")) < 0.55
    assert accuracy(split, MethodConfig.of("adamatch")) > 0.65
    assert accuracy(split, MethodConfig.of("adamatch", alignment=False)) < 0.4


def test_it_solves_what_source_target_does_not() -> None:
    split = moved(0.6, 0.25)
    assert accuracy(split, MethodConfig.of("source_target")) < 0.88
    assert accuracy(split, MethodConfig.of("adamatch")) > 0.95
