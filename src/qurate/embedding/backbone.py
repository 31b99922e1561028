"""A frozen backbone, or several concatenated: identity, device and precision."""

from __future__ import annotations

import json
import os
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from weakref import WeakKeyDictionary

import torch
from torch import nn

from qurate.data.images import ENOUGH, Transform
from qurate.errors import ConfigError
from qurate.networks.backbone_names import BackboneError, parse_backbones, weights_of
from qurate.networks.backbones import ConcatenatedBackbones, build_backbone, check_backbone
from qurate.runtime.machine import multiplies_bfloat16
from qurate.runtime.tensors import tensor_digest

VARIABLE = "QURATE_PRECISION"
"""Set it to one of the three to have it everywhere."""

_PRECISIONS = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


def choose_precision(module: nn.Module, device: str) -> torch.dtype:
    """The precision of a backbone's forward pass by kind of device; embeddings are float32 in any case.

    On a GPU float16. On a CPU that multiplies bfloat16 itself, bfloat16 for networks with attention, which are slow:
    1.7 times as fast (docs/performance.md). Convolutional ones would gain as much, but stay in float32, as in the
    published tables. Elsewhere float32.

    Raises:
        ConfigError: If the environment asks for a precision that there is not.
    """
    if asked := os.environ.get(VARIABLE):
        if asked not in _PRECISIONS:
            raise ConfigError(f"{VARIABLE} must be one of {', '.join(_PRECISIONS)}, or not set, got '{asked}'.")
        return _PRECISIONS[asked]
    if device == "cuda":
        return torch.float16
    if device == "cpu" and has_attention(module) and multiplies_bfloat16():
        return torch.bfloat16
    return torch.float32


def has_attention(module: nn.Module) -> bool:
    """Whether any layer attends, going by the names that torch and timm give to such layers."""
    return any("attention" in type(layer).__name__.lower() for layer in module.modules())


@dataclass(frozen=True, eq=False)
class FrozenBackbone:
    """A backbone that only embeds.

    Args:
        name: As `build_backbone` knows it.
        module: Images (N, 3, crop, crop) to (N, width), in evaluation mode.
        width: Length of an embedding.
        transform: How image files are prepared.
    """

    name: str
    module: nn.Module
    width: int
    transform: Transform

    @cached_property
    def identity(self) -> str:
        """Backbone, weights and transform, as JSON."""
        return _to_json(
            backbone=self.name,
            weights=digest_weights(self.module),
            transform=self.transform.to_dict(),
            width=self.width,
        )

    def describe_space(self, precision: torch.dtype, engine: str = "torch") -> str:
        """All that decides what an image's embedding is, as JSON; equal texts, equal embeddings.

        Beside the identity: which JPEGs are decoded smaller than they are, the precision, and what computes it unless
        that is torch.
        """
        decoding = f"JPEG at no less than {ENOUGH} times the resized side"
        name = str(precision).removeprefix("torch.")
        by = {} if engine == "torch" else {"engine": engine}
        return _to_json(**json.loads(self.identity), decoding=decoding, precision=name, **by)

    @property
    def members(self) -> tuple[FrozenBackbone, ...]:
        """Itself alone."""
        return (self,)


@dataclass(frozen=True, eq=False)
class FrozenBackbones:
    """Two or more backbones that only embed, whose vectors are concatenated."""

    members: tuple[FrozenBackbone, ...]

    @property
    def name(self) -> str:
        """As `build_backbone` knows it."""
        return "+".join(member.name for member in self.members)

    @property
    def width(self) -> int:
        """Length of an embedding."""
        return sum(member.width for member in self.members)

    @cached_property
    def module(self) -> ConcatenatedBackbones:
        """All of them as one network."""
        modules, widths = [each.module for each in self.members], [each.width for each in self.members]
        return ConcatenatedBackbones(modules, widths, transforms_of(self))

    @cached_property
    def identity(self) -> str:
        """The identities of all of them, as JSON."""
        return _to_json(joined="unit length", members=[json.loads(member.identity) for member in self.members])


_digests: WeakKeyDictionary[nn.Module, tuple[int, str]] = WeakKeyDictionary()
"""By module: a checksum of its weights, and the digest that belongs to it."""


def digest_weights(module: nn.Module) -> str:
    """SHA-256 of the weights of a module; computed again only where a checksum, which is faster, has changed."""
    counts = "num_batches_tracked"  # of training steps; no output depends on it
    weights = {name: values for name, values in module.state_dict().items() if not name.endswith(counts)}
    checksum = 0
    for values in weights.values():
        flat = values.cpu().contiguous().view(-1).view(torch.uint8)
        checksum = zlib.crc32(flat.numpy(), checksum)
    before, digest = _digests.get(module, (None, ""))
    if checksum != before:
        digest = tensor_digest(weights)
        _digests[module] = checksum, digest
    return digest


def _to_json(**about: object) -> str:
    return json.dumps(about, sort_keys=True, indent=2) + "\n"


Frozen = FrozenBackbone | FrozenBackbones
"""One backbone or several."""


def freeze_backbone(name: str, weights: str) -> FrozenBackbone:
    """One backbone for embedding.

    Raises:
        BackboneError: If it takes no image files, would be random, or its weights cannot be obtained.
    """
    check_backbone(name)
    if weights == "none":
        raise BackboneError(
            "`weights='none'` would embed with random weights. Pass `weights='pretrained'`, `weights='offline'` or "
            "`weights=FILE`."
        )
    backbone = build_backbone(name, weights, input_width=1)
    assert backbone.transform is not None, "a backbone of photographs says how they are prepared"
    return FrozenBackbone(name, backbone.module.eval(), backbone.width, backbone.transform)


def freeze_backbones(name: str, weights: str) -> Frozen:
    """One backbone for embedding, or several that the name joins with '+'; see `freeze_backbone`."""
    check_backbone(name)
    pairs = zip(parse_backbones(name), weights_of(name, weights), strict=True)
    members = tuple(freeze_backbone(str(member), own) for member, own in pairs)
    return members[0] if len(members) == 1 else FrozenBackbones(members)


def freeze_module(name: str, module: nn.Module, width: int, transforms: Sequence[Transform]) -> Frozen:
    """The backbone of a model, put into evaluation mode, for embedding; `transforms` has one for each member."""
    module.eval()
    if not isinstance(module, ConcatenatedBackbones):
        return FrozenBackbone(name, module, width, transforms[0])
    parts = zip(parse_backbones(name), module.members, module.widths, transforms, strict=True)
    return FrozenBackbones(
        tuple(FrozenBackbone(str(member), each, length, transform) for member, each, length, transform in parts)
    )


def transforms_of(frozen: Frozen) -> tuple[Transform, ...]:
    """How image files are prepared for each backbone."""
    return tuple(member.transform for member in frozen.members)


def choose_device(device: str) -> torch.device:
    """The device of that name; for 'auto' the best there is.

    Raises:
        ConfigError: If this machine has no such device.
    """
    there = {"cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available(), "cpu": True}
    if device == "auto":
        return torch.device(next(name for name, available in there.items() if available))
    if not there.get(device.partition(":")[0], False):
        raise ConfigError(f"`device={device!r}` cannot be used on this machine. Use `device='cpu'`.")
    return torch.device(device)
