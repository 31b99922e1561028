from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from sklearn.metrics import accuracy_score, balanced_accuracy_score, confusion_matrix

from qurate.config import MethodConfig, NetworkConfig
from qurate.data.samples import UNKNOWN, DataError, SealedLabels, Unlabeled
from qurate.evaluation import (
    Annotator,
    auroc,
    auroc_right,
    auroc_unknown,
    calibration_error,
    certainty,
    evaluate,
    hos,
    measure,
    predict_probabilities,
    pseudo_label_accuracy,
)
from qurate.methods import build_method
from qurate.networks.heads import build_network


def test_metrics_equal_scikit_learns() -> None:
    rng = torch.Generator().manual_seed(0)
    labels, predicted = (torch.randint(5, (200,), generator=rng) for _ in range(2))
    metrics = measure(predicted, labels, 5)
    assert metrics.accuracy == pytest.approx(accuracy_score(labels, predicted))
    assert metrics.balanced_accuracy == pytest.approx(balanced_accuracy_score(labels, predicted))
    assert metrics.confusion.tolist() == confusion_matrix(labels, predicted).tolist()


def test_metrics_are_equal_where_classes_and_calibration_are() -> None:
    first, same, other = (measure(torch.tensor([0, guess, 1]), torch.tensor([0, 0, 1]), 2) for guess in (1, 1, 0))
    assert first == same != other
    measured = {"confidence": 0.9, "calibration_error": 0.1, "uncalibrated_error": 0.2}
    measured |= {"auroc": 0.8, "auroc_unknown": 0.7, "unknown": 2}
    calibrated = replace(first, **measured)  # type: ignore[arg-type]
    assert calibrated == replace(same, **measured)  # type: ignore[arg-type]
    assert hash(calibrated) == hash(replace(same, **measured))  # type: ignore[arg-type]
    assert calibrated != first
    for name in measured:
        assert calibrated != replace(calibrated, **{name: 0.3})  # type: ignore[arg-type]


def test_a_class_without_samples_is_nan_and_left_out_of_the_mean() -> None:
    metrics = measure(torch.tensor([0, 1, 1]), torch.tensor([0, 0, 1]), 3)
    assert metrics.per_class[:2].tolist() == [0.5, 1.0]
    assert math.isnan(metrics.per_class[2])
    assert metrics.balanced_accuracy == 0.75


def test_unknown_labels_are_left_out_and_all_unknown_is_an_error() -> None:
    assert measure(torch.tensor([0, 1]), torch.tensor([0, -1]), 2).accuracy == 1
    with pytest.raises(ValueError, match="nothing to measure"):
        measure(torch.tensor([0]), torch.tensor([-1]), 2)


def plain_calibration_error(probabilities: list[list[float]], labels: list[int]) -> float:
    total = 0.0
    for b in range(15):
        inside = [i for i, row in enumerate(probabilities) if b / 15 < max(row) <= (b + 1) / 15]
        if inside:
            right = sum(probabilities[i].index(max(probabilities[i])) == labels[i] for i in inside) / len(inside)
            total += len(inside) / len(labels) * abs(right - sum(max(probabilities[i]) for i in inside) / len(inside))
    return total


@pytest.mark.parametrize("sharpness", [0.1, 1.0, 5.0])
def test_the_calibration_error_equals_the_plain_loop(sharpness: float) -> None:
    rng = torch.Generator().manual_seed(0)
    probabilities = (sharpness * torch.randn(300, 4, generator=rng, dtype=torch.float64)).softmax(dim=1)
    labels = torch.randint(4, (300,), generator=rng)
    expected = plain_calibration_error(probabilities.tolist(), labels.tolist())
    assert calibration_error(probabilities, labels) == pytest.approx(expected)
    assert expected > 0.01


