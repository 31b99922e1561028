"""Nearest rows by cosine: exactly, or of very many by an approximate index (faiss, extra `large`)."""

from __future__ import annotations

import importlib
import warnings
from types import ModuleType

import torch
from torch import Tensor

MOST_EXACT = 50_000
"""Rows up to which all are compared with all. Our choice: beyond, an index is faster."""
_SLICE = 1024
_COSINES = 2**26  # at a time: 256 MB
_LINKS, _BUILD_WIDTH, _SEARCH_WIDTH = 32, 80, 64
"""Of the index: Malkov and Yashunin, "Efficient and robust approximate nearest neighbor search using hierarchical
navigable small world graphs", 2018. Our choice: 99.8 % of the ten nearest images of Office-31 are found."""


def nearest_rows(rows: Tensor, others: Tensor, count: int, own: Tensor | None = None) -> Tensor:
    """Positions of the nearest others of each row, the nearest first, (N, count) int64.

    Where more than `MOST_EXACT` rows would be compared with as many, they are found by an index, which misses a few;
    where faiss is not installed, all are compared, and a warning says so.

    Args:
        rows: (N, d) of unit length.
        others: (M, d) of unit length.
        count: How many; fewer where there are no more.
        own: Where the rows are among the others: their positions, (N,) int64. None is a neighbour of itself.
    """
    count = min(count, len(others) - (own is not None))
    if len(rows) * len(others) > MOST_EXACT**2 and (faiss := _import_faiss(len(others))) is not None:
        return _search_index(faiss, rows, others, count, own)
    return _compare_all(rows, others, count, own)


def _compare_all(rows: Tensor, others: Tensor, count: int, own: Tensor | None) -> Tensor:
    size = max(1, min(_SLICE, _COSINES // max(1, len(others))))
    found = [torch.empty(0, count, dtype=torch.int64)]
    for number, part in enumerate(rows.split(size)):
        cosines = part @ others.T
        if own is not None:
            cosines[torch.arange(len(part)), own[number * size : number * size + len(part)]] = -2.0
        found.append(cosines.topk(count, dim=1).indices)
    return torch.cat(found)


def _search_index(faiss: ModuleType, rows: Tensor, others: Tensor, count: int, own: Tensor | None) -> Tensor:
    half = faiss.ScalarQuantizer.QT_fp16
    index = faiss.IndexHNSWSQ(others.shape[1], half, _LINKS, faiss.METRIC_INNER_PRODUCT)
    index.hnsw.efConstruction, index.hnsw.efSearch = _BUILD_WIDTH, max(_SEARCH_WIDTH, 2 * count)
    threads = faiss.omp_get_max_threads()
    faiss.omp_set_num_threads(1)  # with more, the graph depends on who comes first
    try:
        index.train(others[:_SLICE].numpy())
        for part in others.split(_SLICE):
            index.add(part.contiguous().numpy())
    finally:
        faiss.omp_set_num_threads(threads)
    found = torch.cat([torch.from_numpy(index.search(part.numpy(), count + 1)[1]) for part in rows.split(_SLICE)])
    if own is not None:
        itself = found == own.unsqueeze(1)
        itself[~itself.any(dim=1), -1] = True  # not found: the farthest goes
        found = found[~itself].view(len(rows), count)
    else:
        found = found[:, :count]
    if len(missing := (found < 0).any(dim=1).nonzero().squeeze(1)):
        found[missing] = _compare_all(rows[missing], others, count, None if own is None else own[missing])
    return found


def _import_faiss(count: int) -> ModuleType | None:
    try:
        return importlib.import_module("faiss")
    except ImportError:
        warnings.warn(
            f"The nearest of {count:,} images are found by comparing all with all, which takes long. "
            "Install an index for it: pip install 'qurate[large]'.",
            stacklevel=3,
        )
        return None
