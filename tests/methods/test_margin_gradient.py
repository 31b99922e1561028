"""The gradient that is written out against torch's, and the steps taken with it against the method's own."""

from __future__ import annotations

import dataclasses
import math

import pytest
import torch
from torch import Tensor, nn

import qurate.training
from qurate.config import Bottleneck, ExecutionConfig, MethodConfig, NetworkConfig, TrainingConfig
from qurate.data.batches import Batch, TrainingData
from qurate.data.samples import Labeled
from qurate.distributed import make_fabric
from qurate.methods import METHODS, Method, build_method
from qurate.methods.margin_gradient import MarginGradient, can_write_out
from qurate.methods.tml import TargetMargin
from qurate.networks.heads import CosineClassifier, Network, build_network
from qurate.training import Trainer, TrainingError

WIDTH, CLASSES = 7, 5


def build(bottleneck: Bottleneck = "linear", seed: int = 0, name: str = "tml", **numbers: float | bool) -> Method:
    network = build_network(
        NetworkConfig(bottleneck=bottleneck, features=6), n_classes=CLASSES, input_width=WIDTH, seed=seed
    )
    return build_method(MethodConfig.of(name, **numbers), network, seed=seed)


def draw_batch(source: int, target: int, seed: int = 0) -> Batch:
    rng = torch.Generator().manual_seed(seed)

    def draw(n: int) -> tuple[Tensor, Tensor]:
        return torch.randn(n, WIDTH, generator=rng), torch.randint(CLASSES, (n,), generator=rng)

    return Batch(*draw(source), *draw(target), torch.empty(0))


def both(method: Method, batch: Batch) -> tuple[tuple[float, dict[str, Tensor]], tuple[float, dict[str, Tensor]]]:
    """Loss and gradients, written out and by torch."""
    names = {parameter: name for name, parameter in method.named_parameters()}
    config = TrainingConfig(batch_source=len(batch.source), batch_target=len(batch.target))
    gradient = MarginGradient(method, config)
    torch.cat([batch.source, batch.target], out=gradient.inputs)
    labels = torch.cat([batch.source_labels, batch.target_labels])
    loss = gradient(gradient.positions(labels.unsqueeze(0))[0])
    expected = method.labeled_loss(batch, *method.encode_labeled(batch))
    by_graph = torch.autograd.grad(expected, list(names))
    assert set(gradient.parameters) == set(names)
    written = {names[p]: values for p, values in zip(gradient.parameters, gradient.gradients, strict=True)}  # type: ignore[index]
    return (loss, written), (expected.item(), dict(zip(names.values(), by_graph, strict=True)))


@pytest.mark.parametrize("bottleneck", ["none", "linear"])
@pytest.mark.parametrize("monotone", [True, False])
@pytest.mark.parametrize("margin", [0.0, 0.5, math.pi / 2])
@pytest.mark.parametrize(("source", "target"), [(4, 4), (9, 3), (1, 6)])
def test_loss_and_gradients_are_those_of_the_graph(
    bottleneck: Bottleneck, monotone: bool, margin: float, source: int, target: int
) -> None:
    for seed in range(5):
        method = build(bottleneck, seed, margin=margin, monotone=monotone)
        (loss, written), (expected_loss, expected) = both(method, draw_batch(source, target, seed))
        assert loss == pytest.approx(expected_loss, rel=1e-5)
        assert written.keys() == expected.keys() == dict(method.named_parameters()).keys()
        for name, values in expected.items():
            torch.testing.assert_close(written[name], values, rtol=1e-4, atol=1e-5, msg=name)


@pytest.mark.parametrize("monotone", [True, False])
def test_turned_and_perfect_angles(monotone: bool) -> None:
    """Beyond pi - m the continuation has slope 1; at cos = 1 the sine is held, and its slope is gone."""
    method = build("none", margin=0.5, monotone=monotone)
    weight = method.network.classifier.weight.detach()
    inputs = torch.stack([weight[0], weight[1], -weight[2]]) * 3  # angles 0, 0 and pi to the true class
    labels = torch.tensor([0, 1, 2])
    batch = Batch(inputs[:1], labels[:1], inputs, labels, torch.empty(0))
    (loss, written), (expected_loss, expected) = both(method, batch)
    assert loss == pytest.approx(expected_loss, rel=1e-5)
    torch.testing.assert_close(written["network.classifier.weight"], expected["network.classifier.weight"])


@pytest.mark.parametrize("bottleneck", ["none", "linear"])
def test_a_zero_row_has_no_direction_and_does_no_harm(bottleneck: Bottleneck) -> None:
    """Where its feature is zero too, the gradient of the feature is as huge as torch's own."""
    method = build(bottleneck)
    batch = draw_batch(3, 3)
    batch.source[1] = 0
    (loss, written), (expected_loss, expected) = both(method, batch)
    assert loss == pytest.approx(expected_loss, rel=1e-5)
    for name, values in expected.items():
        torch.testing.assert_close(written[name], values, msg=name)


class OwnLoss(TargetMargin):
    """As someone would write a method of their own."""

    def labeled_loss(self, batch: Batch, source: Tensor, target: Tensor) -> Tensor:
        return super().labeled_loss(batch, source, target) + 1


