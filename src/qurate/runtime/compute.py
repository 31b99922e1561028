"""How torch computes within a block: threads and precision."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext

import torch
from torch import Tensor


@contextmanager
def torch_threads(count: int) -> Iterator[None]:
    """Let each operation use `count` threads inside the block, also in threads started there; 0 leaves them be."""
    before = torch.get_num_threads()
    torch.set_num_threads(count or before)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def without_autocast(device: torch.device) -> AbstractContextManager[object]:
    """A block in which operations are not cast down, also in a mixed-precision step."""
    return torch.autocast(device.type, enabled=False) if torch.is_autocast_enabled(device.type) else nullcontext()


def fits_half(values: Tensor) -> bool:
    """Whether half precision holds these numbers: they are finite, and none is beyond 65,504."""
    if values.dtype == torch.float16 or not values.numel():
        return True
    least, most = values.aminmax()
    return bool(torch.maximum(-least, most) <= torch.finfo(torch.float16).max)


def at_least_float32(values: Tensor) -> Tensor:
    """Half-precision numbers as float32; others as they are."""
    return values.to(torch.promote_types(values.dtype, torch.float32))
