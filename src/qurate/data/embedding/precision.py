"""The precision that a backbone computes in, and the name of what comes out of it."""

from __future__ import annotations

import json
import os

import torch
from torch import nn

from qurate.data.embedding.frozen import FrozenBackbone
from qurate.data.images import ENOUGH
from qurate.errors import ConfigError
from qurate.runtime.machine import multiplies_bfloat16

VARIABLE = "QURATE_PRECISION"
"""Set it to one of the three to have it everywhere."""

_PRECISIONS = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


def choose_precision(module: nn.Module, device: str) -> torch.dtype:
    """What a backbone computes in on a kind of device; embeddings are float32 in any case.

    On a GPU float16. On a CPU that multiplies bfloat16 itself, bfloat16 for networks with attention, which are slow:
    1.7 times as fast (docs/performance.md). Convolutional ones would gain as much, but stay in float32, as in the
    published tables. Elsewhere float32.

    Args:
        module: The backbone.
        device: 'cpu', 'cuda' or 'mps'.

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


def describe_space(frozen: FrozenBackbone, precision: torch.dtype) -> str:
    """All that decides what an image's embedding is, as JSON; equal texts, equal embeddings.

    Beside the backbone's identity: which JPEGs are decoded smaller than they are, and the precision.
    """
    about = {
        **json.loads(frozen.identity),
        "decoding": f"JPEG at no less than {ENOUGH} times the resized side",
        "precision": str(precision).removeprefix("torch."),
    }
    return json.dumps(about, sort_keys=True, indent=2) + "\n"
