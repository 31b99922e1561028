"""The mixture: its equations against plain loops, its objective, and what it reduces to."""

from __future__ import annotations

import dataclasses
import itertools
import math

import numpy as np
import pytest
from numpy.typing import NDArray
from sklearn.neighbors import NearestCentroid

from qurate.config import MethodConfig, NetworkConfig
from qurate.methods import build_method
from qurate.methods.fitted import Rows
from qurate.methods.mixture import (
    Mixture,
    MixtureConfig,
    Problem,
    log_likelihood,
    neighbor_graph,
    objective,
    update_assignments,
    update_gaussians,
)
from qurate.networks.heads import build_network

Numbers = NDArray[np.float64]


def some_rows(seed: int = 0, width: int = 6, k: int = 3) -> Rows:
    rng = np.random.default_rng(seed)
    means = rng.normal(size=(k, width))

    def draw(count: int, shift: float) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
        labels = np.arange(count) % k
        rows = means[labels] + shift + rng.normal(size=(count, width))
        return (rows / np.linalg.norm(rows, axis=1, keepdims=True)).astype(np.float32), labels

    return Rows(*draw(20, 0.0), *draw(6, 0.4), draw(30, 0.4)[0], k)


def mixture(**numbers: float) -> Mixture:
    network = build_network(NetworkConfig(features=8), n_classes=3, input_width=6, seed=0)
    method = build_method(MethodConfig.of("mixture", **numbers), network, seed=0)
    assert isinstance(method, Mixture)
    return method


def posed(**numbers: float) -> Problem:
    return mixture(**numbers).pose(some_rows())[0]


def drawn(problem: Problem) -> Numbers:
    found: Numbers = np.random.default_rng(1).dirichlet(np.ones(3), len(problem.rows))
    return found


def test_the_graph_equals_the_plain_loop() -> None:
    rows = some_rows().unlabeled
    n, count = len(rows), 3
    nearest = [set(sorted((j for j in range(n) if j != i), key=lambda j: -rows[i] @ rows[j])[:count]) for i in range(n)]
    edges = [[float(j in nearest[i] or i in nearest[j]) for j in range(n)] for i in range(n)]
    expected = np.zeros((n, n))
    for i in range(n):
        for j in range(n):
            normalized = edges[i][j] / math.sqrt(sum(edges[i]) * sum(edges[j]))
            expected[i, j] = ((i == j) + normalized) / 2
    found = neighbor_graph(rows, count).toarray()
    np.testing.assert_allclose(found, expected, atol=1e-12)
    assert np.linalg.eigvalsh(found).min() > -1e-12  # so z'Wz is convex


def test_the_likelihood_equals_the_plain_loop() -> None:
    rng = np.random.default_rng(0)
    rows, means, variances = rng.normal(size=(5, 4)), rng.normal(size=(3, 4)), rng.uniform(0.5, 2, 4)
    found = log_likelihood(rows, means, variances)
    for i in range(5):
        for k in range(3):
            each = [(rows[i, n] - means[k, n]) ** 2 / variances[n] + math.log(variances[n]) for n in range(4)]
            assert found[i, k] == pytest.approx(-sum(each) / (2 * 4))


def test_means_and_variances_equal_the_plain_loop() -> None:
    problem = posed()
    assigned = drawn(problem)
    means, variances = update_gaussians(problem, assigned)
    everyone = [(row, z) for row, z in zip(problem.rows, assigned, strict=True)]
    everyone += [
        (row, y * count) for row, y, count in zip(problem.labeled, problem.labels, problem.counts, strict=True)
    ]
    squares, total = np.zeros(6), 0.0
    for k in range(3):
        weight = sum(w[k] for _, w in everyone)
        mean = sum(w[k] * row for row, w in everyone) / weight
        np.testing.assert_allclose(means[k], mean)
        squares += sum(w[k] * (row - mean) ** 2 for row, w in everyone)
        total += weight
    np.testing.assert_allclose(variances, squares / total)


def test_assignments_equal_the_plain_loop() -> None:
    problem = posed(laplacian_weight=1.7, prior_weight=0.6, likelihood_weight=4.0)
    rows, method = some_rows(), mixture()
    before, whole = drawn(problem), neighbor_graph(np.concatenate([rows.target, rows.unlabeled]), 3).toarray()
    likelihood = log_likelihood(problem.rows, *update_gaussians(problem, before))
    found = update_assignments(problem, before, likelihood)
    prior = method.pose(rows)[1].predict_proba(rows.unlabeled)
    known = [np.eye(3)[label] for label in rows.target_labels] + list(before)  # D_t, then D_u
    for i in range(len(before)):
        powers = []
        for k in range(3):
            agreement = sum(whole[6 + i, j] * known[j][k] for j in range(len(known)))
            powers.append(prior[i, k] ** 0.6 * math.exp(4.0 * likelihood[i, k] + 1.7 * agreement))
        np.testing.assert_allclose(found[i], np.array(powers) / sum(powers), rtol=1e-5)


