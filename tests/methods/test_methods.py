"""Every method of the registry, picked up by being listed."""

from __future__ import annotations

import copy
import math
from collections.abc import Iterable

import pytest
import torch
from tests.methods.problem import WIDTH, K, Recorder, make, make_batch
from torch import Tensor, nn
from torch.nn import functional as F

from qurate.config import MethodConfig, NetworkConfig
from qurate.losses import entropy_loss
from qurate.methods import METHODS, Compute, build_method
from qurate.methods.adr import symmetric_divergence
from qurate.methods.base import warmup
from qurate.methods.cdan import OuterProduct, RandomizedMap, balance_domains, domain_labels
from qurate.methods.source_target import SourceTarget
from qurate.networks.adversarial import DomainDiscriminator
from qurate.networks.heads import build_network
from qurate.registry import TRAINED
from qurate.runtime.randomness import seeded


@pytest.mark.parametrize(("weighting", "share"), [("set_size", 900 / 990), ("batch", 6 / 11)])
def test_cml_averages_over_both_sets_as_eq_12_prints(weighting: str, share: float) -> None:
    """Each of 900 source and 90 target samples weighs the same, though a batch holds 6 and 5 of them."""
    method, batch = make("cml", weighting=weighting, monotone=False), make_batch()._replace(sizes=(900, 90))
    cosines = method.network.classifier.cosines(method.network.features(torch.cat([batch.source, batch.target])))
    labels = torch.cat([batch.source_labels, batch.target_labels])
    angles = torch.acos(cosines) + 0.5 * F.one_hot(labels, K)
    each = F.cross_entropy(30 * torch.cos(angles), labels, reduction="none")
    expected = share * each[:6].mean() + (1 - share) * each[6:].mean()
    torch.testing.assert_close(method.labeled_loss(batch, *method.encode_labeled(batch)), expected)


@pytest.mark.parametrize("name", TRAINED)
def test_every_method_updates_stays_finite_and_predicts(name: str) -> None:
    method = make(name)
    optimizer = torch.optim.SGD(method.parameters(), lr=0.01)

    def minimize(compute: Compute, only: Iterable[nn.Parameter] | None = None) -> dict[str, float]:
        optimizer.zero_grad()
        terms = method(compute)
        terms["loss"].backward()
        optimizer.step()
        return {name: value.item() for name, value in terms.items()}

    before = copy.deepcopy(method.network.state_dict())
    with seeded(0):
        for step in range(20):
            terms = method.update(make_batch(step), step / 20, minimize)
            assert "loss" in terms
            assert all(math.isfinite(value) for value in terms.values())
    assert any(not torch.equal(value, before[key]) for key, value in method.network.state_dict().items())
    probabilities = method.predict(torch.randn(7, WIDTH))
    assert probabilities.shape == (7, K)
    torch.testing.assert_close(probabilities.sum(dim=1), torch.ones(7))


@pytest.mark.parametrize("name", METHODS)
def test_every_method_has_a_title_and_a_reference(name: str) -> None:
    assert METHODS[name].title
    assert "Paper:" in (METHODS[name].load().__doc__ or "")


@pytest.mark.parametrize("name", TRAINED)
def test_a_trial_update_does_not_depend_on_unlabeled_samples(name: str) -> None:
    method, batch = make(name), make_batch()
    recorders = Recorder(method), Recorder(method)
    method.update_labeled(batch, 0.5, recorders[0])
    method.update_labeled(batch._replace(unlabeled=batch.unlabeled * 9), 0.5, recorders[1])
    assert recorders[0].losses == recorders[1].losses


@pytest.mark.parametrize("name", [name for name in TRAINED if not issubclass(METHODS[name].load(), SourceTarget)])
def test_every_method_but_source_target_learns_from_unlabeled_samples(name: str) -> None:
    method, batch = make(name), make_batch()
    gradients = []
    for factor in (1.0, -1.0):
        recorder = Recorder(method)
        with seeded(0):
            method.update(batch._replace(unlabeled=batch.unlabeled * factor), 0.5, recorder)
        gradients.append(torch.cat([g.flatten() for step in recorder.gradients for g in step.values()]))
    assert not torch.allclose(gradients[0], gradients[1])


def test_predict_is_in_evaluation_mode_and_leaves_the_mode_as_found() -> None:
    network = build_network(NetworkConfig(bottleneck="normalized"), n_classes=K, input_width=WIDTH, seed=0)
    method = build_method(MethodConfig.of("tml"), network, seed=0).train()
    inputs = torch.randn(9, WIDTH)
    assert torch.equal(method.predict(inputs), method.predict(inputs))
    assert method.training


