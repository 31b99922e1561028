"""MCL: the plan of transport, prototypes, the contrast of classes, and their sum."""

from __future__ import annotations

import math
import sys

import pytest
import torch
from tests.methods.problem import NORMALIZED, Recorder, accuracy, make, make_batch, moved
from torch import Tensor
from torch.nn import functional as F

from qurate.config import MethodConfig
from qurate.errors import ConfigError
from qurate.methods.mcl import alignment_loss, contrast_loss, follow, transport_plan
from qurate.runtime.randomness import seeded


def rows(seed: int, n: int = 6, k: int = 3) -> Tensor:
    return torch.randn(n, k, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def cosine(first: list[float], second: list[float]) -> float:
    product = sum(a * b for a, b in zip(first, second, strict=True))
    return product / math.sqrt(sum(a * a for a in first) * sum(b * b for b in second))


def objective(plan: list[list[float]], costs: list[list[float]], entropy: float, relaxation: float) -> float:
    """What the plan is to make least, by loops."""

    def divergence(found: list[float], even: float) -> float:
        return sum(x * math.log(x / even) - x + even for x in found)

    k, n = len(plan), len(plan[0])
    moved = sum(t * m for row, line in zip(plan, costs, strict=True) for t, m in zip(row, line, strict=True))
    spread = divergence([t for row in plan for t in row], 1 / (k * n))
    of_classes = divergence([sum(row) for row in plan], 1 / k)
    of_samples = divergence([sum(row[i] for row in plan) for i in range(n)], 1 / n)
    return moved + entropy * spread + relaxation * (of_classes + of_samples)


def test_the_plan_equals_the_plain_loop() -> None:
    costs, e, r = rows(0, 3, 5).abs(), 0.5, 2.0
    kernel = [[math.exp(-m / e) / 15 for m in line] for line in costs.tolist()]
    u, v = [1.0] * 3, [1.0] * 5
    for _ in range(500):
        u = [((1 / 3) / sum(kernel[k][i] * v[i] for i in range(5))) ** (r / (r + e)) for k in range(3)]
        v = [((1 / 5) / sum(kernel[k][i] * u[k] for k in range(3))) ** (r / (r + e)) for i in range(5)]
    expected = [[u[k] * kernel[k][i] * v[i] for i in range(5)] for k in range(3)]
    torch.testing.assert_close(
        transport_plan(costs, e, r), torch.tensor(expected, dtype=torch.float64), rtol=1e-4, atol=0
    )


def test_no_other_plan_has_a_lower_objective() -> None:
    costs = rows(1, 3, 5).abs()
    plan = transport_plan(costs, 0.5, 2.0)
    least = objective(plan.tolist(), costs.tolist(), 0.5, 2.0)
    for seed in range(20):
        other = plan * (0.05 * rows(seed, 3, 5)).exp()
        assert objective(other.tolist(), costs.tolist(), 0.5, 2.0) > least


def test_with_a_strong_relaxation_all_classes_get_the_same_share_of_the_samples() -> None:
    plan = transport_plan(rows(2, 3, 6).abs(), 0.1, 1e4)
    torch.testing.assert_close(plan.sum(dim=1), torch.full((3,), 1 / 3, dtype=torch.float64), rtol=1e-3, atol=0)
    torch.testing.assert_close(plan.sum(dim=0), torch.full((6,), 1 / 6, dtype=torch.float64), rtol=1e-3, atol=0)


def test_a_class_that_is_a_little_nearer_to_all_samples_does_not_get_them_all() -> None:
    costs = torch.tensor([[0.1, 0.2, 0.3, 0.4], [0.5, 0.5, 0.5, 0.5]])
    assert transport_plan(costs, 0.01, 1e-3).argmax(dim=0).tolist() == [0, 0, 0, 0]
    assert transport_plan(costs, 0.01, 1e4).argmax(dim=0).tolist() == [0, 0, 1, 1]


def test_no_gradient_passes_through_the_plan() -> None:
    assert not transport_plan(rows(0).requires_grad_(), 1.0, 1.0).requires_grad


def test_prototypes_equal_the_plain_loop() -> None:
    centers, features, labels = rows(0, 4, 2), rows(1, 3, 2), [2, 0, 2]
    centers[0] = 0  # was in no batch yet
    expected = centers.tolist()
    for k in (0, 2):
        of_class = [row for row, label in zip(features.tolist(), labels, strict=True) if label == k]
        units = [[x / math.hypot(*row) for x in row] for row in of_class]
        means = [sum(column) / len(units) for column in zip(*units, strict=True)]
        expected[k] = [0.9 * old + 0.1 * new for old, new in zip(expected[k], means, strict=True)]
    found = follow(centers, features, torch.tensor(labels), 0.9)
    torch.testing.assert_close(found, torch.tensor(expected, dtype=torch.float64))
    assert torch.equal(found[[1, 3]], centers[[1, 3]])


def test_the_alignment_equals_the_plain_loop_and_moves_the_features_alone() -> None:
    features, centers, classes = rows(0, 4, 3).requires_grad_(), rows(1, 2, 3), [1, 0, 0, 1]
    total = sum(1 - cosine(row, centers[k].tolist()) for row, k in zip(features.tolist(), classes, strict=True))
    loss = alignment_loss(features, centers, torch.tensor(classes))
    assert loss.item() == pytest.approx(total / 4)
    (gradient,) = torch.autograd.grad(loss, features)
    nearer = (features - gradient).detach()
    assert (F.cosine_similarity(nearer, centers[classes]) > F.cosine_similarity(features, centers[classes])).all()


def test_the_contrast_equals_the_plain_loop() -> None:
    first, second, k = rows(0, 5, 3).softmax(1), rows(1, 5, 3).softmax(1), range(3)
    a = [[sum(p[i] * q[j] for p, q in zip(first.tolist(), second.tolist(), strict=True)) for j in k] for i in k]
    total = 0.0
    for i in k:
        total += sum(a[i][j] for j in k if j != i) / sum(a[i])
        total += sum(a[j][i] for j in k if j != i) / sum(a[j][i] for j in k)
    assert contrast_loss(first, second).item() == pytest.approx(total / 6)
    torch.testing.assert_close(contrast_loss(first, second), contrast_loss(second, first))


def test_the_contrast_is_least_where_both_views_are_sure_of_the_same_classes() -> None:
    sure = F.one_hot(torch.tensor([0, 1, 2, 0]), 3).double()
    even = torch.full((4, 3), 1 / 3, dtype=torch.float64)
    assert contrast_loss(sure, sure).item() == 0
    assert contrast_loss(even, even).item() == pytest.approx(2 / 3)  # 1 - 1 / K
    assert contrast_loss(sure, sure.roll(1, 1)).item() == 1
    one_class = F.one_hot(torch.zeros(4, dtype=torch.int64), 3).double()
    assert contrast_loss(one_class, one_class).item() == pytest.approx(2 / 3)  # no batch of one class is a solution


def test_the_loss_by_hand() -> None:
    """No strong view: all terms by loops from the network's own features and logits."""
    method, batch = make("mcl", strong_dropout=0.0, threshold=0.9, momentum=0.0), make_batch()
    terms = method.update(batch, 0.5, Recorder(method))
    features, plain = method.network.features(batch.unlabeled), method.network(batch.unlabeled)
    of_source = F.normalize(method.network.features(batch.source), dim=1)
    centers = torch.stack([of_source[batch.source_labels == k].mean(dim=0) for k in range(4)])
    seen = [k for k in range(4) if k in batch.source_labels.tolist()]
    costs = torch.tensor([[1 - cosine(x, centers[k].tolist()) for x in features.tolist()] for k in seen])
    moved_to = [seen[k] for k in transport_plan(costs, 1.0, 1.0).argmax(dim=0).tolist()]
    inter = sum(1 - cosine(x, centers[k].tolist()) for x, k in zip(features.tolist(), moved_to, strict=True)) / 8
    sure = [-math.log(max(p)) for p in plain.softmax(1).tolist() if max(p) >= 0.9]
    labeled = method.labeled_loss(batch, *method.encode_labeled(batch)).item()
    intra = contrast_loss(plain.softmax(1), plain.softmax(1)).item()
    assert 0 < len(sure) < 8
    expected = {"labeled": labeled, "inter": inter, "intra": intra, "pseudo": sum(sure) / 8}
    assert {name: terms[name] for name in expected} == pytest.approx(expected, rel=1e-4)
    assert terms["loss"] == pytest.approx(sum(expected.values()), rel=1e-5)


def test_a_class_that_the_source_has_not_shown_yet_gets_no_sample() -> None:
    method = make("mcl")
    features = torch.randn(30, 16, generator=torch.Generator().manual_seed(0))
    method.centers[[1, 3]] = features[:2]  # type: ignore[operator]  # a buffer of MCL
    assert set(method.match(features).tolist()) == {1, 3}  # type: ignore[operator]


@pytest.mark.parametrize(
    ("numbers", "progress"),
    [({"transport_weight": 0.0}, 0.7), ({}, 0.05)],
    ids=["without its weights", "before the warm-up is over"],
)
def test_without_its_terms_it_is_source_target(numbers: dict[str, float], progress: float) -> None:
    batch, gradients = make_batch(), []
    for method in (make("mcl", contrast_weight=0.0, pseudo_weight=0.0, **numbers), make("source_target")):
        recorder = Recorder(method)
        with seeded(0):
            method.update(batch, progress, recorder)
        gradients.append(recorder.gradients[0])
    for name, gradient in gradients[1].items():
        torch.testing.assert_close(gradients[0][name], gradient)


def test_without_pot_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ot", None)
    with pytest.raises(ConfigError, match=r"'mcl' needs POT, .* pip install 'qurate\[transport\]'"):
        make("mcl")


def test_it_solves_what_source_target_does_not() -> None:
    split = moved(0.6, 0.25)
    assert accuracy(split, MethodConfig.of("source_target")) < 0.88
    assert accuracy(split, MethodConfig.of("mcl")) > 0.95


@pytest.mark.parametrize("without", ["transport_weight", "contrast_weight"])
def test_each_of_its_own_terms_does_so_without_pseudo_labels(without: str) -> None:
    split = moved(0.6, 0.6, to_first=True)
    assert accuracy(split, MethodConfig.of("source_target"), NORMALIZED) < 0.65
    assert accuracy(split, MethodConfig.of("mcl", pseudo_weight=0.0, **{without: 0.0}), NORMALIZED) > 0.85