def test_the_objective_equals_the_plain_loop() -> None:
    problem = posed(laplacian_weight=1.7, prior_weight=0.6, likelihood_weight=4.0)
    assigned = drawn(problem)
    means, variances = update_gaussians(problem, assigned)
    fits, of_labeled = (log_likelihood(rows, means, variances) for rows in (problem.rows, problem.labeled))
    total = 0.0
    for i, z in enumerate(assigned):
        for k in range(3):
            total += z[k] * (4.0 * fits[i, k] + 0.6 * problem.log_prior[i, k] + problem.pull[i, k] - math.log(z[k]))
        total += sum(1.7 / 2 * problem.graph[i, j] * (z @ other) for j, other in enumerate(assigned))
    for i, y in enumerate(problem.labels):
        total += 4.0 * problem.counts[i] * of_labeled[i] @ y
    assert objective(problem, assigned, means, variances) == pytest.approx(total)


@pytest.mark.parametrize("weight", [0.0, 3.0, 50.0])
def test_no_update_lowers_the_objective(weight: float) -> None:
    problem = posed(laplacian_weight=weight)
    assigned = drawn(problem)
    means, variances = update_gaussians(problem, assigned)
    values = [objective(problem, assigned, means, variances)]
    for _ in range(6):
        likelihood = log_likelihood(problem.rows, means, variances)
        for _ in range(3):
            assigned = update_assignments(problem, assigned, likelihood)
            values.append(objective(problem, assigned, means, variances))
        means, variances = update_gaussians(problem, assigned)
        values.append(objective(problem, assigned, means, variances))
    assert all(after >= before - 1e-9 for before, after in itertools.pairwise(values))
    assert values[-1] > values[0] + 0.1


def test_one_update_without_neighbours_and_prior_is_the_nearest_class_mean_by_scaled_distance() -> None:
    rows = some_rows()
    n_source, n_target = len(rows.source), len(rows.target)
    weights = {"source_weight": n_source / 30, "target_weight": n_target / 30}  # every labelled row counts 1
    only = {"laplacian_weight": 0.0, "prior_weight": 0.0, "rounds": 1, "assignment_steps": 1}
    found = mixture(**only, **weights).fit(rows).predict_proba(rows.unlabeled).argmax(axis=1)
    labeled, labels = rows.labeled.astype(float), rows.labels
    inside = np.concatenate([labeled[labels == k] - labeled[labels == k].mean(axis=0) for k in range(3)])
    scale = np.sqrt((inside**2).mean(axis=0))
    known = NearestCentroid().fit(labeled / scale, labels).predict(rows.unlabeled / scale)
    assert found.tolist() == known.tolist()
    assert len(set(known.tolist())) == 3


def test_without_likelihood_and_neighbours_it_is_the_regression() -> None:
    rows = some_rows()
    method = mixture(likelihood_weight=0.0, laplacian_weight=0.0)
    expected = method.pose(rows)[1].predict_proba(rows.unlabeled)
    np.testing.assert_allclose(method.fit(rows).predict_proba(rows.unlabeled), expected, rtol=1e-5)


def test_other_rows_have_the_posterior_without_neighbours() -> None:
    rows = some_rows()
    plain = mixture(laplacian_weight=0.0).fit(rows)
    own = plain.predict_proba(rows.unlabeled)
    moved = plain.predict_proba(rows.unlabeled + np.float32(1e-6))
    np.testing.assert_allclose(moved, own, atol=0.05)  # assignments lag the means by one update
    with_neighbors = mixture(laplacian_weight=30.0).fit(rows)
    found = with_neighbors.predict_proba(rows.unlabeled)
    assert np.abs(found - with_neighbors.predict_proba(rows.unlabeled + np.float32(1e-6))).max() > 0.2


def test_a_class_without_any_row_stays_finite() -> None:
    rows = some_rows()
    kept, target = rows.source_labels != 2, rows.target_labels != 2
    fewer = rows._replace(
        source=rows.source[kept],
        source_labels=rows.source_labels[kept],
        target=rows.target[target],
        target_labels=rows.target_labels[target],
    )
    assert np.isfinite(mixture().fit(fewer).predict_proba(rows.unlabeled)).all()


def test_where_no_labelled_row_counts_it_begins_with_the_prediction() -> None:
    rows = some_rows()
    found = mixture(source_weight=0.0, target_weight=0.0, laplacian_weight=0.0, rounds=1, assignment_steps=1).fit(rows)
    problem = posed(source_weight=0.0, target_weight=0.0, laplacian_weight=0.0)
    assigned = np.exp(problem.log_prior)
    likelihood = log_likelihood(problem.rows, *update_gaussians(problem, assigned))
    expected = update_assignments(problem, assigned, likelihood)
    np.testing.assert_allclose(found.predict_proba(rows.unlabeled), expected, rtol=1e-4)


def test_a_row_of_zeros_is_nobodys_nearest() -> None:
    rows = some_rows().unlabeled
    rows[4] = 0
    found = neighbor_graph(rows, 3).toarray()
    assert np.isfinite(found).all()
    assert (found[4] > 0).sum() == 4, "itself and the three that it is compared with"


def test_its_numbers_are_checked() -> None:
    assert dataclasses.asdict(MixtureConfig())["name"] == "mixture"
    with pytest.raises(ValueError, match=r"MixtureConfig\.laplacian_weight"):
        MixtureConfig(laplacian_weight=-1.0)
