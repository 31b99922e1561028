"""F and C: backbone, bottleneck, cosine classifier."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Self

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from qurate.config import NetworkConfig
from qurate.data.images import ImageFiles, Transform
from qurate.data.samples import DataError, describe
from qurate.errors import ConfigError
from qurate.networks.backbones import ConcatenatedBackbones, build_backbone, set_apart_last_layers
from qurate.runtime.compute import at_least_float32, without_autocast
from qurate.runtime.randomness import seeded


def cosines(features: Tensor, weight: Tensor) -> Tensor:
    """Cosine of each feature to each class weight: (N, d), (K, d) to (N, K).

    In float32 or better whatever the precision of training: a margin of 0.5 at scale 30 does not survive bfloat16.
    """
    with without_autocast(features.device):
        return F.linear(F.normalize(at_least_float32(features), dim=1), F.normalize(weight, dim=1))


class CosineClassifier(nn.Module):
    """C: logits are the scaled cosines between a feature and each class weight.

    cos(theta_j) = W_j / ||W_j|| . F(x) / ||F(x)||;  logits = s cos(theta)

    Paper: below Eq. (1).

    Args:
        features: d.
        classes: K.
        scale: s.
    """

    def __init__(self, features: int, classes: int, scale: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(classes, features))
        nn.init.xavier_normal_(self.weight)
        self.scale = scale

    def cosines(self, features: Tensor) -> Tensor:
        """Cosine of each feature to each class weight, (N, d) to (N, K); see `cosines`."""
        return cosines(features, self.weight)

    def forward(self, features: Tensor) -> Tensor:
        """Logits, (N, d) to (N, K)."""
        return self.scale * self.cosines(features)


class Dropout(nn.Module):
    """Dropout by comparing uniform numbers; on a CPU less than half the cost of torch's own, which draws bits."""

    def __init__(self, probability: float) -> None:
        super().__init__()
        self.probability = probability

    def forward(self, inputs: Tensor) -> Tensor:
        """Zero each number with the probability and scale the rest up; nothing in evaluation mode."""
        if not self.training or self.probability == 0:
            return inputs
        kept = torch.empty_like(inputs).uniform_().ge_(self.probability)  # 0 or 1
        return inputs * kept.mul_(1 / (1 - self.probability))


class Network(nn.Module):
    """F and C together: backbone, bottleneck, classifier.

    Args:
        backbone: Inputs to (N, width).
        bottleneck: (N, width) to (N, d).
        classifier: (N, d) to logits (N, K).
        pretrained: Whether the backbone has trained weights and so takes the smaller learning rate.
        transform: How image files are prepared for the backbone; None where inputs are tensors.
    """

    def __init__(
        self,
        backbone: nn.Module,
        bottleneck: nn.Module,
        classifier: CosineClassifier,
        *,
        pretrained: bool,
        transform: Transform | None = None,
    ) -> None:
        super().__init__()
        self.backbone = backbone
        self.bottleneck = bottleneck
        self.classifier = classifier
        self.pretrained = pretrained
        self.transform = transform
        self.frozen_norms = self.frozen_bottleneck = False
        """Whether batch norms of the backbone, and of the bottleneck, normalise by their running statistics in training
        too."""
        self.micro_batch = 0
        """Rows that pass through the backbone at a time in training, whose activations are recomputed; 0 for all."""

    def train(self, mode: bool = True) -> Self:
        """Set training mode; frozen norms stay in evaluation mode."""
        super().train(mode)
        parts = (self.backbone, self.frozen_norms), (self.bottleneck, self.frozen_bottleneck)
        for layer in [layer for part, is_frozen in parts if is_frozen for layer in _batch_norms(part)]:
            layer.training = False  # what follows it in a layer of timm, activation and dropout, keeps its mode
        return self

    @property
    def n_classes(self) -> int:
        """Number K of classes."""
        return self.classifier.weight.shape[0]

    @property
    def n_features(self) -> int:
        """Width d of F(x)."""
        return self.classifier.weight.shape[1]

    @property
    def width(self) -> int:
        """Width of what the backbone gives."""
        linear = [layer for layer in self.bottleneck.modules() if isinstance(layer, nn.Linear)]
        return linear[0].in_features if linear else self.n_features

    def features(self, *inputs: Tensor) -> Tensor:
        """F(x), (N, d); where backbones stand side by side, of the inputs of each."""
        features: Tensor = self.bottleneck(self.embed(*inputs))
        return features

    def embed(self, *inputs: Tensor) -> Tensor:
        """What the backbone gives, (N, width); embeddings stay as they are."""
        if not (self.micro_batch and self.training and torch.is_grad_enabled()):
            vectors: Tensor = self.backbone(*inputs)
            return vectors
        parts = zip(*(part.split(self.micro_batch) for part in inputs), strict=True)
        return torch.cat([checkpoint(self.backbone, *part, use_reentrant=False) for part in parts])

    def forward(self, *inputs: Tensor) -> Tensor:
        """C(F(x)) as logits, (N, K)."""
        logits: Tensor = self.classifier(self.features(*inputs))
        return logits


