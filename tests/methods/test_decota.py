"""DECOTA: two halves that teach each other on mixtures."""

from __future__ import annotations

import pytest
import torch
from tests.methods.problem import NORMALIZED, Recorder, accuracy, make, make_batch, moved
from torch.distributions import Beta
from torch.nn import functional as F

from qurate.config import MethodConfig
from qurate.methods.decota import mix, mixup_loss
from qurate.runtime.randomness import seeded


def test_mixtures_equal_the_plain_loop() -> None:
    first, second = torch.tensor([[1.0, 2.0]]), torch.tensor([[3.0, 10.0]])
    assert mix(first, second, 0.25)[0].tolist() == pytest.approx([0.25 * 1 + 0.75 * 3, 0.25 * 2 + 0.75 * 10])
    assert torch.equal(mix(first, second, 1.0), first)


def test_the_loss_of_mixtures_equals_the_plain_loop() -> None:
    logits = torch.randn(4, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    first, second, weights = [0, 1, 2, 0], [2, 1, 0, 1], [1.0, 0.0, 1.0, 1.0]
    total = 0.0
    for row, a, b, weight in zip(logits.log_softmax(1).tolist(), first, second, weights, strict=True):
        total -= weight * (0.3 * row[a] + 0.7 * row[b])
    labels = torch.tensor(first), torch.tensor(second)
    found = mixup_loss(logits, *labels, 0.3, torch.tensor(weights, dtype=torch.float64))
    assert found.item() == pytest.approx(total / 3)
    assert mixup_loss(logits, *labels, 0.3, torch.zeros(4, dtype=torch.float64)) == 0
    soft = F.one_hot(labels[0], 3).double()
    again = mixup_loss(logits, soft, labels[1], 0.3, torch.tensor(weights, dtype=torch.float64))
    torch.testing.assert_close(again, found)


def test_each_half_learns_from_its_own_labels_until_they_teach_each_other() -> None:
    """Before the warm-up is over, the half of the target is trained on D_t alone, that of the source on D_s alone."""
    method, batch = make("decota", warmup=0.2), make_batch()
    gradients = []
    for changed in (batch, batch._replace(source_labels=(batch.source_labels + 1) % 4)):
        recorder = Recorder(method)
        with seeded(0):
            method.update(changed, 0.1, recorder)
        gradients.append(recorder.gradients[0]["network.classifier.weight"])
    assert torch.equal(gradients[0][:, :8], gradients[1][:, :8])
    assert not torch.equal(gradients[0][:, 8:], gradients[1][:, 8:])


def test_the_network_is_the_ensemble_of_both_halves() -> None:
    """Its cosine is the mean of both, each times the lengths of its features and weights."""
    method, batch = make("decota"), make_batch()
    features, weight = method.network.features(batch.unlabeled), method.network.classifier.weight
    halves = method.logits(features)  # type: ignore[operator]  # a function of DECOTA
    parts = [(features[:, :8], weight[:, :8]), (features[:, 8:], weight[:, 8:])]
    lengths = [torch.outer(x.norm(dim=1), w.norm(dim=1)) for x, w in parts]
    together = sum(length * logits for length, logits in zip(lengths, halves, strict=True))
    whole = torch.outer(features.norm(dim=1), weight.norm(dim=1))
    torch.testing.assert_close(method.network.classifier(features), together / whole)


def test_a_half_is_taught_by_what_the_other_is_sure_of() -> None:
    """No sample of D_u teaches where the other half is not sure of it."""
    method, batch = make("decota", threshold=0.9), make_batch()
    unsure, sure = torch.zeros(8, 4), 50 * F.one_hot(torch.arange(8) % 4, 4).float()
    losses = {}
    for name, said in {"none": (unsure, unsure), "target": (sure, unsure), "source": (unsure, sure)}.items():
        with seeded(0):
            loss, share = method.mixture_loss(batch, batch.source_labels, *said)  # type: ignore[operator]
        found = torch.autograd.grad(loss, method.network.classifier.weight)[0]
        losses[name] = bool(found[:, :8].any()), bool(found[:, 8:].any()), share.item()
    assert losses == {"none": (False, False, 0.0), "target": (False, True, 0.5), "source": (True, False, 0.5)}


def test_the_loss_by_hand(monkeypatch: pytest.MonkeyPatch) -> None:
    """The ratio is of D_t in the one mixture and of D_u in the other, and of their labels."""
    method, batch, ratio = make("decota", threshold=0.9), make_batch(), 0.3
    monkeypatch.setattr(Beta, "sample", lambda _: torch.tensor(ratio))
    monkeypatch.setattr(torch, "randint", lambda most, size: torch.arange(*size) % most)
    by_target, by_source = 6 * torch.randn(2, 8, 4, generator=torch.Generator().manual_seed(1))
    loss, _ = method.mixture_loss(batch, batch.source_labels, by_target, by_source)  # type: ignore[operator]
    total = 0.0
    for half, said in enumerate((by_source, by_target)):
        each = []
        for i, p in enumerate(said.softmax(1).tolist()):
            if max(p) < 0.9:
                continue
            j, pseudo = i % (5, 6)[half], p.index(max(p))
            if half == 0:  # of the target
                x = ratio * batch.target[j] + (1 - ratio) * batch.unlabeled[i]
                labels = {ratio: batch.target_labels[j], 1 - ratio: pseudo}
            else:
                x = ratio * batch.unlabeled[i] + (1 - ratio) * batch.source[j]
                labels = {ratio: pseudo, 1 - ratio: batch.source_labels[j]}
            part = slice(8 * half, 8 * half + 8)
            features, weight = method.network.features(x[None])[:, part], method.network.classifier.weight[:, part]
            logs = (30 * F.cosine_similarity(features, weight)).log_softmax(0)
            each.append(-sum(share * logs[label].item() for share, label in labels.items()))
        assert 0 < len(each) < 8
        total += sum(each) / len(each)
    assert loss.item() == pytest.approx(total, rel=1e-4)
    with_mixtures, without = (
        method.update(batch, progress, Recorder(method))
        for progress in (method.config.warmup, 0.0)  # type: ignore[attr-defined]
    )
    terms = with_mixtures
    assert terms["loss"] == pytest.approx(terms["labeled"] + terms["mixed"], rel=1e-5)
    assert without["loss"] == without["labeled"]


def test_it_solves_what_source_target_does_not() -> None:
    split = moved(0.6, 0.6, to_first=True)
    assert accuracy(split, MethodConfig.of("source_target"), NORMALIZED) < 0.65
    assert accuracy(split, MethodConfig.of("decota"), NORMALIZED) > 0.85
