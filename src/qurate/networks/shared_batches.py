"""How a batch passes through a network: whole, shared between processes, or in micro-batches.

Norms and dropout over shared batches.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from typing import Any, NamedTuple, Protocol

import torch
from timm.layers.norm_act import BatchNormAct2d
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.modules.batchnorm import _BatchNorm
from torch.utils.checkpoint import checkpoint

from qurate.errors import ConfigError
from qurate.runtime.machine import at_least_float32
from qurate.runtime.process_group import ProcessGroup, current_group
from qurate.runtime.randomness import random_state, set_random_state


class Passes(Protocol):
    """A network in two parts."""

    backbone: nn.Module
    bottleneck: nn.Module


class Rows(NamedTuple):
    """The rows of a pass that are passing now: their positions in it, (n,) int64, and how many it has."""

    positions: Tensor
    total: int


_rows: Rows | None = None
_micro_batch = 0


def current_rows() -> Rows | None:
    """The rows that pass now; None where all of a pass do."""
    return _rows


@contextmanager
def micro_batches(rows: int) -> Iterator[None]:
    """Pass batches through the backbone in micro-batches of this many rows within the block; 0 for whole batches."""
    global _micro_batch
    before, _micro_batch = _micro_batch, rows
    try:
        yield
    finally:
        _micro_batch = before


def encode(network: Passes, inputs: Tensor, sizes: Sequence[int]) -> Tensor:
    """Features of all rows of one pass, (sum of sizes, d).

    Args:
        network: F.
        inputs: The rows that this process has, part after part.
        sizes: Rows of each part of the pass in all processes together.
    """
    features: Tensor = network.bottleneck(_pass(network.backbone, inputs, sizes))
    return features


def _pass(backbone: nn.Module, inputs: Tensor, sizes: Sequence[int]) -> Tensor:
    """The backbone's output for all rows, gathered over the processes."""
    group = current_group()
    parts = _count_parts(group, sizes)
    if group is None and parts == 1:
        vectors: Tensor = backbone(inputs)
        return vectors
    places = _positions(group, sizes)
    if parts > 1:
        made = _pass_micro_batches(backbone, inputs, places, sum(sizes), parts)
    else:
        with _passing(Rows(places, sum(sizes))):
            made = backbone(inputs)
    return made if group is None else _gather(group, made, sizes)


def _count_parts(group: ProcessGroup | None, sizes: Sequence[int]) -> int:
    """Number of micro-batches: the same in every process, since their batch norms exchange statistics."""
    if not _micro_batch:
        return 1
    ranks = range(1 if group is None else group.size)
    bounds = [[(0, size) if group is None else group.bounds(size, rank) for size in sizes] for rank in ranks]
    return -(-max(sum(end - start for start, end in each) for each in bounds) // _micro_batch)


def draw_rows(inputs: Tensor, draw: Callable[[Tensor], Tensor]) -> Tensor:
    """Random numbers for the rows that pass now: those that one process draws when it passes all of them.

    Args:
        inputs: (n, ...).
        draw: Fills an empty tensor.
    """
    rows = current_rows()
    if rows is None:
        return draw(torch.empty_like(inputs))
    drawn = draw(inputs.new_empty((rows.total, *inputs.shape[1:])))
    return drawn[rows.positions.to(inputs.device)]


def _positions(group: ProcessGroup | None, sizes: Sequence[int]) -> Tensor:
    """Positions of the rows of this process in a pass of several parts."""
    places, before = [], 0
    for size in sizes:
        start, end = (0, size) if group is None else group.bounds(size)
        places.append(torch.arange(before + start, before + end))
        before += size
    return torch.cat(places)


def _pass_micro_batches(backbone: nn.Module, inputs: Tensor, places: Tensor, total: int, parts: int) -> Tensor:
    """Pass micro-batches one after another; each recomputes its activations in the backward pass."""
    state, made = random_state(inputs.device), []
    for part, positions in zip(inputs.tensor_split(parts), places.tensor_split(parts), strict=True):
        set_random_state(state, inputs.device)  # each draws for the whole pass, and takes its own
        rows = Rows(positions, total)
        with _passing(rows):
            made.append(checkpoint(backbone, part, use_reentrant=False, context_fn=partial(_twice, rows)))
    return torch.cat(made)


def _twice(rows: Rows) -> tuple[AbstractContextManager[None], AbstractContextManager[None]]:
    """The same rows in the forward pass and when it is recomputed."""
    return _passing(rows), _passing(rows)


@contextmanager
def _passing(rows: Rows) -> Iterator[None]:
    global _rows
    before, _rows = _rows, rows
    try:
        yield
    finally:
        _rows = before


class _Gather(torch.autograd.Function):
    """All-gather rows; every process computes the same loss from them, so gradients need no reduction."""

    @staticmethod
    def forward(ctx: Any, mine: Tensor, group: ProcessGroup, total: int) -> Tensor:
        ctx.bounds = group.bounds(total)
        return group.all_gather(mine, total)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        start, end = ctx.bounds
        return gradient[start:end], None, None


def _gather(group: ProcessGroup, mine: Tensor, sizes: Sequence[int]) -> Tensor:
    counts = [end - start for start, end in map(group.bounds, sizes)]
    whole = at_least_float32(mine)  # exact, and every backend can send it
    parts = [_Gather.apply(part, group, size) for part, size in zip(whole.split(counts), sizes, strict=True)]
    return torch.cat(parts).to(mine.dtype)


_PLAIN = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)


