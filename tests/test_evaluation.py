from __future__ import annotations

import math

import pytest
import torch
from sklearn.metrics import accuracy_score, balanced_accuracy_score, confusion_matrix

from qurate.config import MethodConfig, NetworkConfig
from qurate.data.samples import Unlabeled
from qurate.evaluation import evaluate, measure, predict_probabilities
from qurate.methods import build_method
from qurate.networks.heads import build_network


def test_metrics_equal_scikit_learns() -> None:
    rng = torch.Generator().manual_seed(0)
    labels, predicted = (torch.randint(5, (200,), generator=rng) for _ in range(2))
    metrics = measure(predicted, labels, 5)
    assert metrics.accuracy == pytest.approx(accuracy_score(labels, predicted))
    assert metrics.balanced_accuracy == pytest.approx(balanced_accuracy_score(labels, predicted))
    assert metrics.confusion.tolist() == confusion_matrix(labels, predicted).tolist()


def test_a_class_without_samples_is_nan_and_left_out_of_the_mean() -> None:
    metrics = measure(torch.tensor([0, 1, 1]), torch.tensor([0, 0, 1]), 3)
    assert metrics.per_class[:2].tolist() == [0.5, 1.0]
    assert math.isnan(metrics.per_class[2])
    assert metrics.balanced_accuracy == 0.75


def test_unknown_labels_are_left_out_and_all_unknown_is_an_error() -> None:
    assert measure(torch.tensor([0, 1]), torch.tensor([0, -1]), 2).accuracy == 1
    with pytest.raises(ValueError, match="nothing to measure"):
        measure(torch.tensor([0]), torch.tensor([-1]), 2)


def test_predictions_do_not_depend_on_the_batch_size() -> None:
    network = build_network(NetworkConfig(bottleneck="normalized"), n_classes=3, input_width=6, seed=0)
    method = build_method(MethodConfig.of("tml"), network, seed=0)
    inputs = torch.randn(11, 6, generator=torch.Generator().manual_seed(0))
    whole, parts = (predict_probabilities(method, inputs, batch_size=size) for size in (11, 4))
    torch.testing.assert_close(whole, parts)
    with pytest.raises(ValueError, match="labels of this unlabelled part are not known"):
        evaluate(method, Unlabeled(inputs))
