"""What practitioners do instead: classifiers of scikit-learn on the same embeddings, with the same labels."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray
from sklearn.linear_model import LogisticRegression
from sklearn.neighbors import KNeighborsClassifier
from sklearn.semi_supervised import LabelSpreading, SelfTrainingClassifier

from qurate.config import MethodConfig
from qurate.methods.fitted import Array, Classifier, FittedMethod, Rows, Transduced
from qurate.runtime.validation import Inside, Positive, Rate

UNLABELED = -1
"""Label of a sample without one, as scikit-learn has it."""


class OfAllClasses:
    """A classifier of scikit-learn with a probability for each of K classes, 0 for one that it has not seen.

    Args:
        estimator: Fitted.
        n_classes: K.
        mean: What is subtracted from each row first, (d,).
    """

    def __init__(self, estimator: Any, n_classes: int, mean: Array | None = None) -> None:
        self.estimator, self.n_classes, self.mean = estimator, n_classes, mean

    def predict_proba(self, rows: Array, /) -> NDArray[Any]:
        """Class probabilities, (N, d) to (N, K)."""
        return self.spread(self.estimator.predict_proba(rows if self.mean is None else rows - self.mean))

    def spread(self, probabilities: NDArray[Any]) -> NDArray[Any]:
        """Columns of the classes that were seen, put in their places."""
        found = np.zeros((len(probabilities), self.n_classes), probabilities.dtype)
        found[:, self.estimator.classes_] = probabilities
        return found


@dataclass(frozen=True)
class NeighborsConfig(MethodConfig):
    """The numbers of k-NN."""

    name: str = field(init=False, default="knn")
    neighbors: Positive = 5
    """How many labelled rows decide. Our choice: that of scikit-learn."""


class Neighbors(FittedMethod):
    """The nearest labelled rows of both domains, by cosine, vote: the nearer, the more.

    Paper: none; scikit-learn's KNeighborsClassifier with weights='distance', on rows of unit length.
    """

    Config = NeighborsConfig
    config: NeighborsConfig

    def fit(self, rows: Rows) -> Classifier:
        """The classifier of these rows."""
        count = min(self.config.neighbors, len(rows.labels))
        estimator = KNeighborsClassifier(count, weights="distance")
        return OfAllClasses(estimator.fit(rows.labeled, rows.labels), rows.n_classes)


@dataclass(frozen=True)
class LogisticConfig(MethodConfig):
    """The numbers of logistic regression."""

    name: str = field(init=False, default="logistic")
    inverse_regularization: Rate = 10.0
    """C of scikit-learn, whose own 1 is too strong for rows of unit length. Our choice."""
    iterations: Positive = 200
    """Most iterations of L-BFGS. Our choice."""


class Logistic(FittedMethod):
    """Logistic regression on both domains together.

    min over W, b of |W|^2 / 2 + C * sum of w_i * CE(softmax(W x_i + b), y_i), all w_i = 1

    Of two classes the first has the logit 0: W is one vector and b one number, those of the second.

    Paper: none; scikit-learn's LogisticRegression, on rows of unit length.
    """

    Config: ClassVar[type[LogisticConfig]] = LogisticConfig
    config: LogisticConfig

    def fit(self, rows: Rows) -> Classifier:
        """The classifier of these rows."""
        return OfAllClasses(self.estimator().fit(rows.labeled, rows.labels), rows.n_classes)

    def estimator(self) -> LogisticRegression:
        """Not fitted."""
        return LogisticRegression(C=self.config.inverse_regularization, max_iter=self.config.iterations)


def fit_weighted(estimator: LogisticRegression, rows: Rows) -> Classifier:
    """Logistic regression in which D_t counts as much as D_s: w_i = N_s / N_t in D_t, and 1 in D_s."""
    weights = np.ones(len(rows.labels))
    weights[len(rows.source) :] = len(rows.source) / len(rows.target)
    return OfAllClasses(estimator.fit(rows.labeled, rows.labels, weights), rows.n_classes)


@dataclass(frozen=True)
class WeightedLogisticConfig(LogisticConfig):
    """The numbers of logistic regression with weighted rows."""

    name: str = field(init=False, default="logistic_weighted")


class WeightedLogistic(Logistic):
    """Logistic regression in which the labelled target counts as much as the source.

    As `Logistic`, with w_i = 1 in the source and N_s / N_t in the labelled target.

    Paper: none; scikit-learn's LogisticRegression with sample weights.
    """

    Config = WeightedLogisticConfig

    def fit(self, rows: Rows) -> Classifier:
        """The classifier of these rows."""
        return fit_weighted(self.estimator(), rows)


@dataclass(frozen=True)
class CenteredLogisticConfig(LogisticConfig):
    """The numbers of logistic regression on centred domains."""

    name: str = field(init=False, default="logistic_centered")


class CenteredLogistic(Logistic):
    """Logistic regression on domains of which each is centred on its own mean, that of the target with D_u.

    As `Logistic`, with x - mean(D_s) in the source and x - mean(D_t, D_u) in the target.

    Paper: none; the first moment alone of CORAL (Sun et al., 2016).
    """

    Config = CenteredLogisticConfig

    def fit(self, rows: Rows) -> Classifier:
        """The classifier of these rows."""
        centered, mean = rows.centered()
        return OfAllClasses(self.estimator().fit(centered.labeled, centered.labels), rows.n_classes, mean)


@dataclass(frozen=True)
class SelfTrainingConfig(LogisticConfig):
    """The numbers of self-training."""

    name: str = field(init=False, default="self_training")
    threshold: Inside = 0.75
    """Probability above which a prediction becomes a label. Our choice: that of scikit-learn."""
    rounds: Positive = 10
    """Most rounds. Our choice: that of scikit-learn."""


class SelfTraining(Logistic):
    """Logistic regression that takes its own confident predictions of D_u for labels, round after round.

    Paper: Yarowsky, 1995; scikit-learn's SelfTrainingClassifier around `Logistic`.
    """

    Config = SelfTrainingConfig
    config: SelfTrainingConfig

    def fit(self, rows: Rows) -> Classifier:
        """The classifier of these rows."""
        config = self.config
        base = self.estimator().set_params(warm_start=True)
        estimator = SelfTrainingClassifier(base, threshold=config.threshold, max_iter=config.rounds)
        labels = np.concatenate([rows.labels, np.full(len(rows.unlabeled), UNLABELED)])
        estimator.fit(np.concatenate([rows.labeled, rows.unlabeled]), labels)
        return OfAllClasses(estimator, rows.n_classes)


@dataclass(frozen=True)
class LabelSpreadingConfig(MethodConfig):
    """The numbers of label spreading."""

    name: str = field(init=False, default="label_spreading")
    neighbors: Positive = 7
    """Nearest rows of each row in the graph, the row itself among them. Our choice: that of scikit-learn."""
    clamping: Inside = 0.8
    """alpha: how far a labelled row takes the labels of its neighbours. Our choice; scikit-learn: 0.2."""


class Spreading(FittedMethod):
    """Labels spread over the graph of the nearest rows of both domains.

    F <- alpha S F + (1 - alpha) Y, S = D^-1/2 A D^-1/2; a row of D_u has its row of F, any other row the mean of its
    nearest.

    Paper: Zhou et al., "Learning with local and global consistency", 2004; scikit-learn's LabelSpreading.
    """

    Config = LabelSpreadingConfig
    config: LabelSpreadingConfig

    def fit(self, rows: Rows) -> Classifier:
        """The classifier of these rows."""
        everyone = np.concatenate([rows.labeled, rows.unlabeled])
        labels = np.concatenate([rows.labels, np.full(len(rows.unlabeled), UNLABELED)])
        count = min(self.config.neighbors, len(everyone))
        estimator = LabelSpreading("knn", n_neighbors=count, alpha=self.config.clamping, max_iter=1000, tol=1e-6)
        others = OfAllClasses(estimator.fit(everyone, labels), rows.n_classes)
        spread = estimator.label_distributions_
        spread[spread.sum(axis=1) == 0] = 1 / spread.shape[1]  # rows that no label has reached
        found = others.spread(estimator.label_distributions_[len(rows.labels) :])
        return Transduced(rows.unlabeled, found, others)