def share_norms(backbone: nn.Module, *, frozen: bool) -> None:
    """Put batch norms that know of other processes in place of a backbone's; parameters and names stay.

    Args:
        backbone: Changed in place.
        frozen: Whether they keep the statistics that they came with.

    Raises:
        ConfigError: If one is of a kind whose inside is not known.
    """
    for name, layer in list(backbone.named_children()):
        if isinstance(layer, _BatchNorm) and not isinstance(layer, SharedBatchNorm):
            setattr(backbone, name, SharedBatchNorm(layer, frozen=frozen))
        else:
            share_norms(layer, frozen=frozen)


def share_dropouts(module: nn.Module) -> None:
    """Put dropouts that know which rows of a pass they see in place of torch's own."""
    for name, layer in list(module.named_children()):
        if type(layer) is nn.Dropout:
            setattr(module, name, SharedDropout(layer.p))
        else:
            share_dropouts(layer)


class SharedBatchNorm(_BatchNorm):
    """Batch norm by the statistics of the batches of all processes; by its own where a process works alone.

    y = (x - mean) / sqrt(var + eps) * weight + bias, mean and var over the rows of all processes. torch's own
    `SyncBatchNorm` does not run on CPUs.

    Args:
        layer: The batch norm whose parameters and buffers it takes over.
        frozen: Whether it normalises by its running statistics in training too, and keeps them.
    """

    def __init__(self, layer: _BatchNorm, *, frozen: bool = False) -> None:
        if type(layer) not in (*_PLAIN, BatchNormAct2d):
            raise ConfigError(
                "ExecutionConfig.devices must be 1 and TrainingConfig.frozen_norms False for a network with layers of "
                f"type {type(layer).__name__}, whose inside is not known."
            )
        super().__init__(layer.num_features, layer.eps, layer.momentum, layer.affine, layer.track_running_stats)
        self._parameters, self._buffers = layer._parameters, layer._buffers
        self.training = layer.training
        self.after = nn.Sequential(layer.drop, layer.act) if isinstance(layer, BatchNormAct2d) else nn.Identity()
        """What timm's layer does once it has normalised."""
        self.frozen = frozen

    def _check_input_dim(self, inputs: Tensor) -> None:
        """Any number of dimensions from two on."""

    def forward(self, inputs: Tensor) -> Tensor:
        """Normalise, (N, C, ...) to (N, C, ...)."""
        if self.frozen:
            kept = F.batch_norm(inputs, self.running_mean, self.running_var, self.weight, self.bias, eps=self.eps)
            return self._finish(kept)
        group = current_group()
        if group is None or not self.training:
            return self._finish(super().forward(inputs))
        normalized, mean, variance, count = _Normalize.apply(inputs, self.weight, self.bias, self.eps, group)
        if self.running_mean is not None and self.running_var is not None:
            assert self.num_batches_tracked is not None
            self.num_batches_tracked.add_(1)
            momentum = 1 / float(self.num_batches_tracked) if self.momentum is None else self.momentum
            self.running_mean.lerp_(mean.to(self.running_mean.dtype), momentum)
            unbiased = variance * (count / max(count - 1, 1))
            self.running_var.lerp_(unbiased.to(self.running_var.dtype), momentum)
        return self._finish(normalized)

    def _finish(self, normalized: Tensor) -> Tensor:
        result: Tensor = self.after(normalized)
        return result