class WithModule(TargetMargin):
    """A module made in `__init__` is trained with the network, by its own `update`."""

    def __init__(self, network: Network, config: MethodConfig) -> None:
        super().__init__(network, config)
        self.discriminator = nn.Linear(6, 1)


class OwnCosines(CosineClassifier):
    """As someone would change the classifier."""

    def cosines(self, features: Tensor) -> Tensor:
        return super().cosines(features) / 2


def test_only_what_is_known_is_written_out() -> None:
    assert can_write_out(build("none"))
    assert can_write_out(build("linear"))
    assert not can_write_out(build("normalized"))
    assert [name for name in METHODS if can_write_out(build(name=name))] == ["tml"]
    plain = build()
    assert not can_write_out(OwnLoss(plain.network, plain.config))
    assert not can_write_out(WithModule(plain.network, plain.config))
    changed = build()
    changed.network.classifier = OwnCosines(6, CLASSES, 30.0)
    assert not can_write_out(changed)
    without_bias = build()
    without_bias.network.bottleneck = nn.Linear(WIDTH, 6, bias=False)
    assert not can_write_out(without_bias)
    plain.network.backbone = nn.Linear(WIDTH, WIDTH)
    assert not can_write_out(plain)
    assert not can_write_out(build().double())
    frozen = build()
    frozen.network.bottleneck.requires_grad_(False)
    assert not can_write_out(frozen)


def training_data() -> TrainingData:
    source, target = draw_batch(60, 15, seed=4)[:2], draw_batch(1, 15, seed=5)[2:4]
    unlabeled = torch.randn(30, WIDTH, generator=torch.Generator().manual_seed(6))
    return TrainingData(Labeled(*source), Labeled(*target), unlabeled)


def trained(bottleneck: Bottleneck, steps: int, **numbers: float) -> tuple[dict[str, Tensor], dict[str, float]]:
    """Whole and labelled steps in turn, then the rest by another trainer that continues from there, with positives."""
    numbers = {"batch_source": 8, "batch_target": 6, "learning_rate": 0.05} | numbers
    config = TrainingConfig(**numbers)  # type: ignore[arg-type]  # mixed numbers
    first, second = (
        Trainer(build(bottleneck, seed), config, make_fabric(ExecutionConfig()), ExecutionConfig()) for seed in (0, 1)
    )
    data = training_data()
    first.run(data, steps=2, seed=5)
    first.run(data, steps=steps, seed=1, labeled_only=True)
    second.load_state_dict(first.state_dict())
    positives = data.with_positives(torch.tensor([3, 20, 11]), torch.tensor([0, 2, 4]))
    terms = second.run(positives, steps=steps, seed=2, labeled_only=True)
    second.run(positives, steps=2, seed=6)
    return second.state_dict(), terms


@pytest.mark.parametrize("bottleneck", ["none", "linear"])
@pytest.mark.parametrize("steps", [2, 40])
@pytest.mark.parametrize("numbers", [{}, {"momentum": 0.0}, {"weight_decay": 0.0, "decay_rate": 0.5}])
def test_a_run_ends_where_the_graph_would_have_led(
    bottleneck: Bottleneck, steps: int, numbers: dict[str, float], monkeypatch: pytest.MonkeyPatch
) -> None:
    state, terms = trained(bottleneck, steps, **numbers)
    monkeypatch.setattr(qurate.training, "can_write_out", lambda _: False)
    expected, expected_terms = trained(bottleneck, steps, **numbers)
    assert terms == pytest.approx(expected_terms, rel=1e-4)
    assert state.keys() == expected.keys()
    for name, values in expected.items():
        torch.testing.assert_close(state[name], values, rtol=1e-3, atol=1e-4, msg=name)
    assert not torch.allclose(state["method.network.classifier.weight"], build(bottleneck).network.classifier.weight)


@pytest.mark.parametrize("bottleneck", ["none", "linear"])
def test_nan_in_the_inputs_stops_the_run(bottleneck: Bottleneck) -> None:
    config = TrainingConfig(batch_source=8, batch_target=6)
    data = training_data()
    poisoned = Labeled(torch.full((60, WIDTH), math.nan), data.source.labels)
    data = dataclasses.replace(data, source=poisoned)
    trainer = Trainer(build(bottleneck), config, make_fabric(ExecutionConfig()), ExecutionConfig())
    with pytest.raises(TrainingError, match="The loss is nan at step 0"):
        trainer.run(data, steps=3, seed=1, labeled_only=True)
    assert all(bool(values.isfinite().all()) for values in trainer.state_dict().values())


def test_data_that_do_not_fit_the_network_are_refused() -> None:
    config = TrainingConfig(batch_source=8, batch_target=6)
    trainer, data = Trainer(build(), config, make_fabric(ExecutionConfig()), ExecutionConfig()), training_data()
    wide = dataclasses.replace(data, target=Labeled(torch.randn(15, WIDTH + 1), data.target.labels))
    with pytest.raises(ValueError, match=r"target embeddings must be 7 wide, got shape \(15, 8\)"):
        trainer.run(wide, steps=3, seed=1, labeled_only=True)
    strange = dataclasses.replace(data, target=Labeled(torch.randn(15, WIDTH), torch.full((15,), CLASSES)))
    with pytest.raises(ValueError, match=r"labels must be in \[0, 5\), got 0 to 5"):
        trainer.run(strange, steps=3, seed=1, labeled_only=True)
