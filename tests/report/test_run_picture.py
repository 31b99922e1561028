from __future__ import annotations

import pandas as pd
import pytest
import torch
from sklearn.manifold import TSNE
from threadpoolctl import threadpool_info, threadpool_limits  # type: ignore[import-untyped]  # scikit-learn's

from qurate.report import run_figures as picture


def points(source: int, labeled: int) -> pd.DataFrame:
    parts = ["source"] * source + ["labeled"] * labeled
    return pd.DataFrame({"file": range(len(parts)), "part": parts, "label": "a"})


def vectors(count: int) -> torch.Tensor:
    return torch.randn(count, 5, generator=torch.Generator().manual_seed(0))


def test_of_many_images_all_labelled_ones_are_drawn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(picture, "MOST_POINTS", 20)
    drawn = picture.draw_picture(points(60, 8), vectors(68), vectors(68), seed=0)
    assert drawn["part"].value_counts().to_dict() == {"source": 12, "labeled": 8}
    again = picture.draw_picture(points(60, 8), vectors(68), vectors(68), seed=1)
    assert set(again["file"]) != set(drawn["file"])


def test_the_two_clusters_of_a_picture_lie_apart() -> None:
    rows = vectors(60)
    rows[:30, 0] += 20
    rows[30:, 0] -= 20
    drawn = picture.draw_picture(points(60, 0), rows, rows, seed=0)
    places = drawn[["x_after", "y_after"]].to_numpy()
    assert ((places[:30].mean(axis=0) - places[30:].mean(axis=0)) ** 2).sum() > places[:30].var(axis=0).sum()


def test_one_thread_draws(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[int] = []

    class Watched(TSNE):  # type: ignore[misc]
        def fit_transform(self, rows: object) -> object:
            seen.extend(pool["num_threads"] for pool in threadpool_info())
            return super().fit_transform(rows)

    monkeypatch.setattr(picture, "TSNE", Watched)
    with threadpool_limits(2):
        picture.draw_picture(points(40, 0), vectors(40), vectors(40), seed=0)
    assert seen
    assert set(seen) == {1}
