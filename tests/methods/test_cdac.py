"""CDAC: similarity by ranks, adversarial clusters, pseudo-labels and consistency."""

from __future__ import annotations

import math

import pytest
import torch
from tests.methods.problem import Recorder, accuracy, make, make_batch, moved
from torch import Tensor
from torch.nn import functional as F

from qurate.config import MethodConfig, NetworkConfig
from qurate.methods.base import pseudo_label_loss
from qurate.methods.cdac import (
    clustering_loss,
    consistency_loss,
    rank_similarity,
    sigmoid_ramp,
)
from qurate.runtime.randomness import seeded


def logits(seed: int, n: int = 6, k: int = 3) -> Tensor:
    return torch.randn(n, k, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def test_samples_are_alike_if_their_largest_features_are_the_same() -> None:
    features = torch.tensor([[5.0, 4.0, 1.0, 0.0], [4.0, 5.0, 0.0, 1.0], [5.0, 0.0, 4.0, 1.0]])
    assert rank_similarity(features, 2).tolist() == [[1, 1, 0], [1, 1, 0], [0, 0, 1]]
    assert rank_similarity(features, 1).tolist() == [[1, 0, 1], [0, 1, 0], [1, 0, 1]]


def test_the_clustering_loss_equals_the_plain_loop() -> None:
    first, second = logits(0), logits(1)
    similar = (torch.rand(6, 6, generator=torch.Generator().manual_seed(2)) > 0.5).double()
    p, q, total = first.softmax(1).tolist(), second.softmax(1).tolist(), 0.0
    for i in range(6):
        for j in range(6):
            same = sum(a * b for a, b in zip(p[i], q[j], strict=True))
            s = similar[i, j].item()
            total -= s * math.log(same + 1e-7) + (1 - s) * math.log(1 - same + 1e-7)
    assert clustering_loss(first, second, similar).item() == pytest.approx(total / 36)


def test_in_mixed_precision_the_clustering_loss_has_the_same_gradients() -> None:
    """Products of sure predictions are near 1."""
    first, second = (12 * logits(seed, 40).float().requires_grad_() for seed in (0, 1))
    similar = (first.detach().argmax(dim=1)[:, None] == first.detach().argmax(dim=1)).float().roll(1, 0)
    expected = torch.autograd.grad(clustering_loss(first, second, similar), (first, second))
    with torch.autocast("cpu", torch.bfloat16):
        loss = clustering_loss(first, second, similar)
    for found, gradient in zip(torch.autograd.grad(loss, (first, second)), expected, strict=True):
        torch.testing.assert_close(found, gradient)


def test_pseudo_labels_and_consistency_equal_the_plain_loop() -> None:
    plain, strong, sure = 2 * logits(3), logits(4), 0
    pseudo = squared = 0.0
    for p, q in zip(plain.softmax(1).tolist(), strong.softmax(1).tolist(), strict=True):
        squared += sum((a - b) ** 2 for a, b in zip(p, q, strict=True))
        if max(p) >= 0.7:
            pseudo, sure = pseudo - math.log(q[p.index(max(p))]), sure + 1
    assert 0 < sure < 6
    assert pseudo_label_loss(plain, strong, 0.7).item() == pytest.approx(pseudo / 6)
    assert consistency_loss(plain, strong).item() == pytest.approx(squared / 6)


def test_the_ramp_rises_to_one() -> None:
    assert [sigmoid_ramp(t) for t in (0.0, 0.5, 1.0, 2.0)] == pytest.approx([math.exp(-5), math.exp(-1.25), 1, 1])


def test_the_loss_by_hand(monkeypatch: pytest.MonkeyPatch) -> None:
    """The clusters are of a sample and its first view, pseudo-labels go to the second, and both views agree."""
    method, batch = make("cdac", cluster_weight=0.7, pseudo_weight=0.6, threshold=0.8), make_batch()
    moves = torch.randn(2, 20, generator=torch.Generator().manual_seed(1))
    views = iter([0.8 * batch.unlabeled + moves[0], 0.7 * batch.unlabeled + moves[1]])
    monkeypatch.setattr("qurate.methods.cdac.strong_view", lambda vectors, dropout: next(views))
    terms = method.update(batch, 0.3, Recorder(method))
    plain, first, second = (
        method.network(x) for x in (batch.unlabeled, 0.8 * batch.unlabeled + moves[0], 0.7 * batch.unlabeled + moves[1])
    )
    largest = [set(row.argsort()[-5:].tolist()) for row in method.network.features(batch.unlabeled)]
    similar = torch.tensor([[float(one == other) for other in largest] for one in largest])
    p, p_first, p_second = (logits.softmax(dim=1) for logits in (plain, first, second))
    same = (p.unsqueeze(1) * p_first.unsqueeze(0)).sum(dim=2)
    clusters = -torch.where(similar > 0, same, 1 - same).add(1e-7).log().mean().item()
    sure = [
        -math.log(q[max(range(4), key=row.__getitem__)])
        for row, q in zip(p.tolist(), p_second.tolist(), strict=True)
        if max(row) >= 0.8
    ]
    consistency = (p_first - p_second).square().sum(dim=1).mean().item()
    labeled = method.labeled_loss(batch, *method.encode_labeled(batch)).item()
    expected = {"labeled": labeled, "clusters": clusters, "pseudo": sum(sure) / 8, "consistency": consistency}
    assert 0 < len(sure) < 8
    assert {name: terms[name] for name in expected} == pytest.approx(expected, rel=1e-4)
    ramp = 0.24 * math.exp(-5 * (1 - 0.3 / 0.4) ** 2)
    total = labeled - 0.7 * clusters + 0.6 * sum(sure) / 8 + ramp * consistency
    assert terms["loss"] == pytest.approx(total, rel=1e-4)


def test_without_its_weights_it_is_source_target() -> None:
    weights = {"cluster_weight": 0.0, "pseudo_weight": 0.0, "consistency_weight": 0.0}
    batch, gradients = make_batch(), []
    for method in (make("cdac", **weights), make("source_target")):
        recorder = Recorder(method)
        with seeded(0):
            method.update(batch, 0.7, recorder)
        gradients.append(recorder.gradients[0])
    for name, gradient in gradients[1].items():
        torch.testing.assert_close(gradients[0][name], gradient)


def test_the_classifier_is_against_the_clusters_and_the_features_are_for_them() -> None:
    method = make("cdac", cluster_weight=0.7, pseudo_weight=0.0, consistency_weight=0.0, strong_dropout=0.0)
    given = make_batch()
    batch = given._replace(
        source=given.source.double(), target=given.target.double(), unlabeled=given.unlabeled.double()
    )
    recorder = Recorder(method.double())
    method.update(batch, 0.0, recorder)
    labeled = method.labeled_loss(batch, *method.encode_labeled(batch))
    features = method.encode_unlabeled(batch)
    said = method.network.classifier(features)
    clusters = clustering_loss(said, said, rank_similarity(features, 5))
    for name, parameter in method.named_parameters():
        supervised, of_clusters = (torch.autograd.grad(x, parameter, retain_graph=True)[0] for x in (labeled, clusters))
        sign = -1 if "classifier" in name else 1
        expected = supervised + sign * 0.7 * of_clusters
        assert F.cosine_similarity(of_clusters.flatten(), supervised.flatten(), dim=0).abs() < 0.999
        torch.testing.assert_close(recorder.gradients[0][name], expected)


def test_it_solves_what_source_target_does_not() -> None:
    """With the network that runs have."""
    split, wide = moved(0.6, 0.25), NetworkConfig(bottleneck="normalized")
    assert accuracy(split, MethodConfig.of("source_target"), network=wide) < 0.88
    assert accuracy(split, MethodConfig.of("cdac"), network=wide) > 0.95
