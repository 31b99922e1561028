"""The one pass of all inputs through a network in evaluation mode.

Embedding image files has a pass of its own, `embedding/forward.py`: it overlaps decoding and computing, sorts out files
that cannot be read and streams its rows into a cache, so that neither all files nor all rows are in memory.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from qurate.data.batches import stream_in_order
from qurate.data.samples import Inputs
from qurate.networks.heads import Network
from qurate.runtime.compute import at_least_float32, torch_threads

BATCH, IMAGE_BATCH = 512, 32
"""Rows of a batch: of tensors in memory, of image files."""


@contextmanager
def evaluation_mode(module: nn.Module) -> Iterator[None]:
    """Put a module into evaluation mode within the block."""
    was_training = module.training
    module.eval()
    try:
        yield
    finally:
        module.train(was_training)


@torch.no_grad()
def infer(
    network: Network,
    inputs: Inputs,
    compute: Callable[[Tensor], Tensor],
    *,
    batch_size: int | None = None,
    workers: int = 0,
    threads: int = 0,
    out: Tensor | None = None,
) -> Tensor:
    """The rows that a function of a network makes of all inputs, in evaluation mode: (N, ...) on the CPU.

    Args:
        network: Has the device, and the transform of image files.
        inputs: N samples.
        compute: A batch (B, ...) on that device to its rows (B, ...).
        batch_size: B; see `BATCH` and `IMAGE_BATCH`.
        workers: Processes that decode image files.
        threads: Of each operation; 0 leaves them as they are.
        out: Where to write the rows, (N, ...); a new tensor unless given.
    """
    device = next(network.parameters()).device
    size = batch_size or (BATCH if isinstance(inputs, Tensor) else IMAGE_BATCH)
    batches = stream_in_order(inputs, batch_size=size, transform=network.transform, workers=workers)
    with evaluation_mode(network), torch_threads(threads):
        start = 0
        for batch in batches:
            rows = compute(batch.to(device))
            if out is None:
                out = torch.empty(len(inputs), *rows.shape[1:], dtype=rows.dtype)
            out[start : start + len(batch)] = rows
            start += len(batch)
    if out is None:
        raise ValueError("infer: inputs are empty, so the width of their rows is not known; pass `out`.")
    return out


def log_probabilities(network: Network, inputs: Inputs) -> Tensor:
    """Logarithms of the class probabilities of all inputs, (N, K)."""
    rows = torch.empty(len(inputs), network.n_classes)  # there may be none
    return infer(network, inputs, lambda batch: F.log_softmax(network(batch).float(), dim=1), out=rows)


def backbone_output(network: Network, inputs: Inputs, *, workers: int = 0, threads: int = 0) -> Tensor:
    """What the backbone makes of all inputs, (N, width); embeddings stay as they are."""
    compute = lambda batch: at_least_float32(network.backbone(batch))  # noqa: E731
    return infer(network, inputs, compute, workers=workers, threads=threads)
