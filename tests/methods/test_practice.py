"""The classifiers of scikit-learn: what each adds to the plain one, and the problem that each is for."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from sklearn.linear_model import LogisticRegression
from tests.methods.test_mixture import some_rows

from qurate.config import MethodConfig, NetworkConfig
from qurate.methods import build_method
from qurate.methods.fitted import FittedMethod, Rows
from qurate.networks.heads import build_network


def make(name: str, **numbers: Any) -> FittedMethod:
    network = build_network(NetworkConfig(features=8), n_classes=3, input_width=6, seed=0)
    method = build_method(MethodConfig.of(name, **numbers), network, seed=0)
    assert isinstance(method, FittedMethod)
    return method


def objective(weights: Any, bias: Any, rows: Rows, of_target: float, c: float = 10.0) -> float:
    """What the regression minimises, by a plain loop."""
    total = float((weights**2).sum()) / 2
    for i, (row, label) in enumerate(zip(rows.labeled, rows.labels, strict=True)):
        logits = [float(weights[k] @ row + bias[k]) for k in range(len(bias))]
        weight = of_target if i >= len(rows.source) else 1.0
        total += c * weight * (math.log(sum(map(math.exp, logits))) - logits[label])
    return total


@pytest.mark.parametrize(("name", "of_target"), [("logistic", 1.0), ("logistic_weighted", 20 / 6)])
def test_the_regression_minimises_its_objective(name: str, of_target: float) -> None:
    rows = some_rows()
    fitted = make(name).fit(rows).estimator  # type: ignore[attr-defined]  # of scikit-learn
    best = objective(fitted.coef_, fitted.intercept_, rows, of_target)
    rng = np.random.default_rng(0)
    for _ in range(20):
        change = rng.normal(size=fitted.coef_.shape) * 0.05
        assert objective(fitted.coef_ + change, fitted.intercept_, rows, of_target) > best - 1e-4
    assert objective(fitted.coef_, fitted.intercept_, rows, 1.0 + 20 / 6 - of_target) != pytest.approx(best)


def test_the_weighted_one_of_equal_domains_is_the_plain_one() -> None:
    rows = some_rows()
    equal = rows._replace(source=rows.source[:6], source_labels=rows.source_labels[:6])
    plain, weighted = (
        make(name).fit(equal).predict_proba(rows.unlabeled) for name in ("logistic", "logistic_weighted")
    )
    np.testing.assert_allclose(plain, weighted, atol=1e-6)


def test_centring_takes_a_shift_of_a_domain_away() -> None:
    rows, shift = some_rows(), np.array([1, -2, 3, 0, 0.5, 4], np.float32)
    moved = rows._replace(target=rows.target + shift, unlabeled=rows.unlabeled + shift)
    found = make("logistic_centered").fit(rows).predict_proba(rows.unlabeled)
    again = make("logistic_centered").fit(moved).predict_proba(moved.unlabeled)
    np.testing.assert_allclose(found, again, atol=1e-3)
    centered, mean = rows.centered()
    assert np.abs(np.concatenate([centered.target, centered.unlabeled]).mean(axis=0)).max() < 1e-6
    np.testing.assert_allclose(centered.target + mean, rows.target, atol=1e-6)


def test_one_neighbour_is_the_nearest_row_and_several_vote_by_their_distance() -> None:
    rows = some_rows()
    one = make("knn", neighbors=1).fit(rows).predict_proba(rows.unlabeled)
    three = make("knn", neighbors=3).fit(rows).predict_proba(rows.unlabeled)
    for i, row in enumerate(rows.unlabeled):
        away = sorted(
            (float(np.linalg.norm(row - other)), label) for other, label in zip(rows.labeled, rows.labels, strict=True)
        )
        assert one[i].argmax() == away[0][1]
        votes = np.zeros(3)
        for distance, label in away[:3]:
            votes[label] += 1 / distance
        np.testing.assert_allclose(three[i], votes / votes.sum(), rtol=1e-3)


def test_labels_spread_to_the_fixed_point() -> None:
    """F = (1 - alpha) (I - alpha S)^-1 Y, of scikit-learn's S, rows normalised."""
    rows = some_rows()
    method = make("label_spreading", neighbors=5, clamping=0.6)
    found = method.fit(rows).predict_proba(rows.unlabeled)
    everyone = np.concatenate([rows.labeled, rows.unlabeled]).astype(float)
    distances = np.linalg.norm(everyone[:, None] - everyone[None], axis=2)
    edges = np.zeros(distances.shape)
    for i, row in enumerate(distances):
        edges[i, np.argsort(row)[:5]] = 1  # itself among them
    np.fill_diagonal(edges, 0)
    degrees = np.sqrt(edges.sum(axis=0))
    degrees[degrees == 0] = 1
    spread = edges / degrees[:, None] / degrees[None]
    labels = np.concatenate([np.eye(3)[rows.labels], np.zeros((30, 3))])
    solved = np.linalg.solve(np.eye(len(edges)) - 0.6 * spread, labels)[26:]
    np.testing.assert_allclose(found, solved / solved.sum(axis=1, keepdims=True), atol=1e-4)


def test_rows_that_no_label_reaches_and_rows_near_them_have_equal_probabilities() -> None:
    rows = some_rows()
    far = np.eye(6, dtype=np.float32)[[5] * 20] + np.arange(20, dtype=np.float32)[:, None] * 1e-4
    classifier = make("label_spreading", neighbors=4).fit(rows._replace(unlabeled=far))
    for one in (far, far + np.float32(1e-5)):
        np.testing.assert_allclose(classifier.predict_proba(one), 1 / 3)


def test_self_training_without_confident_labels_is_the_regression() -> None:
    rows = some_rows()
    plain = make("logistic").fit(rows).predict_proba(rows.unlabeled)
    never = make("self_training", threshold=0.999999).fit(rows).predict_proba(rows.unlabeled)
    np.testing.assert_allclose(plain, never, atol=1e-6)
    always = make("self_training", threshold=0.01, rounds=1).fit(rows)
    labels = np.concatenate([rows.labels, plain.argmax(axis=1)])
    known = LogisticRegression(C=10.0, max_iter=1000).fit(np.concatenate([rows.labeled, rows.unlabeled]), labels)
    np.testing.assert_allclose(always.predict_proba(rows.unlabeled), known.predict_proba(rows.unlabeled), atol=1e-2)


def test_a_class_without_labels_has_probability_0_and_the_others_their_places() -> None:
    rows = some_rows()
    kept, target = rows.source_labels != 1, rows.target_labels != 1
    fewer = rows._replace(
        source=rows.source[kept],
        source_labels=rows.source_labels[kept],
        target=rows.target[target],
        target_labels=rows.target_labels[target],
    )
    for name in ("knn", "logistic", "logistic_weighted", "logistic_centered", "label_spreading", "self_training"):
        found = make(name).fit(fewer).predict_proba(rows.unlabeled)
        assert found.shape == (30, 3)
        assert (found[:, 1] == 0).all()
