"""A frozen backbone, what identifies it, and the device it works on."""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import nn

from qurate.data.images import Transform
from qurate.errors import ConfigError
from qurate.networks.backbones import BackboneError, build_backbone, check_backbone
from qurate.runtime.checksums import tensor_digest


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
        """Backbone, weights and transform, as JSON; see `embedding.precision` for what else a cache tells apart."""
        about = {
            "backbone": self.name,
            "weights": _digest(self.module),
            "transform": self.transform.to_dict(),
            "width": self.width,
        }
        return json.dumps(about, sort_keys=True, indent=2) + "\n"


def freeze_backbone(name: str, weights: str) -> FrozenBackbone:
    """A backbone for embedding.

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


def choose_device(device: str) -> torch.device:
    """The device of that name; for 'auto' the best there is.

    Raises:
        ConfigError: If this machine has no such device.
    """
    there = {"cpu": True, "cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available()}
    if device != "auto":
        if not there.get(device.partition(":")[0], False):
            raise ConfigError(f"`device={device!r}` cannot be used on this machine. Use `device='cpu'`.")
        return torch.device(device)
    if torch.cuda.is_available():
        return torch.device("cuda")
    return torch.device("mps" if torch.backends.mps.is_available() else "cpu")


def _digest(module: nn.Module) -> str:
    counts = "num_batches_tracked"  # of training steps; no output depends on it
    return tensor_digest({name: values for name, values in module.state_dict().items() if not name.endswith(counts)})
