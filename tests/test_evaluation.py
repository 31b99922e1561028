from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from sklearn.metrics import accuracy_score, balanced_accuracy_score, confusion_matrix

from qurate.config import MethodConfig, NetworkConfig
from qurate.data.samples import DataError, SealedLabels, Unlabeled
from qurate.evaluation import Annotator, calibration_error, evaluate, measure, predict_probabilities
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
