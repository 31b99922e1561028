"""Predictions and metrics; the only module that opens the sealed labels of D_u once a split is drawn."""

from __future__ import annotations

from dataclasses import dataclass

import pandas as pd
import torch
from sklearn.metrics import roc_auc_score
from torch import Tensor

from qurate.data.samples import UNKNOWN, DataError, Inputs, Labeled, Unlabeled, check_positions, describe
from qurate.methods import Method
from qurate.networks.heads import check_inputs
from qurate.networks.inference import infer

BINS = 15
"""Of the expected calibration error. Our choice."""


@dataclass(frozen=True, eq=False)
class Metrics:
    """How good predictions are.

    Args:
        accuracy: Share of right predictions.
        balanced_accuracy: Mean over the classes present of the share right in each.
        per_class: Share right in each class, NaN where it has no sample, (K,).
        confusion: Counts, true class by predicted class, (K, K).
        confidence: Mean probability of the predicted class; None where only classes were compared.
        calibration_error: Expected calibration error of the probabilities; None likewise.
        uncalibrated_error: The same without the model's temperature; None likewise.
        auroc: Of right against wrong predictions by their probability; None where all are right, or all wrong.
        auroc_unknown: Of images of a class against images of none; None where there are no images of no class.
        unknown: How many images of no class there are; nothing else counts them.
        classes: Names of the K classes; their numbers unless given.
    """

    accuracy: float
    balanced_accuracy: float
    per_class: Tensor
    confusion: Tensor
    confidence: float | None = None
    calibration_error: float | None = None
    uncalibrated_error: float | None = None
    auroc: float | None = None
    auroc_unknown: float | None = None
    unknown: int = 0
    classes: tuple[str, ...] = ()

    @property
    def table(self) -> pd.DataFrame:
        """A row for each class with images: class, images, right, accuracy, and what the others were mistaken for."""
        names = self.classes or tuple(map(str, range(len(self.confusion))))
        rows = []
        for label, counts in enumerate(self.confusion.tolist()):
            if images := sum(counts):
                right, counts[label] = counts[label], 0
                worst = sorted((-count, k) for k, count in enumerate(counts) if count)[:3]
                mistaken = ", ".join(f"{names[k]} ({-count})" for count, k in worst)
                rows.append((names[label], images, right, right / images, mistaken))
        return pd.DataFrame(rows, columns=["class", "images", "right", "accuracy", "mistaken_for"])

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Metrics) and self._key() == other._key()

    def __hash__(self) -> int:
        return hash(self._key())

    def _key(self) -> tuple[object, ...]:
        """What the rest follows from."""
        counts = tuple(self.confusion.flatten().tolist())
        probabilities = self.confidence, self.calibration_error, self.uncalibrated_error
        return counts, *probabilities, self.auroc, self.auroc_unknown, self.unknown


def measure(predicted: Tensor, labels: Tensor, n_classes: int) -> Metrics:
    """Compare predicted classes with true ones; samples without one (label -1 or `UNKNOWN`) are left out.

    Args:
        predicted: (N,) int64.
        labels: (N,) int64.
        n_classes: K.
    """
    known = labels >= 0
    if not bool(known.any()):
        raise DataError("measure: no sample has a known label, so there is nothing to measure.")
    pairs = labels[known] * n_classes + predicted[known]
    confusion = torch.bincount(pairs, minlength=n_classes**2).view(n_classes, n_classes)
    counts = confusion.sum(dim=1)
    per_class = confusion.diagonal() / counts
    return Metrics(
        accuracy=float(confusion.diagonal().sum() / counts.sum()),
        balanced_accuracy=float(per_class[counts > 0].mean()),
        per_class=per_class,
        confusion=confusion,
    )


def calibration_error(probabilities: Tensor, labels: Tensor) -> float:
    """Expected calibration error: how far confidence is from accuracy; samples of a negative label are left out.

    ECE = sum over bins b of n_b / n * |share right in b - mean confidence in b|

    The confidence of a sample is its highest probability; the bins are `BINS` intervals (low, high] of equal width.

    Args:
        probabilities: (N, K), rows that sum to 1.
        labels: True classes, (N,) int64.
    """
    known = labels >= 0
    if not bool(known.any()):
        raise DataError("calibration_error: no sample has a known label, so there is nothing to measure.")
    confidence, predicted = probabilities[known].double().max(dim=1)
    edges = torch.linspace(0, 1, BINS + 1, dtype=torch.float64)[1:-1]
    gaps = (predicted == labels[known]).double() - confidence
    return float(torch.bincount(torch.bucketize(confidence, edges), gaps, BINS).abs().sum() / len(gaps))


def auroc(scores: Tensor, positive: Tensor) -> float | None:
    """Area under the ROC curve: how often a positive has a higher score than a negative; equal scores count half.

    Args:
        scores: (N,).
        positive: (N,) bool.

    Returns:
        None where there is no positive or no negative.
    """
    if bool(positive.all()) or not bool(positive.any()):
        return None
    return float(roc_auc_score(positive.cpu().numpy(), scores.double().cpu().numpy()))


def certainty(probabilities: Tensor) -> Tensor:
    """Minus the sum of all probabilities but the highest, (N,) float64: orders samples as the highest one does.

    Near 1 the highest probability itself is rounded: of an adapted network's, three quarters may be 1 in float32.

    Args:
        probabilities: (N, K), rows that sum to 1.
    """
    others = probabilities.double()
    return -others.scatter(1, others.argmax(dim=1, keepdim=True), 0.0).sum(dim=1)


