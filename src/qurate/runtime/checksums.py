"""Whether tensors are those that were written: a digest of names, shapes and numbers."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping

import torch
from torch import Tensor


def tensor_digest(tensors: Mapping[str, Tensor]) -> str:
    """SHA-256 of the tensors by name, whatever their order."""
    digest = hashlib.sha256()
    for name, values in sorted(tensors.items()):
        digest.update(f"{name} {values.dtype} {tuple(values.shape)}\n".encode())
        flat = values.detach().cpu().contiguous().view(-1).view(torch.uint8)
        digest.update(flat.numpy())  # type: ignore[arg-type]  # an array is a buffer
    return digest.hexdigest()


def not_finite(tensors: Mapping[str, Tensor]) -> list[str]:
    """The names of tensors that hold NaN or infinity."""
    return sorted(name for name, values in tensors.items() if not bool(values.isfinite().all()))
