"""PACE: CORAL by its property, the weights of its loss, and the ensemble."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from sklearn.linear_model import LogisticRegression
from tests.methods.test_mixture import some_rows

from qurate.config import MethodConfig, NetworkConfig
from qurate.errors import ConfigError
from qurate.methods import build_method
from qurate.methods.pace import PACE, Ensemble, align, find_members, unit
from qurate.networks.backbones import join_vectors
from qurate.networks.heads import build_network


def pace(**numbers: Any) -> PACE:
    network = build_network(NetworkConfig(features=8), n_classes=3, input_width=6, seed=0)
    method = build_method(MethodConfig.of("pace", **numbers), network, seed=0)
    assert isinstance(method, PACE)
    return method


def test_aligned_rows_have_the_covariance_of_the_others_and_mean_0() -> None:
    rng = np.random.default_rng(0)
    labeled = rng.normal(size=(200, 5)) @ rng.normal(size=(5, 5)) + 3
    unlabeled = rng.normal(size=(300, 5)) @ rng.normal(size=(5, 5)) - 1
    aligned = align(labeled, unlabeled, 1e-9)
    np.testing.assert_allclose(aligned.mean(axis=0), 0, atol=1e-9)
    np.testing.assert_allclose(np.cov(aligned.T), np.cov(unlabeled.T), atol=1e-6)
    np.testing.assert_allclose(align(labeled, labeled, 0.1), labeled - labeled.mean(axis=0), atol=1e-9)


def test_the_rows_of_fewer_samples_than_numbers_are_aligned_by_the_ridge() -> None:
    rng = np.random.default_rng(0)
    assert np.isfinite(align(rng.normal(size=(4, 9)), rng.normal(size=(5, 9)), 0.01)).all()


def test_one_row_has_no_covariance_but_the_ridge() -> None:
    rng = np.random.default_rng(0)
    labeled = rng.normal(size=(50, 4))
    covariance = np.cov(align(labeled, rng.normal(size=(1, 4)), 0.5).T)
    whitened = np.linalg.solve(np.cov(labeled.T) + 0.5 * np.eye(4), np.cov(labeled.T))
    np.testing.assert_allclose(np.linalg.eigvals(covariance), 0.5 * np.linalg.eigvals(whitened))


@pytest.mark.parametrize(
    ("name", "weights"),
    [
        ("first_weights", (0.4,)),
        ("first_weights", (0.4, 0.2, 0.9)),
        ("first_weights", (0.4, 0.0)),
        ("weights", (0.1, 0.05)),
        ("weights", (0.1, 0.0, 0.9)),
    ],
)
def test_its_weights_are_checked(name: str, weights: tuple[float, ...]) -> None:
    with pytest.raises(ConfigError, match=rf"PACEConfig\.{name} must be (two|three) weights, the second .* positive"):
        MethodConfig.of("pace", **{name: weights})


@pytest.mark.parametrize("widths", [(7,), (5, 8), (12, 12, 20)])
def test_backbones_side_by_side_are_found(widths: tuple[int, ...]) -> None:
    rng = torch.Generator().manual_seed(0)
    rows = unit(join_vectors([torch.rand(30, width, generator=rng) for width in widths]).numpy())
    found = find_members(rows.astype(np.float32))
    assert [part.stop - part.start for part in found] == list(widths)
    assert [found[0].start, found[-1].stop] == [0, sum(widths)]


def test_backbones_of_rows_in_half_precision_are_found_too() -> None:
    rng = torch.Generator().manual_seed(0)
    rows = join_vectors([torch.rand(20_000, width, generator=rng) for width in (40, 60)])
    stored = unit(rows.half().float().numpy()).astype(np.float32)
    assert find_members(stored) == [slice(0, 40), slice(40, 100)]
    alone = torch.randn(20_000, 100, generator=rng).numpy()
    assert find_members(unit(alone).astype(np.float32)) == [slice(0, 100)]


def test_a_column_of_zeros_at_the_seam_belongs_to_one_of_them() -> None:
    rng = torch.Generator().manual_seed(0)
    first, second = torch.rand(30, 5, generator=rng), torch.rand(30, 6, generator=rng)
    first[:, -1] = second[:, 0] = 0
    found = find_members(unit(join_vectors([first, second]).numpy()).astype(np.float32))
    assert found == [slice(0, 4), slice(4, 11)]


def test_without_pseudo_labels_it_is_a_regression_on_aligned_rows_with_the_weights_of_the_paper() -> None:
    rows = some_rows()
    n_source, n_target = len(rows.source), len(rows.target)
    alone = pace(thresholds=(0.999999,), rounds=1, source_threshold=0.0, weights=(0.4, 0.2, 0.9))
    aligned = align(rows.labeled * np.sqrt(6.0), rows.unlabeled * np.sqrt(6.0), 0.01)
    weights = np.array([0.4 / n_source] * n_source + [0.2 / n_target] * n_target)
    weights *= len(weights) / weights.sum()
    known = LogisticRegression(C=30.0, fit_intercept=False, max_iter=200)
    known.fit(unit(aligned).astype(np.float32), rows.labels, weights)
    centered = unit(rows.unlabeled - rows.unlabeled.mean(axis=0)).astype(np.float32)
    found = alone.fit(rows).predict_proba(rows.unlabeled)
    np.testing.assert_allclose(found, known.predict_proba(centered), atol=5e-3)


def test_pseudo_labels_are_taken_above_the_threshold_and_source_rows_that_still_fit() -> None:
    rows, method = some_rows(), pace(thresholds=(0.6,), rounds=1, source_threshold=0.7)
    seen: list[tuple[NDArray[np.int64], NDArray[np.float64]]] = []
    regress = method.regress

    def record(estimator: LogisticRegression, x: Any, labels: Any, weights: Any) -> None:
        if seen:  # what the first regression says decides
            before = [estimator.predict_proba(x[:20]).max(1) > 0.7, estimator.predict_proba(x[26:])]
            assert ((weights[:20] > 0) == before[0]).all()
            assert ((weights[26:] > 0) == (before[1].max(1) > 0.6)).all()
            assert (labels[26:] == before[1].argmax(1)).all()
            assert weights[weights > 0].min() == pytest.approx(min(0.1 / 20, 0.05 / 6, 0.9 / 30))
            assert 0 < (weights[26:] > 0).sum() < 30
        seen.append((labels, weights))
        regress(estimator, x, labels, weights)

    method.regress = record  # type: ignore[method-assign, assignment]  # to look at what it is given
    method.fit(rows)
    assert len(seen) == 2


def test_a_class_of_which_no_row_counts_any_more_stays_in_the_regression() -> None:
    rows, target = some_rows(), np.array([0, 1, 3, 4])  # class 2 has no labelled target
    fewer = rows._replace(target=rows.target[target], target_labels=rows.target_labels[target])
    found = pace(source_threshold=1.0, thresholds=(0.99999,)).fit(fewer).predict_proba(rows.unlabeled)
    np.testing.assert_allclose(found.sum(axis=1), 1, rtol=1e-5)
    assert (found[:, 2] > 0).all()


def test_the_ensemble_is_the_mean_of_its_members() -> None:
    class Says:
        def __init__(self, *probabilities: float) -> None:
            self.probabilities = probabilities

        def predict_proba(self, rows: NDArray[np.float32]) -> NDArray[np.float64]:
            return np.tile(self.probabilities, (len(rows), 1))

    both = Ensemble([Says(1.0, 0.0), Says(0.2, 0.8)]).predict_proba(np.zeros((2, 3), np.float32))
    np.testing.assert_allclose(both, [[0.6, 0.4]] * 2)
    rows = some_rows()
    source, target, unlabeled = (
        np.concatenate([part, part], axis=1) * np.float32(0.5**0.5)
        for part in (rows.source, rows.target, rows.unlabeled)
    )
    twice = rows._replace(source=source, target=target, unlabeled=unlabeled)
    assert len(find_members(twice.labeled)) == 2
    alone = pace().fit(rows).predict_proba(rows.unlabeled)
    np.testing.assert_allclose(pace().fit(twice).predict_proba(twice.unlabeled), alone, atol=1e-3)