def auroc_right(probabilities: Tensor, labels: Tensor) -> float | None:
    """AUROC of right against wrong predictions by the highest probability, among samples of a class.

    Args:
        probabilities: (N, K).
        labels: True classes, negative where there is none, (N,) int64.

    Returns:
        None where all are right, or all wrong.
    """
    known = labels >= 0
    return auroc(certainty(probabilities[known]), probabilities[known].argmax(dim=1) == labels[known])


def auroc_unknown(scores: Tensor, labels: Tensor) -> float | None:
    """AUROC of samples of a class against those of none; samples whose class no one knows are left out.

    Args:
        scores: How well each fits any class, (N,).
        labels: True classes, `UNKNOWN` where a sample is of none, (N,) int64.

    Returns:
        None where all are of a class, or none is.
    """
    known, unknown = labels >= 0, labels == UNKNOWN
    return auroc(scores[known | unknown], known[known | unknown])


def hos(predicted: Tensor, flagged: Tensor, labels: Tensor) -> float | None:
    """Harmonic mean of known accuracy and unknown found; Bucci et al. (2020) take the accuracy as a mean over classes.

    HOS = 2 a u / (a + u), where a is the share of the samples of a class that are predicted right and not flagged, and
    u the share of the samples of no class that are flagged.

    Args:
        predicted: (N,) int64.
        flagged: Whether a sample is taken to be of no class, (N,) bool.
        labels: True classes, `UNKNOWN` where a sample is of none, (N,) int64.

    Returns:
        None where all are of a class, or none is.
    """
    known, unknown = labels >= 0, labels == UNKNOWN
    if not bool(known.any()) or not bool(unknown.any()):
        return None
    accuracy = float(((predicted == labels) & ~flagged)[known].double().mean())
    found = float(flagged[unknown].double().mean())
    return 2 * accuracy * found / (accuracy + found) if accuracy + found else 0.0


def predict_probabilities(method: Method, inputs: Inputs, *, batch_size: int | None = None) -> Tensor:
    """Class probabilities of all inputs, (N, K) on the CPU.

    Raises:
        DataError: If the method cannot read the inputs.
    """
    if not isinstance(method, Method):
        raise DataError(f"method must be a Method, such as fit(...).method, got {describe(method)}.")
    check_inputs(method.network, inputs, "inputs")
    if len(inputs) == 0:
        raise DataError("inputs must have at least one sample, got none.")
    if batch_size is not None and not (isinstance(batch_size, int) and batch_size > 0):
        raise DataError(f"batch_size must be a positive integer, got {batch_size!r}.")
    return infer(method.network, inputs, lambda batch: method.predict(batch).float(), batch_size=batch_size)


def evaluate(method: Method, part: Labeled | Unlabeled) -> Metrics:
    """Metrics of a method on a labelled part, or on D_u by its sealed labels.

    Raises:
        DataError: If the part has no labels, is none, or cannot be read by the method.
    """
    if not isinstance(part, Labeled | Unlabeled):
        raise DataError(f"evaluate: part must be Labeled or Unlabeled, such as split.validation, got {describe(part)}.")
    if isinstance(part, Labeled):
        labels = part.labels
    elif part.sealed is None:
        raise DataError("evaluate: the labels of this unlabelled part are not known; pass labelled samples.")
    else:
        labels = part.sealed.open_for_evaluation()
    probabilities = predict_probabilities(method, part.inputs)
    check_positions(labels[labels >= 0], method.network.n_classes, "evaluate: labels")
    return measure(probabilities.argmax(dim=1), labels.cpu(), method.network.n_classes)


def pseudo_label_accuracy(indices: Tensor, labels: Tensor, part: Unlabeled) -> float | None:
    """Share of right labels among pseudo-labelled samples of D_u; None where there are none or the truth is not known.

    A sample of no class has no right label.

    Args:
        indices: Positions in D_u, (N,) int64.
        labels: Their pseudo-labels, (N,) int64.
        part: D_u.
    """
    if part.sealed is None or len(indices) == 0:
        return None
    return float((part.sealed.open_for_evaluation()[indices] == labels).float().mean())


class Annotator:
    """Answers as a person would, by the sealed labels of D_u, and counts the answers.

    Args:
        part: D_u.

    Raises:
        DataError: If its labels are not known.
    """

    def __init__(self, part: Unlabeled) -> None:
        self._truth = true_labels(part)
        self._answered = torch.zeros(len(part), dtype=torch.bool)

    @property
    def asked(self) -> int:
        """How many samples were answered."""
        return int(self._answered.sum())

    def label(self, indices: Tensor) -> Tensor:
        """The class of each of these samples, `UNKNOWN` where it has none, -1 where no one knows, (n,) int64.

        Args:
            indices: Different positions in D_u that were not asked about before, (n,) int64.

        Raises:
            DataError: If one is asked about twice, or points nowhere.
        """
        check_positions(indices, len(self._answered), "what the annotator is asked about")
        if len(indices.unique()) != len(indices) or bool(self._answered[indices].any()):
            raise DataError("Annotator: each sample is answered once, and one was asked about again.")
        self._answered[indices] = True
        return self._truth[indices]


def true_labels(part: Unlabeled) -> Tensor:
    """The sealed labels of D_u, for an oracle that is called one."""
    if part.sealed is None:
        raise DataError("true_labels: the labels of this unlabelled part are not known.")
    return part.sealed.open_for_evaluation()
