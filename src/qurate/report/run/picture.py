"""The domains in two dimensions, before and after adaptation."""

from __future__ import annotations

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray
from sklearn.decomposition import PCA
from sklearn.manifold import TSNE
from threadpoolctl import threadpool_limits  # type: ignore[import-untyped]  # scikit-learn's
from torch import Tensor

MOST_POINTS = 1500
"""Images in the picture; more are neither seen apart nor drawn in time. Our choice."""
PLACES = ["x_before", "y_before", "x_after", "y_after"]
"""Columns of the picture."""
_FEWEST_FOR_TSNE = 30


def draw_picture(points: pd.DataFrame, before: Tensor, after: Tensor, *, seed: int) -> pd.DataFrame:
    """Where each image lies among the others, before and after.

    Args:
        points: Columns file, part, label; one row per image.
        before: Embeddings by the backbone as it came, (N, width).
        after: Features F(x) of the adapted model, (N, d).
        seed: Decides which images are shown and how t-SNE begins.

    Returns:
        At most `MOST_POINTS` of the rows, with the columns `PLACES`.
    """
    shown = _choose(points, seed)
    table = points.iloc[shown].reset_index(drop=True)
    for name, vectors in (("before", before), ("after", after)):
        places = _flatten(vectors[torch.from_numpy(shown)], seed)
        table[f"x_{name}"], table[f"y_{name}"] = places[:, 0], places[:, 1]
    return table


def _choose(points: pd.DataFrame, seed: int) -> NDArray[np.int64]:
    """Rows to show: all labelled target images that fit, and a fair share of the other parts."""
    order = np.random.default_rng(seed).permutation(len(points))
    first = (points["part"].to_numpy()[order] != "labeled").argsort(kind="stable")
    return np.sort(order[first][:MOST_POINTS])


def _flatten(vectors: Tensor, seed: int) -> NDArray[np.float64]:
    """Two numbers per row: t-SNE of cosine distances, or principal components where there are few rows."""
    rows = torch.nn.functional.normalize(vectors.double(), dim=1).numpy()
    if len(rows) < _FEWEST_FOR_TSNE:
        wide = np.pad(rows, ((0, 0), (0, max(0, 2 - rows.shape[1]))))
        few: NDArray[np.float64] = PCA(2, random_state=seed).fit_transform(wide)
        return few
    if rows.shape[1] > 50:
        rows = PCA(min(50, len(rows)), random_state=seed, svd_solver="randomized").fit_transform(rows)
    perplexity = min(30.0, (len(rows) - 1) / 3)
    tsne = TSNE(2, perplexity=perplexity, init="pca", random_state=seed, n_jobs=1)
    with threadpool_limits(1):  # its threads wait for each other at every step: 37 s for 4 s of work on two busy cores
        places: NDArray[np.float64] = tsne.fit_transform(rows)
    return places
