"""Nearest rows by cosine: exactly, or of very many among the rows of near clusters."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from qurate.runtime.compute import at_least_float32
from qurate.runtime.randomness import generator

MOST_EXACT = 50_000
"""Rows up to which all are compared with all. Our choice: beyond, clusters are faster."""
CLUSTER_ROWS = 500
"""Rows of a cluster, on average. Our choice: with them the time hardly grows faster than the rows, up to a million."""
PROBES = 16
"""Clusters that a row is compared with. Our choice; docs/performance.md has the recall."""
_SLICE = 1024
_COSINES = 2**26  # at a time: 256 MB
_WIDE_SLICE = 2**14  # rows that are made float32 at a time: 84 MB of embeddings 1280 wide
_SAMPLE, _PASSES = 32, 8  # rows for each cluster that it is found by, and passes over them


def nearest_rows(rows: Tensor, others: Tensor, count: int, own: Tensor | None = None) -> Tensor:
    """Positions of the nearest others of each row, the nearest first, (N, count) int64.

    Where more than `MOST_EXACT` rows would be compared with as many, they are looked for in near clusters alone, which
    misses a few. The rows may be float16; no more than slices of them is made float32.

    Args:
        rows: (N, d) of unit length.
        others: (M, d) of unit length.
        count: How many; fewer where there are no more.
        own: Where the rows are among the others: their positions, (N,) int64. None is a neighbour of itself.
    """
    count = min(count, len(others) - (own is not None))
    if len(rows) * len(others) > MOST_EXACT**2:
        return _compare_clusters(rows, others, count, own)
    return _compare_all(rows, others, count, own)


def _compare_all(rows: Tensor, others: Tensor, count: int, own: Tensor | None) -> Tensor:
    size = max(1, min(_SLICE, _COSINES // max(1, len(others))))
    found = [torch.empty(0, count, dtype=torch.int64)]
    for number, part in enumerate(map(at_least_float32, rows.split(size))):
        if others.dtype == part.dtype:
            cosines = part @ others.T
        else:
            cosines = torch.cat([part @ at_least_float32(some).T for some in others.split(_WIDE_SLICE)], dim=1)
        if own is not None:
            cosines[torch.arange(len(part)), own[number * size : number * size + len(part)]] = -2.0
        found.append(cosines.topk(count, dim=1).indices)
    return torch.cat(found)


def _compare_clusters(rows: Tensor, others: Tensor, count: int, own: Tensor | None) -> Tensor:
    """The nearest others in the `PROBES` clusters whose centres are nearest to each row: an inverted file.

    Paper: Jegou, Douze and Schmid, "Product quantization for nearest neighbor search", 2011, without the quantiser.
    One matrix product compares all rows that look into a cluster with all rows of it.
    """
    centers = _find_centers(others)
    of_others = _nearest_centers(others, centers, 1).squeeze(1)
    probes = _nearest_centers(rows, centers, min(PROBES, len(centers)))
    members, asking = _group(of_others, len(centers)), _group(probes.flatten(), len(centers))
    place = torch.empty_like(of_others)  # of each of the others in its cluster
    for inside in members:
        place[inside] = torch.arange(len(inside))
    best = torch.full((len(rows), count), -2.0)
    found = torch.full((len(rows), count), -1)
    for cluster, inside in enumerate(members):
        if not len(inside):
            continue
        near = at_least_float32(others[inside])
        for entries in asking[cluster].split(max(1, min(_WIDE_SLICE, _COSINES // len(inside)))):
            who = entries // probes.shape[1]
            cosines = at_least_float32(rows[who]) @ near.T
            if own is not None:
                itself = (of_others[own[who]] == cluster).nonzero().squeeze(1)
                cosines[itself, place[own[who[itself]]]] = -2.0
            values, at = cosines.topk(min(count, len(inside)), dim=1)
            values, order = torch.cat([best[who], values], dim=1).topk(count, dim=1)
            best[who], found[who] = values, torch.cat([found[who], inside[at]], dim=1).gather(1, order)
    if len(missing := (best == -2.0).any(dim=1).nonzero().squeeze(1)):
        found[missing] = _compare_all(rows[missing], others, count, None if own is None else own[missing])
    return found


def _find_centers(rows: Tensor) -> Tensor:
    """Centres of clusters of a sample of the rows, by k-means of cosines, (M / CLUSTER_ROWS, d) of unit length."""
    count, rng = -(-len(rows) // CLUSTER_ROWS), generator(0)
    sample = at_least_float32(rows[torch.randperm(len(rows), generator=rng)[: _SAMPLE * count].sort().values])
    centers = sample[torch.randperm(len(sample), generator=rng)[:count]]
    for _ in range(_PASSES):
        labels = _nearest_centers(sample, centers, 1).squeeze(1)
        sums = torch.zeros_like(centers).index_add(0, labels, sample)
        is_empty = torch.bincount(labels, minlength=count) == 0
        centers = torch.where(is_empty.unsqueeze(1), centers, F.normalize(sums, dim=1))
    return centers


def _nearest_centers(rows: Tensor, centers: Tensor, count: int) -> Tensor:
    parts = rows.split(max(1, min(_WIDE_SLICE, _COSINES // len(centers))))
    return torch.cat([(at_least_float32(part) @ centers.T).topk(count, dim=1).indices for part in parts])


def _group(labels: Tensor, count: int) -> tuple[Tensor, ...]:
    """Positions of the rows of each cluster."""
    groups: tuple[Tensor, ...] = labels.argsort(stable=True).split(torch.bincount(labels, minlength=count).tolist())
    return groups
