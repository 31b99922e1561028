"""What a network makes of all samples, and which of them are near each other."""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor
from torch.nn import functional as F

from qurate.data.batches import TrainingData, in_shares, stream_in_order
from qurate.data.samples import Inputs
from qurate.methods import Method
from qurate.runtime.machine import torch_threads
from qurate.selection.state import View


@torch.no_grad()
def view(method: Method, inputs: Inputs, out: Tensor | None = None) -> View:
    """F(x) and C(x) of all inputs, in evaluation mode, on the CPU; in company each process looks at its share.

    Args:
        method: Its network looks.
        inputs: N samples.
        out: Rows (N, d + K) of an earlier view to write into, where a process looks alone; new ones unless given.
    """
    if out is None:
        return View(in_shares(partial(_look, method), inputs), method.network.n_features)
    return View(_look(method, inputs, out), method.network.n_features)


def _look(method: Method, inputs: Inputs, out: Tensor | None = None) -> Tensor:
    network, device = method.network, next(method.parameters()).device
    in_memory = isinstance(inputs, Tensor)
    d = network.n_features
    rows = torch.empty(len(inputs), d + network.n_classes) if out is None else out
    was_training, start = method.training, 0
    method.eval()
    with torch_threads(int(in_memory)):
        size = 4096 if in_memory else 32
        for batch in stream_in_order(inputs, batch_size=size, transform=network.transform):
            features = network.features(batch.to(device))
            part = rows[start : start + len(batch)]
            part[:, :d] = features
            part[:, d:] = F.softmax(network.classifier(features), dim=1)
            start += len(batch)
    method.train(was_training)
    return rows


@torch.no_grad()
def log_probabilities(method: Method, inputs: Inputs) -> Tensor:
    """Logarithms of the class probabilities of all inputs, in evaluation mode, (N, K) on the CPU."""
    network, device = method.network, next(method.parameters()).device
    was_training = method.training
    method.eval()
    size = 4096 if isinstance(inputs, Tensor) else 32
    batches = stream_in_order(inputs, batch_size=size, transform=network.transform)
    found = [F.log_softmax(network(batch.to(device)).float(), dim=1).cpu() for batch in batches]
    method.train(was_training)
    return torch.cat(found)


@torch.no_grad()
def backbone_output(method: Method, inputs: Inputs) -> Tensor:
    """What the backbone makes of all inputs, in evaluation mode, (N, d) on the CPU; embeddings stay as they are."""
    return in_shares(partial(_pass_backbone, method), inputs)


def _pass_backbone(method: Method, inputs: Inputs) -> Tensor:
    network, device = method.network, next(method.parameters()).device
    was_training = method.training
    method.eval()
    batches = stream_in_order(inputs, batch_size=256, transform=network.transform)
    found = [network.backbone(batch.to(device)).float().cpu() for batch in batches]
    method.train(was_training)
    return torch.cat(found).flatten(1)


@torch.no_grad()
def find_neighbors(method: Method, data: TrainingData, count: int) -> Tensor:
    """The nearest target samples of each sample of D_u, by cosine of the backbone's output, itself not among them.

    Returns:
        Positions in D_t followed by D_u, (N_u, count) int64.
    """
    method.eval()
    vectors = torch.cat([backbone_output(method, inputs) for inputs in (data.target.inputs, data.unlabeled)])
    directions = F.normalize(vectors, dim=1)
    n_labeled, found = len(data.target), []
    for start in range(n_labeled, len(directions), 1024):  # in slices: N_u x N_u cosines need not fit
        cosines = directions[start : start + 1024] @ directions.T
        own = torch.arange(start, start + len(cosines))
        cosines[torch.arange(len(cosines)), own] = -2.0
        found.append(cosines.topk(min(count, len(directions) - 1), dim=1).indices)
    return torch.cat(found)