def test_mme_turns_the_entropy_gradient_for_features_only() -> None:
    method, batch = make("mme", entropy_weight=0.7), make_batch()
    recorder = Recorder(method)
    method.update(batch, 0.0, recorder)
    labeled = method.labeled_loss(batch, *method.encode_labeled(batch))
    entropy = entropy_loss(method.network(batch.unlabeled))
    for name, parameter in method.named_parameters():
        supervised, unsupervised = (torch.autograd.grad(x, parameter, retain_graph=True)[0] for x in (labeled, entropy))
        sign = -1 if "classifier" in name else 1  # C ascends the entropy, F descends it
        torch.testing.assert_close(recorder.gradients[0][name], supervised + sign * 0.7 * unsupervised)


def test_dann_reverses_the_domain_gradient_for_features_by_the_warmup() -> None:
    method, batch = make("dann", domain_weight=0.5), make_batch()
    recorder = Recorder(method)
    method.update(batch, 0.3, recorder)
    source, target = method.encode_labeled(batch)
    unlabeled = method.encode_unlabeled(batch)
    domains = method.discriminator(torch.cat([source, unlabeled]))  # type: ignore[operator]  # a module of DANN
    each = F.binary_cross_entropy_with_logits(domains, torch.tensor([1.0] * 6 + [0.0] * 8), reduction="none")
    domain = (each[:6].mean() + each[6:].mean()) / 2  # the larger part of a batch weighs no more
    labeled = method.labeled_loss(batch, source, target)
    for name in ("network.bottleneck.weight", "discriminator.layers.0.weight"):
        parameter = dict(method.named_parameters())[name]
        supervised = torch.autograd.grad(labeled, parameter, retain_graph=True, allow_unused=True)[0]
        adversarial = torch.autograd.grad(domain, parameter, retain_graph=True)[0]
        factor = 0.5 if "discriminator" in name else -0.5 * warmup(0.3, 10.0)
        expected = factor * adversarial + (0 if supervised is None else supervised)
        torch.testing.assert_close(recorder.gradients[0][name], expected)


def test_the_discriminator_of_cdan_drops_half_of_both_hidden_layers() -> None:
    discriminator = make("cdan").discriminator
    assert isinstance(discriminator, DomainDiscriminator)
    kept: list[float] = []
    for layer in (discriminator.layers[2], discriminator.layers[4]):
        layer.register_forward_pre_hook(lambda _, inputs: kept.append((inputs[0] != 0).float().mean().item()))
    inputs = torch.randn(64, K * 16, generator=torch.Generator().manual_seed(0))
    with seeded(0):
        discriminator.train()(inputs)
        discriminator.eval()(inputs)
    training, testing = kept[:2], kept[2:]
    assert [a / b for a, b in zip(training, testing, strict=True)] == pytest.approx([0.5, 0.5], abs=0.03)


def test_warmup_goes_from_zero_to_one() -> None:
    assert warmup(0.0, 10.0) == 0
    assert warmup(0.5, 10.0) == pytest.approx(2 / (1 + math.exp(-5)) - 1)
    assert 0.999 < warmup(1.0, 10.0) < 1


def test_adr_steps_all_then_the_classifier_then_the_features() -> None:
    method = make("adr", feature_steps=3)
    recorder = Recorder(method)
    with seeded(0):
        method.update(make_batch(), 0.0, recorder)
    touched = [set(step) for step in recorder.gradients]
    classifier = {"network.classifier.weight"}
    features = {"network.bottleneck.weight", "network.bottleneck.bias"}
    assert touched == [classifier | features, classifier, features, features, features]
    assert recorder.losses[1] < recorder.losses[0]  # the critic's objective has the divergence subtracted


def test_symmetric_divergence_equals_the_plain_loop() -> None:
    rng = torch.Generator().manual_seed(0)
    first, second = (torch.randn(5, 3, generator=rng, dtype=torch.float64) for _ in range(2))
    total = 0.0
    for p, q in zip(first.softmax(1).tolist(), second.softmax(1).tolist(), strict=True):
        total += sum(a * math.log(a / b) + b * math.log(b / a) for a, b in zip(p, q, strict=True)) / 2
    assert symmetric_divergence(first, second).item() == pytest.approx(total / 5)
    assert symmetric_divergence(first, first).item() == 0


