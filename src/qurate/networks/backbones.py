"""Backbones by name: a small CNN, timm's, torchvision's; weights random, downloaded, installed or from a file."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import safetensors.torch
import timm
import torch
import torchvision
from torch import Tensor, nn

from qurate.data.images import Transform
from qurate.networks.names import Member, members_of, weights_of
from qurate.networks.offline import BackboneError as BackboneError
from qurate.networks.offline import offline_weights
from qurate.networks.several import SideBySide
from qurate.networks.timm_models import PooledTokens, build_timm, download_failed, resize_weights


@dataclass(frozen=True, eq=False)
class Backbone:
    """A network that turns inputs into vectors.

    Args:
        module: Inputs to (N, width).
        width: Length of the vectors.
        transform: How its images are prepared; None where inputs are no image files, and where several backbones
            stand side by side, each with a transform of its own.
    """

    module: nn.Module
    width: int
    transform: Transform | None


class DigitsCNN(nn.Module):
    """A small CNN for one-channel images of 8 x 8 pixels or more: (N, 1, H, W) to (N, 128)."""

    width = 128

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv2d(1, 16, 3, padding=1),
            nn.BatchNorm2d(16),
            nn.ReLU(),
            nn.Conv2d(16, 32, 3, padding=1),
            nn.BatchNorm2d(32),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Conv2d(32, 64, 3, padding=1),
            nn.BatchNorm2d(64),
            nn.ReLU(),
            nn.AdaptiveMaxPool2d(2),
            nn.Flatten(),
            nn.Linear(64 * 4, self.width),
            nn.ReLU(),
        )

    def forward(self, images: Tensor) -> Tensor:
        """(N, 1, H, W) to (N, 128)."""
        features: Tensor = self.layers(images)
        return features


def check_backbone(name: str) -> None:
    """Whether there are such backbones, without building them.

    Raises:
        BackboneError: If there is one of them not, or if it is 'none' or 'digits', which are no backbones of
            photographs.
    """
    for member in members_of(name):
        kind, _, model = member.model.partition("/")
        known = kind == "timm" and (":" in model or timm.is_model(model))  # a colon: an address that only timm can read
        if not known and member.model not in ("torchvision/vgg16", "torchvision/resnet34"):
            raise BackboneError(
                f"There is no backbone {member.model!r}. Allowed: 'timm/NAME.TAG' (timm.list_models(pretrained=True) "
                "lists them), 'torchvision/vgg16', 'torchvision/resnet34'; with '@224' its image size in pixels, and "
                "several with '+' between them. `qurate backbones` lists those that we would take."
            )


def build_backbone(name: str, weights: str = "none", input_width: int | None = None) -> Backbone:
    """A backbone by name, with weights; several, joined by '+', side by side.

    Args:
        name: 'none', 'digits', 'timm/NAME.TAG', 'torchvision/vgg16', 'torchvision/resnet34'. '@224' after it is the
            side of its images in pixels, '@class', '@mean' or '@both' how the tokens of a transformer are pooled; both
            are as the model was made for unless given.
        weights: 'none', 'pretrained', 'offline' (of an installed package, for 'timm/tf_efficientnet_lite0', 1 and 2),
            or the path of a safetensors or state-dict file; for several one for all, or as many joined by '+'.
        input_width: Width of the embeddings, for 'none'.

    Raises:
        BackboneError: If the name is unknown or the weights cannot be obtained.
    """
    members = members_of(name)
    if len(members) == 1:
        return _build_member(members[0], weights, input_width)
    check_backbone(name)
    built = [_build_member(member, own, None) for member, own in zip(members, weights_of(name, weights), strict=True)]
    transforms = [backbone.transform for backbone in built if backbone.transform is not None]
    widths = [backbone.width for backbone in built]
    return Backbone(SideBySide([backbone.module for backbone in built], widths, transforms), sum(widths), None)


def _build_member(member: Member, weights: str, input_width: int | None) -> Backbone:
    name = member.model
    is_timm = name.startswith("timm/")
    if (member.image_size or member.pooling) and not is_timm:
        raise BackboneError(f"'{member}': an image size or a pooling can be given to models of timm alone.")
    if name == "none":
        if input_width is None:
            raise BackboneError("Backbone 'none' needs input_width, the width of the embeddings.")
        return Backbone(nn.Identity(), input_width, None)
    if name == "digits":
        backbone = Backbone(DigitsCNN(), DigitsCNN.width, None)
    elif is_timm:
        backbone = Backbone(*build_timm(member, pretrained=weights == "pretrained"))
    elif name == "torchvision/vgg16":
        backbone = _vgg16(pretrained=weights == "pretrained")
    elif name == "torchvision/resnet34":
        backbone = _resnet34(pretrained=weights == "pretrained")
    else:
        raise BackboneError(
            f"Unknown backbone {name!r}. Allowed: 'none', 'digits', 'timm/NAME.TAG' (any of timm's), "
            "'torchvision/vgg16', 'torchvision/resnet34'."
        )
    if weights == "offline":
        _inner(backbone.module).load_state_dict(offline_weights(name))
    elif weights not in ("none", "pretrained"):
        load_weights(_inner(backbone.module), Path(weights))
    elif name == "digits" and weights == "pretrained":
        raise BackboneError("Backbone 'digits' has no pretrained weights; use `weights='none'` or a file.")
    return backbone


def _inner(module: nn.Module) -> nn.Module:
    """The model itself, whose names the weight files have."""
    return module.model if isinstance(module, PooledTokens) else module


def _vgg16(*, pretrained: bool) -> Backbone:
    module = _torchvision("vgg16", torchvision.models.vgg16, "VGG16_Weights", pretrained)
    module.classifier = nn.Sequential(*list(module.classifier)[:-1])  # up to the 4096-wide layer
    return Backbone(module, 4096, Transform())


def set_apart_last_layers(backbone: Backbone) -> tuple[Backbone, nn.Module]:
    """VGG-16 up to its convolutions, and its two fully connected layers; any other backbone whole.

    The MME reference code trains those two, 119 of 134 million weights, as new layers (decision 41).
    """
    module = backbone.module
    if not isinstance(module, torchvision.models.VGG):
        return backbone, nn.Identity()
    last, module.classifier = module.classifier, nn.Sequential()
    width = next(layer.in_features for layer in last if isinstance(layer, nn.Linear))
    return Backbone(module, width, backbone.transform), last


def _resnet34(*, pretrained: bool) -> Backbone:
    module = _torchvision("resnet34", torchvision.models.resnet34, "ResNet34_Weights", pretrained)
    module.fc = nn.Identity()
    return Backbone(module, 512, Transform())


def _torchvision(name: str, build: Any, enum: str, pretrained: bool) -> Any:
    try:
        return build(weights=getattr(torchvision.models, enum).IMAGENET1K_V1 if pretrained else None)
    except OSError as error:  # urllib's URLError is one
        raise download_failed(f"torchvision/{name}", error) from error


def load_weights(module: nn.Module, path: Path) -> None:
    """Load a local weight file into a backbone; a classifier head in the file is ignored.

    Weights of a model of timm at another image size are resampled as timm does it.

    Args:
        module: The backbone.
        path: A safetensors file, or a state dict saved by torch (read with weights_only=True).

    Raises:
        BackboneError: If the file is missing, foreign, or lacks a parameter of the backbone.
    """
    state = read_weights(path)
    own = module.state_dict()
    missing, wrong = _differences(own, state)
    if missing or wrong:
        state = resize_weights(module, state)
        missing, wrong = _differences(own, state)
    if missing or wrong:
        problem = "lacks" if missing else "has another shape for"
        names = missing or wrong
        raise BackboneError(
            f"{path}: {problem} {len(names)} of the backbone's {len(own)} parameters "
            f"(first: {', '.join(names[:3])}). Is the file of this architecture?"
        )
    module.load_state_dict({name: state[name] for name in own if name in state}, strict=False)


def _differences(own: dict[str, Tensor], state: dict[str, Tensor]) -> tuple[list[str], list[str]]:
    """The parameters that a file lacks, and those that have another shape in it."""
    missing = sorted(name for name in own if name not in state and not name.endswith("num_batches_tracked"))
    return missing, sorted(name for name in own if name in state and own[name].shape != state[name].shape)


def read_weights(path: Path) -> dict[str, Tensor]:
    """The tensors of a safetensors or state-dict file; nothing in it is ever executed."""
    if not path.is_file():
        raise BackboneError(
            f"{path}: no such weight file. Allowed: 'none', 'pretrained', 'offline', or the path of a safetensors "
            "or state-dict file."
        )
    try:
        if path.suffix == ".safetensors":
            state: Any = safetensors.torch.load_file(path)
        else:
            state = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # a damaged or hostile file fails in many ways; none of them runs its code
        raise BackboneError(
            f"{path}: not a readable weight file ({type(error).__name__}). Save it as safetensors, or as a "
            "plain state dict: torch.save(model.state_dict(), path)."
        ) from error
    state = state.get("state_dict", state) if isinstance(state, dict) else state
    if not isinstance(state, dict) or not all(isinstance(value, Tensor) for value in state.values()):
        raise BackboneError(f"{path}: not a state dict of tensors. Save it with model.state_dict().")
    for name, value in state.items():
        if value.is_floating_point() and not bool(torch.isfinite(value).all()):
            raise BackboneError(f"{path}: its numbers must be finite, got NaN or infinity in {name}. Use another file.")
    return state
