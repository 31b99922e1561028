"""A Gaussian mixture with a Laplacian over neighbours: D_u is labelled all at once, without gradients."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.sparse import csr_array, diags_array, eye_array
from scipy.special import log_softmax, softmax, xlogy
from sklearn.linear_model import LogisticRegression

from qurate.config import MethodConfig
from qurate.methods.fitted import Array, Classifier, FittedMethod, Rows, Transduced
from qurate.methods.practice import fit_weighted
from qurate.neighbors import nearest_rows
from qurate.runtime.validation import Positive, Rate, Weight

Numbers = NDArray[Any]


@dataclass(frozen=True)
class MixtureConfig(MethodConfig):
    """The numbers of the mixture."""

    name: str = field(init=False, default="mixture")
    neighbors: Positive = 3
    """Nearest target rows in the graph. Paper (Zanella et al., 2024): 3."""
    likelihood_weight: Weight = 10.0
    """a, of the log-likelihood, which is a mean over the d numbers of a row. Our choice; paper (Zanella et al., 2024):
    d / 50."""
    laplacian_weight: Weight = 3.0
    """b, of the agreement of neighbours. Our choice."""
    prior_weight: Weight = 1.0
    """lambda, of the prediction from source and labelled target. Paper (Zanella et al., 2024): 1 without and 0.5 with
    labelled images."""
    source_weight: Weight = 0.1
    """How much the source counts in means and variances, where D_u counts 1. Our choice."""
    target_weight: Weight = 0.1
    """How much the labelled target counts there. Our choice."""
    inverse_regularization: Rate = 10.0
    """C of the logistic regression that makes the prediction. Our choice."""
    rounds: Positive = 10
    """Rounds of assignments, means and variances. Paper (Zanella et al., 2024): 10."""
    assignment_steps: Positive = 5
    """Updates of the assignments in each. Paper (Zanella et al., 2024): 5."""


class Sums(NamedTuple):
    """What means and variances are made of.

    Args:
        totals: sum_i w_ik, (K,).
        rows: sum_i w_ik x_i, (K, d).
        squares: sum_ik w_ik x_i^2, (d,).
    """

    totals: Numbers
    rows: Numbers
    squares: Numbers


class Problem(NamedTuple):
    """What does not change while the mixture is fitted.

    Args:
        rows: D_u, (N_u, d).
        log_prior: log of the prediction y^ from source and labelled target, (N_u, K).
        labeled: D_s and D_t, (N_l, d).
        labels: One-hot, (N_l, K).
        counts: How much each of them counts, (N_l,).
        sums: What they add to means and variances.
        graph: W among D_u, (N_u, N_u).
        pull: b * sum over j in D_t of W_ij y_j, (N_u, K).
        config: The weights.
    """

    rows: Numbers
    log_prior: Numbers
    labeled: Numbers
    labels: Numbers
    counts: Numbers
    sums: Sums
    graph: csr_array
    pull: Numbers
    config: MixtureConfig


def neighbor_graph(rows: Array, count: int) -> csr_array:
    """Which rows are alike: W = (I + D^-1/2 A D^-1/2) / 2, with A_ij = 1 where one is among the other's nearest.

    Its eigenvalues are in [0, 1], so z'Wz is convex.

    Args:
        rows: (N, d) of unit length.
        count: How many nearest, by cosine.
    """
    unit = torch.from_numpy(rows)
    nearest = nearest_rows(unit, unit, count, torch.arange(len(unit))).numpy()
    starts = np.repeat(np.arange(len(rows)), nearest.shape[1])
    directed = csr_array((np.ones(nearest.size), (starts, nearest.ravel())), shape=(len(rows), len(rows)))
    edges = directed.maximum(directed.T)
    root = diags_array(1 / np.sqrt(np.maximum(edges.sum(axis=1), 1.0)))
    return csr_array((eye_array(len(rows)) + root @ edges @ root) / 2)


def log_likelihood(rows: Numbers, means: Numbers, variances: Numbers) -> Numbers:
    """l_ik = -1 / (2 d) * sum over numbers n of [(x_in - mu_kn)^2 / v_n + log v_n], (N, K)."""
    centers = means / variances
    squares = np.einsum("in,in,n->i", rows, rows, 1 / variances)[:, None]
    squares = squares - rows @ (2 * centers).T + (means * centers).sum(axis=1)
    found: Numbers = -(squares + np.log(variances).sum()) / (2 * rows.shape[1])
    return found


def weighted_sums(rows: Numbers, weights: Numbers) -> Sums:
    """The sums of rows, (N, d), by their weights for each class, (N, K)."""
    squares = np.einsum("i,in,in->n", weights.sum(axis=1), rows, rows)  # of many rows, without a copy of them
    return Sums(weights.sum(axis=0), weights.T @ rows, squares)


def update_gaussians(problem: Problem, assigned: Numbers) -> tuple[Numbers, Numbers]:
    """Means mu_k and the variances v that all classes share, at which the objective is highest for these assignments.

    mu_k = sum_i w_ik x_i / sum_i w_ik;  v = sum_ik w_ik (x_i - mu_k)^2 / sum_ik w_ik

    over D_u with w = z, and over D_s and D_t with w = y times what a row counts. No variance is below 1e-6 of the mean
    one.

    Args:
        problem: The rows.
        assigned: z, (N_u, K).
    """
    found = weighted_sums(problem.rows, assigned)
    totals, rows, squares = (one + other for one, other in zip(found, problem.sums, strict=True))
    means = rows / np.maximum(totals, 1e-12)[:, None]
    spread = squares - totals @ means**2
    variances = np.maximum(spread / totals.sum(), 0.0)
    return means, np.maximum(variances, 1e-6 * variances.mean() + 1e-12)


def update_assignments(problem: Problem, assigned: Numbers, likelihood: Numbers) -> Numbers:
    """z_i of D_u, all at once: z_ik proportional to y^_ik^lambda exp(a l_ik + b sum_j W_ij z_jk).

    The objective cannot fall: it is above the one in which z'Wz is replaced by its tangent, of which this is the
    maximum.

    Args:
        problem: The rows.
        assigned: z before, (N_u, K).
        likelihood: l of D_u, (N_u, K).
    """
    config = problem.config
    agreement = config.laplacian_weight * (problem.graph @ assigned) + problem.pull
    logits = config.likelihood_weight * likelihood + config.prior_weight * problem.log_prior + agreement
    found: Numbers = softmax(logits, axis=1)
    return found


def objective(problem: Problem, assigned: Numbers, means: Numbers, variances: Numbers) -> float:
    """What no update lowers.

    J = sum over D_u of [a z_i.l_i + lambda z_i.log y^_i + H(z_i)] + a sum over D_s, D_t of w_i l_i,y_i
        + b / 2 sum over D_t, D_u of W_ij z_i.z_j (z of D_t is its labels; their own terms are constant and left out)

    Args:
        problem: The rows and weights.
        assigned: z, (N_u, K).
        means: mu, (K, d).
        variances: v, (d,).
    """
    config = problem.config
    likelihood = config.likelihood_weight * log_likelihood(problem.rows, means, variances)
    labeled = config.likelihood_weight * log_likelihood(problem.labeled, means, variances)
    each = assigned * (likelihood + config.prior_weight * problem.log_prior + problem.pull) - xlogy(assigned, assigned)
    smooth = config.laplacian_weight / 2 * (assigned * (problem.graph @ assigned)).sum()
    return float(each.sum() + smooth + (problem.counts[:, None] * problem.labels * labeled).sum())


class Posterior:
    """What the mixture says of rows that it was not fitted to: y^_k^lambda exp(a l_k), normalised: without neighbours.

    Args:
        means: mu, (K, d).
        variances: v, (d,).
        prior: Makes y^.
        config: The weights.
    """

    def __init__(self, means: Numbers, variances: Numbers, prior: Classifier, config: MixtureConfig) -> None:
        self.means, self.variances, self.prior, self.config = means, variances, prior, config

    def predict_proba(self, rows: Array, /) -> Numbers:
        """Class probabilities, (N, d) to (N, K)."""
        likelihood = self.config.likelihood_weight * log_likelihood(rows.astype(np.float64), self.means, self.variances)
        found: Numbers = softmax(likelihood + self.config.prior_weight * log_of(self.prior.predict_proba(rows)), axis=1)
        return found


def log_of(probabilities: Numbers) -> Numbers:
    """Their logarithms, of at least 1e-12."""
    found: Numbers = np.log(np.maximum(probabilities.astype(np.float64), 1e-12))
    return found


class Mixture(FittedMethod):
    """A Gaussian mixture with a Laplacian over neighbours; the objective and its updates are the functions above.

    Source and labelled target take the place of TransCLIP's text prototypes: a logistic regression on both makes the
    prediction y^ that the assignments are held to, and both count in the means. LaplacianShot (Ziko et al., 2020) is
    kin: its classes are fixed means, and it has no y^.

    Paper: Zanella, Gerin and Ben Ayed, "Boosting vision-language models with transduction", 2024 (TransCLIP).
    """

    Config = MixtureConfig
    config: MixtureConfig

    def fit(self, rows: Rows) -> Classifier:
        """The classifier of these rows."""
        problem, prior = self.pose(rows)
        config, assigned = self.config, np.exp(log_softmax(problem.log_prior, axis=1))
        counted = assigned
        if problem.counts.any():  # the first means and variances are those of the labelled rows
            counted = np.zeros_like(assigned)
        for _ in range(config.rounds):
            means, variances = update_gaussians(problem, counted)
            likelihood = log_likelihood(problem.rows, means, variances)
            for _ in range(config.assignment_steps):
                assigned = update_assignments(problem, assigned, likelihood)
            counted = assigned
        return Transduced(rows.unlabeled, assigned, Posterior(means, variances, prior, config))

    def pose(self, rows: Rows) -> tuple[Problem, Classifier]:
        """The problem of these rows, and the classifier that makes y^."""
        config, n_target = self.config, len(rows.target)
        prior = fit_weighted(LogisticRegression(C=config.inverse_regularization, max_iter=200), rows)
        graph = neighbor_graph(np.concatenate([rows.target, rows.unlabeled]), config.neighbors)
        labels = np.eye(rows.n_classes)[rows.labels]
        n_source, n_unlabeled = len(rows.source), len(rows.unlabeled)
        shares = [config.source_weight / n_source, config.target_weight / n_target]
        counts = n_unlabeled * np.repeat(shares, [n_source, n_target])
        labeled = rows.labeled
        problem = Problem(
            rows=rows.unlabeled.astype(np.float64),
            log_prior=log_of(prior.predict_proba(rows.unlabeled)),
            labeled=labeled,
            labels=labels,
            counts=counts,
            sums=weighted_sums(labeled.astype(np.float64), labels * counts[:, None]),
            graph=graph[n_target:, n_target:],
            pull=config.laplacian_weight * (graph[n_target:, :n_target] @ labels[n_source:]),
            config=config,
        )
        return problem, prior
