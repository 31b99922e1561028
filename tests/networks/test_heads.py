from __future__ import annotations

import copy
import math
from pathlib import Path

import pytest
import torch

from qurate.config import EpisodeConfig, ExecutionConfig, MethodConfig, NetworkConfig, RunConfig, TrainingConfig
from qurate.data.batches import TrainingData
from qurate.data.samples import Labeled, Split, Unlabeled
from qurate.methods import build_method
from qurate.networks.adversarial import DomainDiscriminator, reverse_gradient
from qurate.networks.backbones import build_backbone
from qurate.networks.heads import CosineClassifier, Dropout, build_network
from qurate.runtime.randomness import seeded
from qurate.selection.pseudo_labels import on_embeddings
from qurate.training import build_optimizer, start


def test_cosine_classifier_equals_the_plain_loop() -> None:
    classifier = CosineClassifier(4, 3, scale=30.0).double()
    features = torch.randn(5, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    logits = classifier(features)
    for i, x in enumerate(features.tolist()):
        for j, w in enumerate(classifier.weight.tolist()):
            dot = sum(a * b for a, b in zip(x, w, strict=True))
            length = math.sqrt(sum(a * a for a in x)) * math.sqrt(sum(b * b for b in w))
            assert logits[i, j].item() == pytest.approx(30 * dot / length, rel=1e-9)


def test_cosines_ignore_the_length_of_features_and_weights() -> None:
    classifier = CosineClassifier(6, 4, scale=30.0)
    features = torch.randn(8, 6, generator=torch.Generator().manual_seed(1))
    before = classifier(features)
    with torch.no_grad():
        classifier.weight.mul_(7)
    torch.testing.assert_close(classifier(features * 0.01), before)


def test_a_zero_feature_is_finite() -> None:
    assert bool(CosineClassifier(3, 2, scale=30.0)(torch.zeros(1, 3)).isfinite().all())


@pytest.mark.parametrize("strength", [0.0, 0.3, 1.0])
def test_reversal_is_the_identity_forwards_and_a_sign_backwards(strength: float) -> None:
    inputs = torch.tensor([1.0, -2.0], requires_grad=True)
    outputs = reverse_gradient(inputs, strength)
    assert torch.equal(outputs, inputs)
    outputs.backward(torch.tensor([3.0, 5.0]))
    assert inputs.grad is not None
    torch.testing.assert_close(inputs.grad, -strength * torch.tensor([3.0, 5.0]))


def test_discriminator_gives_one_logit_a_sample() -> None:
    assert DomainDiscriminator(10, 16)(torch.zeros(7, 10)).shape == (7,)


@pytest.mark.parametrize(
    ("bottleneck", "width", "layers"),
    [
        ("none", 20, ["Identity"]),
        ("linear", 12, ["Linear"]),
        ("normalized", 12, ["Dropout", "Linear", "BatchNorm1d", "ReLU"]),
    ],
)
def test_bottlenecks(bottleneck: str, width: int, layers: list[str]) -> None:
    config = NetworkConfig(bottleneck=bottleneck, features=12)  # type: ignore[arg-type]  # parametrised literal
    network = build_network(config, n_classes=3, input_width=20, seed=0)
    assert network.n_features == width
    assert network.features(torch.randn(4, 20)).shape == (4, width)
    assert network(torch.randn(4, 20)).shape == (4, 3)
    leaves = [module for module in network.bottleneck.modules() if not list(module.children())]
    assert [type(module).__name__ for module in leaves] == layers


def test_same_seed_same_weights_and_the_global_generator_is_left_alone() -> None:
    before = torch.random.get_rng_state()
    config = NetworkConfig(backbone="digits")
    first, second, third = (build_network(config, n_classes=10, input_width=None, seed=s) for s in (4, 4, 5))
    assert torch.equal(torch.random.get_rng_state(), before)
    assert all(torch.equal(a, b) for a, b in zip(first.parameters(), second.parameters(), strict=True))
    assert not torch.equal(first.classifier.weight, third.classifier.weight)


def test_one_class_is_refused() -> None:
    with pytest.raises(ValueError, match="2 or more, got 1"):
        build_network(NetworkConfig(), n_classes=1, input_width=4, seed=0)


def test_dropout_zeroes_its_share_keeps_the_mean_and_rests_in_evaluation() -> None:
    dropout = Dropout(0.3)
    with seeded(0):
        dropped = dropout(torch.ones(200, 500))
    assert float((dropped == 0).float().mean()) == pytest.approx(0.3, abs=0.01)
    assert float(dropped.mean()) == pytest.approx(1.0, abs=0.02)
    assert torch.equal(dropout.eval()(torch.ones(3)), torch.ones(3))


def test_the_fully_connected_layers_of_vgg_16_are_new_layers() -> None:
    """Ten times the backbone's rate in the MME reference code: 119 of 134 million weights."""
    config = NetworkConfig("torchvision/vgg16", bottleneck="none")
    with torch.device("meta"):
        network = build_network(config, n_classes=31, input_width=None, seed=0)
    parts = network.backbone, network.bottleneck
    assert [sum(p.numel() for p in part.parameters()) for part in parts] == [14_714_688, 119_545_856]
    assert (network.width, network.n_features) == (25088, 4096)
    network.pretrained = True
    groups = build_optimizer(build_method(MethodConfig.of("tml"), network, seed=0), TrainingConfig()).param_groups
    rates = {parameter: group["lr"] for group in groups for parameter in group["params"]}
    assert {rates[parameter] for parameter in network.backbone.parameters()} == {0.001}
    assert {rates[parameter] for parameter in network.bottleneck.parameters()} == {0.01}


def test_vgg_16_gives_what_it_gave_as_one_backbone(small_vgg: Path) -> None:
    config = NetworkConfig("torchvision/vgg16", str(small_vgg), bottleneck="none")
    network = build_network(config, n_classes=3, input_width=None, seed=0).eval()
    whole, images = build_backbone("torchvision/vgg16", str(small_vgg)).module.eval(), torch.rand(2, 3, 14, 14)
    assert torch.equal(network.features(images), whole(images))


def test_the_trial_network_trains_the_fully_connected_layers_of_vgg_16(small_vgg: Path) -> None:
    """Line 11 of Algorithm 1 trains F', not the classifier alone."""
    network = NetworkConfig("torchvision/vgg16", str(small_vgg), bottleneck="none")
    part = Labeled(torch.rand(6, 3, 14, 14), torch.arange(6) % 3)
    split = Split(("a", "b", "c"), part, part, Unlabeled(part.inputs))
    trainer = start(split, RunConfig(network, MethodConfig.of("tml"), execution=ExecutionConfig(device="cpu")))
    trial, data = on_embeddings(trainer, TrainingData.of(split), EpisodeConfig(), torch.Generator())
    before = copy.deepcopy(trial.method.network.bottleneck.state_dict())
    trial.run(data, steps=1, seed=0, labeled_only=True)
    assert before
    assert all(
        not torch.equal(values, before[name]) for name, values in trial.method.network.bottleneck.state_dict().items()
    )
