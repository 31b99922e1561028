"""The two files of a model, judged as they are read: what model.json says of images, and the tensors."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, get_args

import safetensors.torch
from torch import Tensor

from qurate.data.domains import list_some
from qurate.data.images import Interpolation, Transform
from qurate.data.places import shorten
from qurate.networks.heads import Network
from qurate.networks.several import SideBySide
from qurate.runs.about import ABOUT_FILE, ModelError
from qurate.runtime.checksums import not_finite, tensor_digest


def transforms_of(network: Network) -> tuple[Transform, ...]:
    """How image files are prepared for each backbone of a network that takes them; none if it does not."""
    if isinstance(network.backbone, SideBySide):
        return network.backbone.transforms
    return () if network.transform is None else (network.transform,)


def put_transforms(network: Network, transforms: tuple[Transform, ...]) -> None:
    """Prepare image files in these ways.

    Raises:
        ValueError: If the network has more backbones or fewer, or takes no image files.
    """
    wanted = len(transforms_of(network))
    if not wanted:
        raise ValueError("its backbone takes no image files")
    if len(transforms) != wanted:
        raise ValueError(f"transform must be {wanted} tables, one for each backbone, got {len(transforms)}")
    if isinstance(network.backbone, SideBySide):
        network.backbone.transforms = transforms
    else:
        (network.transform,) = transforms


def how_to_prepare(transforms: Sequence[Transform]) -> list[str]:
    """What to do with an image, in words."""
    lines = []
    for number, transform in enumerate(transforms, start=1):
        size, crop = transform.resize, transform.crop
        backbone = f"backbone.members.{number - 1}.*" if len(transforms) > 1 else "backbone.*"
        lines += [
            f"Decode to RGB, upright by the EXIF tag; resize to {size} x {size} pixels ({transform.interpolation}), "
            f"cut the centre {crop} x {crop}, divide by 255, subtract mean, divide by std.",
            f"Input: float32 (N, 3, {crop}, {crop}). Tensors: {backbone}, bottleneck.*, classifier.weight.",
        ]
    if len(transforms) > 1:
        lines.append(
            f"backbone(x): each of the {len(transforms)} vectors divided by its length, side by side, times the square "
            f"root of their whole width / {len(transforms)}."
        )
    return lines


def read_transforms(said: Any) -> tuple[Transform, ...]:
    """How images are prepared for each backbone, as model.json says it: a table, or a list of them.

    Raises:
        ValueError: If it does not say that.
    """
    return tuple(read_transform(each) for each in said) if isinstance(said, list) else (read_transform(said),)


def read_transform(said: Any) -> Transform:
    """How images are prepared for one backbone.

    Raises:
        ValueError: If it does not say that.
    """
    sizes, scales = ("resize", "crop"), ("mean", "std")
    if not isinstance(said, dict) or said.keys() - {"interpolation"} != {*sizes, *scales}:
        raise ValueError(
            f"transform must be a table of resize, crop, mean, std and perhaps interpolation, got {shorten(repr(said))}"
        )
    for name in sizes:
        if type(said[name]) is not int:
            raise ValueError(f"transform.{name} must be an integer, got {shorten(repr(said[name]))}")
    for name in scales:
        values = said[name] if isinstance(said[name], list) else []
        is_allowed = all(type(x) in (int, float) and math.isfinite(x) and (x > 0 or name == "mean") for x in values)
        if len(values) != 3 or not is_allowed:
            kind = "positive numbers" if name == "std" else "numbers"
            raise ValueError(f"transform.{name} must be three {kind}, got {shorten(repr(said[name]))}")
    interpolation = said.get("interpolation", "bilinear")
    if interpolation not in get_args(Interpolation):
        raise ValueError(
            f"transform.interpolation must be one of {', '.join(get_args(Interpolation))}, got "
            f"{shorten(repr(interpolation))}"
        )
    return Transform(said["resize"], said["crop"], tuple(said["mean"]), tuple(said["std"]), interpolation)


def load_tensors(network: Network, path: Path, checksum: str | None) -> None:
    """Put the tensors of model.safetensors into a network.

    Args:
        network: As model.json describes it.
        path: The file.
        checksum: Of its tensors, as model.json says it; None in models of version 0.1.

    Raises:
        ModelError: If the file is missing, damaged or of another network.
    """
    try:
        tensors = safetensors.torch.load_file(path)
    except Exception as error:  # a damaged or foreign file fails in many ways; none of them runs its code
        raise ModelError(f"{path}: not a safetensors file of this model ({type(error).__name__}: {error}).") from error
    checked, own = tensors, network.state_dict()
    tensors = {_name_today(name, own): values for name, values in tensors.items()}
    wrong = sorted(name for name in own.keys() ^ tensors.keys())
    wrong += sorted(name for name in own.keys() & tensors.keys() if own[name].shape != tensors[name].shape)
    if wrong:
        raise ModelError(
            f"{path}: must hold the {len(own)} tensors that {ABOUT_FILE} describes, but {len(wrong)} are missing, "
            f"extra or of another shape: {list_some(wrong, 3)}. Do both files belong to one model?"
        )
    damaged = checksum is not None and tensor_digest(checked) != checksum
    if damaged or (strange := not_finite(tensors)):
        why = f"its numbers are not those that {ABOUT_FILE} was written with" if damaged else f"NaN in {strange[0]}"
        raise ModelError(f"{path}: damaged ({why}). Copy it again, or adapt again.")
    network.load_state_dict(tensors)


def _name_today(name: str, own: Mapping[str, Tensor]) -> str:
    """What a tensor is called now: VGG-16's fully connected layers were once counted to its backbone."""
    apart = name.replace("backbone.classifier.", "bottleneck.", 1)
    return apart if name not in own and apart in own else name
