"""The gradient that is written out against torch's, and the steps taken with it against the method's own."""

from __future__ import annotations

import dataclasses
import math

import pytest
import torch
from torch import Tensor, nn

import qurate.training
from qurate.config import Bottleneck, MethodConfig, NetworkConfig, RunConfig, TrainingConfig
from qurate.data.batches import Batch, TrainingData
from qurate.data.samples import Labeled
from qurate.margin_gradient import MarginGradient, can_write_out
from qurate.methods import METHODS, Method, build_method
from qurate.methods.tml import TargetMargin
from qurate.networks import build_network
from qurate.training import Trainer, TrainingError, make_fabric

WIDTH, CLASSES = 7, 5


def build(bottleneck: Bottleneck = "linear", seed: int = 0, **numbers: float | bool | str) -> Method:
    network = build_network(
        NetworkConfig(bottleneck=bottleneck, features=6), n_classes=CLASSES, input_width=WIDTH, seed=seed
    )
    return build_method(MethodConfig(**numbers), network, seed=seed)  # type: ignore[arg-type]  # mixed numbers


def draw_batch(source: int, target: int, seed: int = 0) -> Batch:
    rng = torch.Generator().manual_seed(seed)

    def draw(n: int) -> tuple[Tensor, Tensor]:
        return torch.randn(n, WIDTH, generator=rng), torch.randint(CLASSES, (n,), generator=rng)

    return Batch(*draw(source), *draw(target), torch.empty(0))


def both(method: Method, batch: Batch) -> tuple[tuple[float, dict[str, Tensor]], tuple[float, dict[str, Tensor]]]:
    """Loss and gradients, written out and by torch."""
    names = [name for name, _ in method.named_parameters()]
    config = TrainingConfig(batch_source=len(batch.source), batch_target=len(batch.target))
    gradient = MarginGradient(method, config)
    torch.cat([batch.source, batch.target], out=gradient.inputs)
    labels = torch.cat([batch.source_labels, batch.target_labels])
    loss = gradient(gradient.positions(labels.unsqueeze(0))[0])
    expected = method.labeled_loss(batch, *method.encode_labeled(batch))
    by_graph = torch.autograd.grad(expected, list(method.parameters()))
    written = dict(zip(names, gradient.gradients, strict=True))
    return (loss, written), (expected.item(), dict(zip(names, by_graph, strict=True)))


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


def test_a_zero_row_has_no_direction_and_does_no_harm() -> None:
    method = build("none")
    batch = draw_batch(3, 3)
    batch.source[1] = 0
    (_, written), (_, expected) = both(method, batch)
    torch.testing.assert_close(written["network.classifier.weight"], expected["network.classifier.weight"])


class OwnLoss(TargetMargin):
    """As someone would write a method of their own."""

    def labeled_loss(self, batch: Batch, source: Tensor, target: Tensor) -> Tensor:
        return super().labeled_loss(batch, source, target) + 1


def test_only_what_is_known_is_written_out() -> None:
    assert can_write_out(build("none"))
    assert can_write_out(build("linear"))
    assert not can_write_out(build("normalized"))
    assert [name for name in METHODS if can_write_out(build(name=name))] == ["tml"]
    plain = build()
    assert not can_write_out(OwnLoss(plain.network, plain.config))
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


def trained(bottleneck: Bottleneck, steps: int) -> tuple[dict[str, Tensor], dict[str, float]]:
    """Two runs one after the other, the second with positives and the momentum of the first."""
    config = RunConfig(training=TrainingConfig(batch_source=8, batch_target=6, learning_rate=0.05))
    trainer = Trainer(build(bottleneck), config.training, make_fabric(config.training))
    data = training_data()
    trainer.run(data, steps=steps, seed=1, labeled_only=True)
    positives = data.with_positives(torch.tensor([3, 20, 11]), torch.tensor([0, 2, 4]))
    terms = trainer.run(positives, steps=steps, seed=2, labeled_only=True)
    return trainer.state_dict(), terms


@pytest.mark.parametrize("bottleneck", ["none", "linear"])
@pytest.mark.parametrize("steps", [2, 40])
def test_a_run_ends_where_the_graph_would_have_led(
    bottleneck: Bottleneck, steps: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    state, terms = trained(bottleneck, steps)
    monkeypatch.setattr(qurate.training, "can_write_out", lambda _: False)
    expected, expected_terms = trained(bottleneck, steps)
    assert terms == pytest.approx(expected_terms, rel=1e-4)
    assert state.keys() == expected.keys()
    for name, values in expected.items():
        torch.testing.assert_close(state[name], values, rtol=1e-3, atol=1e-4, msg=name)
    assert not torch.allclose(state["method.network.classifier.weight"], build(bottleneck).network.classifier.weight)


def test_a_whole_update_goes_on_after_written_out_steps() -> None:
    config = TrainingConfig(batch_source=8, batch_target=6)
    trainer = Trainer(build(), config, make_fabric(config))
    trainer.run(training_data(), steps=3, seed=1, labeled_only=True)
    before = trainer.method.network.classifier.weight.detach().clone()
    trainer.run(training_data(), steps=3, seed=1)
    assert not torch.equal(before, trainer.method.network.classifier.weight)


@pytest.mark.parametrize("bottleneck", ["none", "linear"])
def test_nan_in_the_inputs_stops_the_run(bottleneck: Bottleneck) -> None:
    config = TrainingConfig(batch_source=8, batch_target=6)
    data = training_data()
    poisoned = Labeled(torch.full((60, WIDTH), math.nan), data.source.labels)
    data = dataclasses.replace(data, source=poisoned)
    trainer = Trainer(build(bottleneck), config, make_fabric(config))
    with pytest.raises(TrainingError, match="The loss is nan at step 0"):
        trainer.run(data, steps=3, seed=1, labeled_only=True)