def test_cdan_multiplies_every_feature_with_every_prediction() -> None:
    features, predictions = torch.randn(3, 2), torch.randn(3, 4)
    joint = OuterProduct(2, 4)(features, predictions)
    for i in range(3):
        for a in range(2):
            for b in range(4):
                assert joint[i, a * 4 + b] == features[i, a] * predictions[i, b]


def test_the_randomised_map_keeps_inner_products_on_average() -> None:
    rng = torch.Generator().manual_seed(0)
    features, predictions = torch.randn(2, 30, generator=rng), torch.rand(2, 10, generator=rng)
    exact = OuterProduct(30, 10)(features, predictions)
    with seeded(0):
        sketch = RandomizedMap(30, 10, 20_000)(features, predictions)
    assert float(sketch[0] @ sketch[0]) == pytest.approx(float(exact[0] @ exact[0]), rel=0.15)


@pytest.mark.parametrize(("features", "kind"), [(16, OuterProduct), (2048, RandomizedMap)])
def test_cdan_uses_the_random_map_where_the_product_is_wide(features: int, kind: type) -> None:
    network = build_network(
        NetworkConfig(bottleneck="linear", features=features), n_classes=K, input_width=WIDTH, seed=0
    )
    method = build_method(MethodConfig.of("cdan"), network, seed=0)
    assert isinstance(method.joint, kind)


def test_cdan_weighs_each_domain_to_one() -> None:
    labels = domain_labels(torch.zeros(3, 1), torch.zeros(5, 1))
    assert labels.tolist() == [1, 1, 1, 0, 0, 0, 0, 0]  # source = 1, target = 0
    weights = balance_domains(torch.rand(8, generator=torch.Generator().manual_seed(0)) + 1, labels)
    assert float(weights[:3].sum()) == pytest.approx(1)
    assert float(weights[3:].sum()) == pytest.approx(1)


def test_cdan_without_conditioning_is_the_mean_over_both_domains() -> None:
    method, batch = make("cdan", entropy_conditioning=False, discriminator_dropout=0.0), make_batch()
    source, unlabeled = method.network.features(batch.source), method.encode_unlabeled(batch)
    loss = method.domain_loss(source, unlabeled, 1.0)  # type: ignore[operator]  # a function of CDAN
    by_hand = 0.0
    for features, domain in ((source, 1.0), (unlabeled, 0.0)):
        predictions = method.network.classifier(features).softmax(1)
        logits = method.discriminator((features[:, :, None] * predictions[:, None, :]).flatten(1))  # type: ignore[operator]
        by_hand += F.binary_cross_entropy_with_logits(logits, torch.full((len(features),), domain)).item() / 2
    assert loss.item() == pytest.approx(by_hand, rel=1e-5)


def test_an_unknown_method_says_what_is_allowed() -> None:
    with pytest.raises(ValueError, match=f"one of {', '.join(METHODS)}, got 'nope'"):
        make("nope")


def test_the_loss_of_tml_is_the_sum_of_eq_3_by_hand() -> None:
    method, batch = make("tml", margin=0.5, entropy_weight=0.1), make_batch()
    terms = method.update(batch, 0.0, Recorder(method))
    weights = F.normalize(method.network.classifier.weight, dim=1)

    def cosines(inputs: Tensor) -> list[list[float]]:
        rows: list[list[float]] = (F.normalize(method.network.features(inputs), dim=1) @ weights.T).tolist()
        return rows

    def log_prob(row: list[float], label: int, margin: float) -> float:
        logits = [30 * (math.cos(math.acos(c) + margin) if j == label else c) for j, c in enumerate(row)]
        return logits[label] - math.log(sum(math.exp(logit) for logit in logits))

    source = [log_prob(row, y, 0.0) for row, y in zip(cosines(batch.source), batch.source_labels.tolist(), strict=True)]
    target = [log_prob(row, y, 0.5) for row, y in zip(cosines(batch.target), batch.target_labels.tolist(), strict=True)]
    entropy = 0.0
    for row in cosines(batch.unlabeled):
        logs = [log_prob(row, j, 0.0) for j in range(K)]
        entropy -= sum(math.exp(log) * log for log in logs) / len(batch.unlabeled)
    expected = -sum(source) / len(source) - sum(target) / len(target) + 0.1 * entropy
    assert terms["loss"] == pytest.approx(expected, rel=1e-4)
