"""Flat dictionaries of tensors, as checkpoints hold them: digests, parts, and the state of an optimiser."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path

import safetensors.torch
import torch
from safetensors import safe_open
from torch import Tensor
from torch.optim import Optimizer


def tensor_digest(tensors: Mapping[str, Tensor]) -> str:
    """SHA-256 of the tensors by name, whatever their order."""
    digest = hashlib.sha256()
    for name, values in sorted(tensors.items()):
        digest.update(f"{name} {values.dtype} {tuple(values.shape)}\n".encode())
        flat = values.detach().cpu().contiguous().view(-1).view(torch.uint8)
        digest.update(flat.numpy())  # type: ignore[arg-type]  # an array is a buffer
    return digest.hexdigest()


def pack_tensors(tensors: Mapping[str, Tensor], **about: str) -> bytes:
    """The content of a safetensors file with its checksum.

    Args:
        tensors: By name.
        **about: Further metadata.
    """
    return safetensors.torch.save(dict(tensors), metadata={"sha256": tensor_digest(tensors), **about})


def read_tensors(path: Path) -> dict[str, Tensor]:
    """Read what `pack_tensors` made.

    Raises:
        Exception: Of many kinds, if the file is damaged or another one; none of them runs its code.
    """
    with safe_open(path, framework="pt") as file:
        about, tensors = file.metadata() or {}, {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118  # no mapping
    if about.get("sha256") != tensor_digest(tensors):
        raise ValueError("its numbers are not those that were written")
    return tensors


def not_finite(tensors: Mapping[str, Tensor]) -> list[str]:
    """The names of tensors that hold NaN or infinity."""
    return sorted(name for name, values in tensors.items() if not bool(values.isfinite().all()))


def below(prefix: str, state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The entries under a prefix, without it; not copied."""
    return {name.removeprefix(prefix): values for name, values in state.items() if name.startswith(prefix)}


def optimizer_tensors(optimizer: Optimizer) -> dict[str, Tensor]:
    """What an optimiser remembers of its steps, as 'optimizer.<parameter>.<name>'."""
    kept = optimizer.state_dict()["state"].items()
    return {
        f"optimizer.{i}.{name}": values for i, slots in kept for name, values in slots.items() if values is not None
    }


def load_optimizer(optimizer: Optimizer, state: Mapping[str, Tensor]) -> None:
    """Continue from copies of `optimizer_tensors`, which other entries may stand beside."""
    slots: dict[int, dict[str, Tensor]] = {}
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    for name, values in below("optimizer.", state).items():
        index, _, slot = name.partition(".")
        slots.setdefault(int(index), {})[slot] = _laid_out_like(parameters[int(index)], values)
    optimizer.load_state_dict({"state": slots, "param_groups": optimizer.state_dict()["param_groups"]})


def _laid_out_like(parameter: Tensor, values: Tensor) -> Tensor:
    """A copy in the parameter's order in memory: fused steps go through both from the first number to the last."""
    if parameter.shape != values.shape:
        return values.clone()
    return torch.empty_like(parameter, dtype=values.dtype, device=values.device).copy_(values)