class SharedDropout(nn.Module):
    """torch's dropout, which draws for all rows of a pass and keeps those of the rows that it sees.

    Args:
        probability: Of a zero.
    """

    def __init__(self, probability: float) -> None:
        super().__init__()
        self.p = probability

    def forward(self, inputs: Tensor) -> Tensor:
        """Zero each number with the probability and scale the rest up; nothing in evaluation mode."""
        if not self.training or self.p in (0, 1):
            return F.dropout(inputs, self.p, self.training)
        return inputs * draw_rows(inputs, lambda empty: empty.bernoulli_(1 - self.p)).div_(1 - self.p)


class _Normalize(torch.autograd.Function):
    """Normalise by the mean and variance over all processes.

    Its gradient with g = dL/dy, h = (x - mean) / sqrt(var + eps), n rows and places in all processes, sums over them:
    dL/dx = weight / sqrt(var + eps) * (g - sum(g) / n - h * sum(g h) / n), dL/dweight = sum(g h), dL/dbias = sum(g);
    of the last two each process gives its part, since gradients of parameters are summed later.
    """

    @staticmethod
    def forward(
        ctx: Any, inputs: Tensor, weight: Tensor | None, bias: Tensor | None, eps: float, group: ProcessGroup
    ) -> tuple[Tensor, Tensor, Tensor, int]:
        rows = at_least_float32(inputs)
        mean, variance, count = _statistics(rows, group)
        inverse = (variance + eps).rsqrt()
        shaped = [1, -1, *[1] * (rows.ndim - 2)]
        normalized = (rows - mean.view(shaped)) * inverse.view(shaped)
        ctx.save_for_backward(normalized, inverse, weight)
        ctx.group, ctx.count, ctx.kind = group, count, inputs.dtype
        ctx.mark_non_differentiable(mean, variance)
        result = normalized if weight is None else normalized * weight.view(shaped)
        result = result if bias is None else result + bias.view(shaped)
        return result.to(inputs.dtype), mean, variance, count

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        normalized, inverse, weight = ctx.saved_tensors
        gradient = at_least_float32(gradients[0])
        over, shaped = [0, *range(2, gradient.ndim)], [1, -1, *[1] * (gradient.ndim - 2)]
        of_bias, of_weight = gradient.sum(over), (gradient * normalized).sum(over)
        sums = ctx.group.all_reduce(torch.stack([of_bias, of_weight])) / ctx.count
        inner = gradient - sums[0].view(shaped) - normalized * sums[1].view(shaped)
        if weight is None:
            return (inner * inverse.view(shaped)).to(ctx.kind), None, None, None, None
        return (inner * (inverse * weight).view(shaped)).to(ctx.kind), of_weight, of_bias, None, None


def _statistics(rows: Tensor, group: ProcessGroup) -> tuple[Tensor, Tensor, int]:
    """Mean and variance of each channel over all processes, and the number of values they are made of."""
    over = [0, *range(2, rows.ndim)]
    count = rows.numel() // rows.shape[1]
    variance, mean = torch.var_mean(rows, over, correction=0) if count else (rows.new_zeros(rows.shape[1]),) * 2
    mine = torch.cat([mean, variance, mean.new_full((1,), float(count))])
    each = group.all_gather(mine.unsqueeze(0), group.size)
    means, variances, counts = each[:, : len(mean)], each[:, len(mean) : -1], each[:, -1:]
    total = counts.sum()
    whole = (counts * means).sum(dim=0) / total
    spread = (counts * (variances + (means - whole).square())).sum(dim=0) / total
    return whole, spread, int(total)