def test_the_calibration_error_by_hand() -> None:
    sure = torch.tensor([[1.0, 0.0], [1.0, 0.0], [0.0, 1.0], [0.5, 0.5]])
    assert calibration_error(sure, torch.tensor([0, 0, 1, -1])) == 0  # the last one is not known
    assert calibration_error(sure, torch.tensor([1, 0, 0, -1])) == pytest.approx(2 / 3)
    half = torch.tensor([[0.5, 0.5]] * 4)
    assert calibration_error(half, torch.tensor([0, 0, 1, 1])) == 0  # right as often as it says
    with pytest.raises(ValueError, match="nothing to measure"):
        calibration_error(half, torch.full((4,), -1))


def plain_auroc(positives: list[float], negatives: list[float]) -> float:
    wins = 0.0
    for high in positives:
        for low in negatives:
            wins += 1.0 if high > low else 0.5 if high == low else 0.0
    return wins / (len(positives) * len(negatives))


@pytest.mark.parametrize("levels", [3, 1000])  # with many equal scores, and with few
def test_the_auroc_equals_the_plain_loop(levels: int) -> None:
    rng = torch.Generator().manual_seed(0)
    positive = torch.rand(80, generator=rng) < 0.3
    scores = torch.randint(levels, (80,), generator=rng) / levels + 0.2 * positive
    assert 0.5 < plain_auroc(scores[positive].tolist(), scores[~positive].tolist()) < 1
    assert auroc(scores, positive) == pytest.approx(plain_auroc(scores[positive].tolist(), scores[~positive].tolist()))


def test_the_auroc_by_hand_and_where_one_side_is_empty() -> None:
    scores = torch.tensor([0.9, 0.8, 0.1])
    assert auroc(scores, torch.tensor([True, True, False])) == 1
    assert auroc(scores, torch.tensor([False, False, True])) == 0
    assert auroc(torch.ones(3), torch.tensor([True, False, False])) == 0.5
    assert auroc(scores, torch.ones(3, dtype=torch.bool)) is None
    assert auroc(scores, torch.zeros(3, dtype=torch.bool)) is None
    assert auroc(torch.empty(0), torch.empty(0, dtype=torch.bool)) is None


def open_set(n: int = 200) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """Probabilities, scores, flags and labels: of 4 classes, of no class, and of classes that no one knows."""
    rng = torch.Generator().manual_seed(1)
    labels = torch.tensor([-1, UNKNOWN, 0, 1, 2, 3])[torch.randint(6, (n,), generator=rng)]
    logits = torch.randn(n, 4, generator=rng)
    logits[labels >= 0, labels[labels >= 0]] += 1
    scores = torch.rand(n, generator=rng) + 0.3 * (labels >= 0)
    return logits.softmax(dim=1), scores, scores < 0.5, labels


def test_certainty_orders_as_the_highest_probability_and_is_not_rounded_near_one() -> None:
    probabilities = open_set()[0]
    assert certainty(probabilities).argsort().tolist() == probabilities.double().max(dim=1).values.argsort().tolist()
    logits = torch.tensor([[20.0, 0.0], [25.0, 0.0], [0.0, 30.0]])
    sure = logits.softmax(dim=1)
    assert sure.max(dim=1).values.tolist() == [1, 1, 1]
    assert certainty(sure).tolist() == pytest.approx([-math.exp(-20), -math.exp(-25), -math.exp(-30)], rel=1e-6)
    assert auroc_right(sure, torch.tensor([1, 0, 1])) == 1


def test_right_against_wrong_is_among_samples_of_a_class_alone() -> None:
    probabilities, _, _, labels = open_set()
    right: list[float] = []
    wrong: list[float] = []
    for row, label in zip(probabilities.tolist(), labels.tolist(), strict=True):
        if label >= 0:
            (right if row.index(max(row)) == label else wrong).append(max(row))
    assert auroc_right(probabilities, labels) == pytest.approx(plain_auroc(right, wrong))
    assert auroc_right(torch.eye(4), torch.tensor([0, 1, UNKNOWN, -1])) is None  # nothing is wrong


