"""PACE: pseudo-labels, alignment of covariances, and an ensemble, on frozen embeddings."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.linear_model import LogisticRegression

from qurate.config import MethodConfig
from qurate.methods.fitted import Array, Classifier, FittedMethod, Rows
from qurate.methods.practice import OfAllClasses
from qurate.runtime.validation import Inside, Positive, Rate, Share, Weight, check

Numbers = NDArray[Any]
_FEWEST, _ENOUGH = 10, 1000
"""Rows by which backbones are told apart; the squared lengths of fewer may be equal by chance."""
_SAME = 1e-3
"""What squared lengths may differ by: ten times the rounding of rows that are stored in half precision."""


@dataclass(frozen=True)
class PACEConfig(MethodConfig):
    """The numbers of PACE."""

    name: str = field(init=False, default="pace")
    ridge: Rate = 0.01
    """Added to the diagonals of both covariances, of rows whose numbers are 1 in the mean square. Paper (Liao et al.,
    2022): 0.01."""
    first_weights: tuple[Weight, ...] = (0.4, 0.2)
    """Of source and labelled target, which is positive, before there are pseudo-labels. Paper (Liao et al., 2022): 0.4,
    0.2."""
    weights: tuple[Weight, ...] = (0.1, 0.05, 0.9)
    """Of source, labelled target, which is positive, and pseudo-labels afterwards. Paper (Liao et al., 2022): 0.1,
    0.05, 0.9."""
    thresholds: tuple[Inside, ...] = (0.9, 0.8, 0.7)
    """Probability above which a prediction of D_u becomes a label. Paper (Liao et al., 2022): 0.9, then 0.8, then
    0.7."""
    rounds: Positive = 2
    """Rounds at each threshold. Our choice; paper (Liao et al., 2022): 10, of 200 gradient steps each."""
    source_threshold: Share = 0.8
    """Probability of a class above which a source row counts, once there are pseudo-labels. Paper (Liao et al., 2022):
    0.8."""
    inverse_regularization: Rate = 30.0
    """C of each regression, per row. Our choice; paper (Liao et al., 2022): no decay, but few steps."""
    iterations: Positive = 200
    """Most iterations of L-BFGS in each. Our choice."""

    def __post_init__(self) -> None:
        super().__post_init__()
        for name, words, count in (("first_weights", "two", 2), ("weights", "three", 3)):
            found = getattr(self, name)
            fits = len(found) == count and found[1] > 0  # else no row may count in the end
            check(fits, f"PACEConfig.{name}", f"{words} weights, the second of them positive", found)


def find_members(rows: Array) -> list[slice]:
    """The columns of each backbone, where embeddings of several stand side by side at equal length; else all columns.

    A backbone ends where the squared length of the columns so far is the same part of the whole in every row.

    Args:
        rows: (N, d) of unit length.
    """
    squares = np.cumsum(rows[:: -(-len(rows) // _ENOUGH)].astype(np.float64) ** 2, axis=1)
    same = (np.ptp(squares, axis=0) < _SAME) & (squares[0] > 0.01) & (squares[0] < 0.99) & (len(rows) >= _FEWEST)
    first = same & ~np.concatenate([[False], same[:-1]])  # columns that are 0 everywhere may follow
    ends = (np.flatnonzero(first) + 1).tolist()
    return [slice(start, end) for start, end in zip([0, *ends], [*ends, rows.shape[1]], strict=True)]


def root(covariance: Numbers, power: float) -> Numbers:
    """A power of a positive definite matrix, by its eigenvalues."""
    values, vectors = np.linalg.eigh(covariance)
    found: Numbers = (vectors * values**power) @ vectors.T
    return found


def align(labeled: Numbers, unlabeled: Numbers, ridge: float) -> Numbers:
    """CORAL: rows with the covariance of others, and mean 0.

    (x - mean) C_l^-1/2 C_u^1/2, C = cov + ridge * I; the cov of one row is 0

    Paper: Sun et al., "Return of frustratingly easy domain adaptation", 2016.

    Args:
        labeled: (N_l, d).
        unlabeled: (N_u, d).
        ridge: Keeps the covariances of few rows invertible.
    """
    before, after = (
        np.cov(rows.T, ddof=min(1, len(rows) - 1)) + ridge * np.eye(rows.shape[1]) for rows in (labeled, unlabeled)
    )
    found: Numbers = (labeled - labeled.mean(axis=0)) @ root(before, -0.5) @ root(after, 0.5)
    return found


def unit(rows: Numbers) -> Numbers:
    """Rows at unit length."""
    found: Numbers = rows / np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), 1e-12)
    return found


class Member:
    """The classifier of one backbone: rows of the target minus their mean, at unit length, through a regression.

    Args:
        columns: Of the backbone.
        mean: Of D_u in these columns.
        classifier: Of such rows.
    """

    def __init__(self, columns: slice, mean: Numbers, classifier: Classifier) -> None:
        self.columns, self.mean, self.classifier = columns, mean, classifier

    def predict_proba(self, rows: Array, /) -> Numbers:
        """Class probabilities, (N, d) to (N, K)."""
        return self.classifier.predict_proba(unit(rows[:, self.columns] - self.mean).astype(np.float32))


class Ensemble:
    """The mean of the probabilities of all members."""

    def __init__(self, members: Sequence[Classifier]) -> None:
        self.members = members

    def predict_proba(self, rows: Array, /) -> Numbers:
        """Class probabilities, (N, d) to (N, K)."""
        found: Numbers = np.mean([member.predict_proba(rows) for member in self.members], axis=0)
        return found


class PACE(FittedMethod):
    """For each backbone: CORAL of the labelled rows to D_u, then a linear classifier that learns from its own labels.

    min over W of alpha / N_s sum over D_s of m_i CE_i + beta / N_t sum over D_t of CE_i
                  + gamma / N_u sum over D_u of m_i CE(W x_i, y^_i) + total * |W|^2 / (2 C N)

    where y^ is the prediction of the round before and m_i whether it was confident: of its class in D_u, of any in
    D_s; N rows count, and total is the sum of their weights. The probabilities of the backbones are averaged. Their
    columns are found by their equal lengths (`find_members`), which `join_vectors` gives them; the paper has seven
    large backbones.

    Paper: Liao, Tsiligkaridis and Kulis, "Pick up the PACE", 2022.
    """

    Config = PACEConfig
    config: PACEConfig

    def fit(self, rows: Rows) -> Classifier:
        """The classifier of these rows."""
        return Ensemble([self.fit_member(rows, columns) for columns in find_members(rows.labeled)])

    def fit_member(self, rows: Rows, columns: slice) -> Classifier:
        """The classifier of the backbone in these columns."""
        config, width = self.config, columns.stop - columns.start
        unlabeled, labeled = rows.unlabeled[:, columns], rows.labeled[:, columns]
        scale = np.sqrt(width) / max(float(np.linalg.norm(labeled, axis=1).mean()), 1e-12)
        mean = unlabeled.mean(axis=0)
        aligned = unit(align(scale * labeled.astype(np.float64), scale * unlabeled.astype(np.float64), config.ridge))
        seen, others = aligned.astype(np.float32), unit(unlabeled - mean).astype(np.float32)
        estimator = LogisticRegression(
            C=config.inverse_regularization, fit_intercept=False, max_iter=config.iterations, warm_start=True
        )
        classifier = OfAllClasses(estimator, rows.n_classes)
        sizes = [len(rows.source), len(rows.target), len(unlabeled)]
        weights = np.concatenate([np.full(n, w / n) for n, w in zip(sizes, config.first_weights, strict=False)])
        self.regress(estimator, seen, rows.labels, weights)
        for threshold in np.repeat(config.thresholds, config.rounds):
            said = classifier.predict_proba(others)
            kept = said.max(axis=1) > threshold
            weights = np.concatenate([np.full(n, w / n) for n, w in zip(sizes, config.weights, strict=True)])
            weights[: sizes[0]] *= classifier.predict_proba(seen[: sizes[0]]).max(axis=1) > config.source_threshold
            weights[sizes[0] + sizes[1] :] *= kept
            labels = np.concatenate([rows.labels, said.argmax(axis=1)])
            self.regress(estimator, np.concatenate([seen, others]), labels, weights)
        return Member(columns, mean, classifier)

    def regress(self, estimator: LogisticRegression, rows: Array, labels: Numbers, weights: Numbers) -> None:
        """Fit the regression from where it stands, by the rows that count; a class of which none counts stays in it."""
        counts = weights > 0
        number, total = int(counts.sum()), float(weights.sum())
        counts |= ~np.isin(labels, labels[counts])
        estimator.fit(rows[counts], labels[counts], weights[counts] * number / total)
