"""Whole precision inside of mixed precision."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext

import torch
from torch import Tensor


def without_autocast(device: torch.device) -> AbstractContextManager[object]:
    """A block in which operations are not cast down, also in a mixed-precision step."""
    return torch.autocast(device.type, enabled=False) if torch.is_autocast_enabled(device.type) else nullcontext()


def at_least_float32(values: Tensor) -> Tensor:
    """Half-precision numbers as float32; others as they are."""
    return values.to(torch.promote_types(values.dtype, torch.float32))
