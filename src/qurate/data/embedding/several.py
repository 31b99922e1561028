"""Several frozen backbones side by side: each has its own rows in the cache, which are joined when they are read."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from torch import Tensor, nn

from qurate.data.embedding.cache import Store
from qurate.data.embedding.frozen import FrozenBackbone, freeze_backbone
from qurate.data.images import Transform
from qurate.networks.backbones import check_backbone
from qurate.networks.names import members_of, weights_of
from qurate.networks.several import SideBySide, join_vectors


@dataclass(frozen=True, eq=False)
class FrozenBackbones:
    """Backbones that only embed, side by side.

    Args:
        members: Two or more.
    """

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
    def module(self) -> SideBySide:
        """All of them as one network."""
        modules, widths = [each.module for each in self.members], [each.width for each in self.members]
        return SideBySide(modules, widths, transforms_of(self))

    @cached_property
    def identity(self) -> str:
        """All that decides what an image's embedding is, as JSON; see `FrozenBackbone`."""
        each = [json.loads(member.identity) for member in self.members]
        return json.dumps({"joined": "unit length", "members": each}, sort_keys=True, indent=2) + "\n"


Frozen = FrozenBackbone | FrozenBackbones
"""One backbone or several."""


@dataclass(frozen=True, eq=False)
class JoinedRows:
    """Rows of several stores as one."""

    stores: tuple[Store, ...]

    def take(self, keys: Sequence[bytes]) -> Tensor:
        """The rows, (N, width) float32, in the order of the keys; none may be missing in any store."""
        return join_vectors([store.take(keys) for store in self.stores])


def freeze_backbones(name: str, weights: str) -> Frozen:
    """One backbone for embedding, or several that the name joins with '+'.

    Raises:
        BackboneError: As `freeze_backbone` does.
    """
    check_backbone(name)
    words = zip(members_of(name), weights_of(name, weights), strict=True)
    members = tuple(freeze_backbone(str(member), own) for member, own in words)
    return members[0] if len(members) == 1 else FrozenBackbones(members)


def freeze_module(name: str, module: nn.Module, width: int, transforms: Sequence[Transform]) -> Frozen:
    """The backbone of a model, for embedding.

    Args:
        name: As `build_backbone` knows it.
        module: In evaluation mode.
        width: Length of its vectors.
        transforms: How images are prepared for each member.
    """
    if not isinstance(module, SideBySide):
        return FrozenBackbone(name, module, width, transforms[0])
    parts = zip(members_of(name), module.members, module.widths, transforms, strict=True)
    return FrozenBackbones(
        tuple(FrozenBackbone(str(member), each, length, transform) for member, each, length, transform in parts)
    )


def transforms_of(frozen: Frozen) -> tuple[Transform, ...]:
    """How image files are prepared for each backbone."""
    members = frozen.members if isinstance(frozen, FrozenBackbones) else (frozen,)
    return tuple(member.transform for member in members)