@contextmanager
def held_statistics(module: nn.Module) -> Iterator[None]:
    """A block in which batches leave the running statistics of batch norms as they are: for those that pass again."""
    before = {layer: layer.momentum for layer in _batch_norms(module)}
    hold_statistics(module)
    try:
        yield
    finally:
        for layer, momentum in before.items():
            layer.momentum = momentum


def _batch_norms(module: nn.Module) -> list[nn.modules.batchnorm._BatchNorm]:
    return [layer for layer in module.modules() if isinstance(layer, nn.modules.batchnorm._BatchNorm)]


def checkpoint_activations(network: Network) -> None:
    """Let the backbone recompute its activations in the backward pass, if it can.

    Raises:
        ConfigError: If it cannot.
    """
    try:
        network.backbone.set_grad_checkpointing()  # type: ignore[operator]  # where it has one
    except (AttributeError, AssertionError):  # it has none, and timm's way to say no
        raise ConfigError(
            f"ExecutionConfig.activation_checkpointing must be False for a {type(network.backbone).__name__}, which "
            "cannot recompute its activations. Use `micro_batch` to save memory."
        ) from None


def hold_statistics(module: nn.Module) -> None:
    """Keep the running statistics of batch norms as they are; in training, batches are still normalized by their own.

    For trial networks (decision 34): without this, what they see of the target would change by the statistics of
    labelled batches alone.
    """
    for layer in _batch_norms(module):
        layer.momentum = 0.0


def check_inputs(network: Network, inputs: object, where: str) -> None:
    """Refuse inputs that a network cannot read; `where` names their argument in the message."""
    if isinstance(inputs, ImageFiles):
        fits, allowed = network.transform is not None, "a tensor: this network does not read image files"
        if isinstance(network.backbone, nn.Identity | ConcatenatedBackbones):
            allowed = "embeddings, which embed_split makes of image files; or name a backbone in NetworkConfig"
    elif isinstance(network.backbone, nn.Identity):
        allowed = f"a tensor (N, {network.width}) of embeddings; a network for images has a backbone in NetworkConfig"
        fits = isinstance(inputs, Tensor) and inputs.ndim == 2 and inputs.shape[1] == network.width
    elif isinstance(network.backbone, nn.Flatten):
        allowed = f"a tensor (N, ...) of {network.n_features} numbers each, as what the method was fitted to"
        fits = isinstance(inputs, Tensor) and inputs.ndim > 1 and inputs[0:1].numel() == network.n_features
    else:
        first = next(layer for layer in network.backbone.modules() if isinstance(layer, nn.Conv2d))
        allowed = f"a tensor (N, {first.in_channels}, height, width) of images, or image files"
        fits = isinstance(inputs, Tensor) and inputs.ndim == 4 and inputs.shape[1] == first.in_channels
    if isinstance(inputs, Tensor) and not inputs.is_floating_point():
        fits, allowed = False, "a tensor of floating-point numbers"
    if not fits:
        raise DataError(f"{where} must be {allowed}, got {describe(inputs)}.")
    if isinstance(inputs, Tensor) and not all(bool(part.isfinite().all()) for part in inputs.split(2**16)):
        raise DataError(f"{where} must be finite numbers, got NaN or infinity. Remove or repair the samples.")


def build_network(config: NetworkConfig, *, n_classes: int, input_width: int | None, seed: int) -> Network:
    """The network of a config, with its weights drawn from the seed.

    Args:
        config: Backbone, weights, bottleneck, classifier.
        n_classes: K.
        input_width: Width of the embeddings when `config.backbone` is 'none'; otherwise unused.
        seed: Decides the random weights.
    """
    if n_classes < 2:
        raise ConfigError(f"build_network: n_classes must be 2 or more, got {n_classes}. Add labelled classes.")
    with seeded(seed):
        backbone = build_backbone(config.backbone, config.weights, input_width)
        if config.bottleneck == "none":
            width = backbone.width
            backbone, bottleneck = set_apart_last_layers(backbone)
        else:
            width, bottleneck = config.features, _build_bottleneck(config, backbone.width)
        classifier = CosineClassifier(width, n_classes, config.scale)
    return Network(
        backbone.module,
        bottleneck,
        classifier,
        pretrained=config.weights != "none",
        transform=backbone.transform,
    )


def _build_bottleneck(config: NetworkConfig, width: int) -> nn.Module:
    linear = nn.Linear(width, config.features)
    nn.init.xavier_normal_(linear.weight)
    nn.init.zeros_(linear.bias)
    if config.bottleneck == "linear":
        return linear
    return nn.Sequential(Dropout(config.dropout), linear, nn.BatchNorm1d(config.features), nn.ReLU())