def test_known_against_unknown_leaves_out_what_no_one_knows() -> None:
    _, scores, _, labels = open_set()
    sides: dict[bool, list[float]] = {True: [], False: []}
    for score, label in zip(scores.tolist(), labels.tolist(), strict=True):
        if label != -1:
            sides[label >= 0].append(score)
    assert auroc_unknown(scores, labels) == pytest.approx(plain_auroc(sides[True], sides[False]))
    assert auroc_unknown(scores[:3], torch.tensor([0, 1, -1])) is None
    assert auroc_unknown(scores[:2], torch.tensor([UNKNOWN, -1])) is None


def test_hos_equals_the_plain_loop() -> None:
    probabilities, _, flagged, labels = open_set()
    predicted = probabilities.argmax(dim=1)
    n_known = n_right = n_unknown = n_found = 0
    for guess, flag, label in zip(predicted.tolist(), flagged.tolist(), labels.tolist(), strict=True):
        if label >= 0:
            n_known += 1
            n_right += guess == label and not flag
        elif label == UNKNOWN:
            n_unknown += 1
            n_found += flag
    assert 0 < n_right < n_known
    assert 0 < n_found < n_unknown
    expected = 2 / (n_known / n_right + n_unknown / n_found)
    assert hos(predicted, flagged, labels) == pytest.approx(expected)


def test_hos_by_hand() -> None:
    predicted, labels = torch.tensor([0, 1, 1, 0]), torch.tensor([0, 1, UNKNOWN, UNKNOWN])

    def of(*flags: int) -> float | None:
        return hos(predicted, torch.tensor(flags, dtype=torch.bool), labels)

    assert of(0, 0, 1, 1) == 1
    assert of(0, 0, 0, 0) == 0  # nothing is found
    assert of(1, 1, 1, 1) == 0  # a known sample that is flagged is wrong
    assert of(1, 1, 0, 0) == 0
    assert of(0, 1, 1, 1) == pytest.approx(2 / 3)  # of 0.5 and 1
    flags = torch.zeros(2, dtype=torch.bool)
    assert hos(predicted[:2], flags, labels[:2]) is None
    assert hos(predicted[2:], flags, labels[2:]) is None


def test_samples_of_no_class_count_in_no_accuracy_but_as_wrong_among_the_positives() -> None:
    labels = torch.tensor([0, 1, UNKNOWN])
    assert measure(torch.tensor([0, 1, 1]), labels, 2).accuracy == 1
    assert calibration_error(torch.tensor([[1.0, 0.0], [0.0, 1.0], [0.5, 0.5]]), labels) == 0
    part = Unlabeled(torch.zeros(3, 1), SealedLabels(labels))
    assert pseudo_label_accuracy(torch.tensor([0, 2]), torch.tensor([0, 1]), part) == 0.5
    assert Annotator(part).label(torch.tensor([2])).tolist() == [UNKNOWN]


def test_predictions_do_not_depend_on_the_batch_size() -> None:
    network = build_network(NetworkConfig(bottleneck="normalized"), n_classes=3, input_width=6, seed=0)
    method = build_method(MethodConfig.of("tml"), network, seed=0)
    inputs = torch.randn(11, 6, generator=torch.Generator().manual_seed(0))
    whole, parts = (predict_probabilities(method, inputs, batch_size=size) for size in (11, 4))
    torch.testing.assert_close(whole, parts)
    with pytest.raises(ValueError, match="labels of this unlabelled part are not known"):
        evaluate(method, Unlabeled(inputs))


def test_an_annotator_answers_each_sample_once_and_counts() -> None:
    person = Annotator(Unlabeled(torch.randn(5, 2), SealedLabels(torch.tensor([3, 1, -1, 0, 2]))))
    assert person.asked == 0
    assert person.label(torch.tensor([4, 2])).tolist() == [2, -1]
    assert person.label(torch.empty(0, dtype=torch.int64)).tolist() == []
    assert person.asked == 2
    for again in ([2], [0, 0]):
        with pytest.raises(DataError, match="each sample is answered once"):
            person.label(torch.tensor(again))
    with pytest.raises(DataError, match="between 0 and 4, got 5 to 5"):
        person.label(torch.tensor([5]))
    assert person.asked == 2
    with pytest.raises(DataError, match="labels of this unlabelled part are not known"):
        Annotator(Unlabeled(torch.randn(5, 2)))
