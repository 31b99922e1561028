"""One temperature: what it must do, against a plain loop, and where there is little to go by."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from qurate.calibration import (
    LEAST,
    MOST,
    PRIOR,
    Calibration,
    accept_at_precision,
    at_temperature,
    fit_temperature,
    match_confidence,
)
from qurate.data.samples import DataError

STORED = {"temperature": 1.0, "by": "nothing", "images": 0, "baseline_temperature": None}


def simulate(n: int, temperature: float, *, k: int = 6, spread: float = 4.0, seed: int = 0) -> tuple[Tensor, Tensor]:
    """A model whose logits are too large by a factor."""
    rng = torch.Generator().manual_seed(seed)
    logits = torch.randn(n, k, generator=rng, dtype=torch.float64) * spread
    labels = torch.multinomial(torch.softmax(logits, 1), 1, generator=rng).squeeze(1)
    return torch.log_softmax(logits * temperature, 1), labels


def sure(n: int, probability: float, right: int, k: int = 4) -> tuple[Tensor, Tensor]:
    """Predictions of class 0, all as sure, of which some are right."""
    rest = (1 - probability) / (k - 1)
    said = torch.tensor([[probability] + [rest] * (k - 1)], dtype=torch.float64).log().repeat(n, 1)
    return said, (torch.arange(n) >= right).long()


def loss_by_hand(said: Tensor, labels: Tensor, inverse: float) -> float:
    """What `fit_temperature` minimises, in a plain loop."""

    def nll(row: list[float], label: int) -> float:
        return -inverse * row[label] + math.log(sum(math.exp(inverse * x) for x in row))

    rows, total = said.tolist(), 0.0
    for row, label in zip(rows, labels.tolist(), strict=True):
        order = sorted(range(len(row)), key=lambda k: -row[k])
        total += nll(row, label) + PRIOR / len(rows) * (nll(row, order[0]) + nll(row, order[1]))
    return total


@pytest.mark.parametrize(("n", "temperature"), [(7, 3.0), (40, 4.0), (300, 2.0), (300, 0.5)])
def test_it_minimises_what_a_plain_loop_computes(n: int, temperature: float) -> None:
    said, labels = simulate(n, temperature)
    found = 1 / fit_temperature(said, labels)
    best = loss_by_hand(said, labels, found)
    for other in (found * 0.98, found * 1.02, 1.0, 0.2):
        assert loss_by_hand(said, labels, other) > best


@pytest.mark.parametrize("temperature", [0.4, 1.0, 4.4])
def test_a_known_temperature_is_found_again(temperature: float) -> None:
    assert fit_temperature(*simulate(5000, temperature)) == pytest.approx(temperature, rel=0.07)


@given(st.integers(1, 30), st.integers(2, 5), st.floats(0.2, 8), st.integers(0, 20))
def test_any_images_give_a_temperature_that_changes_no_class(n: int, k: int, temperature: float, seed: int) -> None:
    said, labels = simulate(n, temperature, k=k, seed=seed)
    found = fit_temperature(said, labels)
    assert LEAST <= found <= MOST
    scaled = at_temperature(said, found)
    assert torch.equal(scaled.argmax(dim=1), said.argmax(dim=1))
    assert scaled.sum(dim=1).tolist() == pytest.approx([1.0] * n)


def test_the_more_are_wrong_the_less_sure() -> None:
    found = [fit_temperature(*sure(40, 0.98, right)) for right in range(40, 9, -5)]
    assert found == sorted(found)
    assert len(set(found)) == len(found)


@pytest.mark.parametrize("probability", [0.8, 0.9, 0.99, 1 - 1e-6])
def test_a_few_images_that_are_all_right_do_not_make_it_surer(probability: float) -> None:
    assert 1 <= fit_temperature(*sure(7, probability, 7)) < 10


def test_many_images_that_are_all_right_do() -> None:
    said, labels = sure(200, 0.8, 200)
    found = fit_temperature(said, labels)
    assert 0.1 < found < 0.5
    assert float(at_temperature(said, found).max()) > 0.99


@pytest.mark.parametrize("n", [1, 7])
def test_a_few_images_that_are_all_wrong_make_it_less_sure_within_bounds(n: int) -> None:
    assert 1 < fit_temperature(*sure(n, 0.99, 0)) <= MOST


def test_probabilities_of_zero_are_numbers() -> None:
    said = torch.tensor([[0.0, -math.inf], [-math.inf, 0.0], [0.0, -math.inf]])
    assert LEAST <= fit_temperature(said, torch.tensor([0, 0, 0])) <= MOST


@pytest.mark.parametrize("share", [0.3, 0.6, 0.9])
def test_confidence_is_brought_to_a_share(share: float) -> None:
    said, _ = simulate(500, 4.0)
    found = match_confidence(said, share)
    assert float(at_temperature(said, found).max(dim=1).values.mean()) == pytest.approx(share, abs=1e-6)


def test_confidence_is_never_raised() -> None:
    assert match_confidence(simulate(50, 0.2)[0], 0.999) == pytest.approx(1)


@pytest.mark.parametrize(
    ("said", "labels", "words"),
    [
        (torch.zeros(0, 3), torch.zeros(0, dtype=torch.int64), "N at least 1"),
        (torch.zeros(3), torch.zeros(3, dtype=torch.int64), r"a tensor \(N, K\)"),
        (torch.full((2, 3), math.nan), torch.zeros(2, dtype=torch.int64), "without NaN"),
        (torch.zeros(2, 3), torch.tensor([0, 3]), "labels must be"),
        (torch.zeros(2, 3), torch.tensor([0]), "2 images but 1 labels"),
    ],
)
def test_what_is_no_prediction_is_refused(said: Tensor, labels: Tensor, words: str) -> None:
    with pytest.raises(DataError, match=words):
        fit_temperature(said, labels)


@pytest.mark.parametrize(
    ("stored", "words"),
    [
        (None, "must be a table of temperature, by, images"),
        ({"temperature": 2.0}, "must be a table"),
        (STORED | {"temperature": "2"}, "temperature must be a number from"),
        (STORED | {"temperature": math.nan}, "temperature must be a number from"),
        (STORED | {"temperature": 0.0}, "temperature must be a number from"),
        (STORED | {"by": "luck"}, "by must be one of"),
        (STORED | {"images": -1}, "images must be a whole number"),
    ],
)
def test_a_damaged_calibration_is_refused(stored: Any, words: str) -> None:
    with pytest.raises(DataError, match=words):
        Calibration.of(stored)


def test_a_calibration_says_what_it_is() -> None:
    assert Calibration.of(STORED) == Calibration()
    assert "not calibrated" in str(Calibration())
    assert str(Calibration(3.9, "held-out images", 62)) == "calibrated on 62 held-out images (temperature 3.90)"
    assert "without labels" in str(Calibration(3.9, "agreement with S+T"))


def accepted_by_hand(probabilities: list[float], precision: float) -> list[bool]:
    """Every number of most probable images is tried; the largest that has the mean is taken."""
    order = sorted((i for i, p in enumerate(probabilities) if not math.isnan(p)), key=lambda i: -probabilities[i])
    taken: list[int] = []
    for k in range(1, len(order) + 1):
        if sum(probabilities[i] for i in order[:k]) / k >= precision - 1e-7:
            taken = order[:k]
    return [i in taken for i in range(len(probabilities))]


@given(
    st.lists(st.one_of(st.floats(0.05, 1.0).map(lambda p: round(p, 2)), st.just(math.nan)), max_size=40),
    st.sampled_from([0.3, 0.5, 0.8, 0.95, 1.0]),
)
def test_what_is_accepted_is_what_a_plain_loop_accepts(probabilities: list[float], precision: float) -> None:
    tensor = torch.tensor(probabilities, dtype=torch.float64)
    accepted = accept_at_precision(tensor, precision)
    assert accepted.tolist() == accepted_by_hand(probabilities, precision)
    if accepted.any():
        assert float(tensor[accepted].mean()) >= precision - 1e-6
        rest = tensor[~accepted & ~tensor.isnan()]
        assert not len(rest) or float(rest.max()) <= float(tensor[accepted].min())
        if len(rest):  # one more would be too many
            assert float(torch.cat([tensor[accepted], rest.max()[None]]).mean()) < precision


def test_of_calibrated_predictions_the_share_asked_for_is_right() -> None:
    rng = torch.Generator().manual_seed(0)
    probabilities = 0.3 + 0.7 * torch.rand(20_000, generator=rng)
    right = torch.rand(20_000, generator=rng) < probabilities
    counts = []
    for precision in (0.7, 0.8, 0.9, 0.95):
        accepted = accept_at_precision(probabilities, precision)
        assert float(right[accepted].double().mean()) == pytest.approx(precision, abs=0.015)
        counts.append(int(accepted.sum()))
    assert counts == sorted(counts, reverse=True)


def test_a_precision_that_every_image_has_accepts_all_of_them_in_single_precision_too() -> None:
    assert bool(accept_at_precision(torch.full((1000,), 0.95), 0.95).all())
    assert not bool(accept_at_precision(torch.tensor([0.9, 0.8]), 0.95).any())
    assert accept_at_precision(torch.zeros(0), 0.95).tolist() == []


@pytest.mark.parametrize("precision", [0.0, -1.0, 1.01, 95.0, math.nan])
def test_a_precision_that_is_none_is_refused(precision: float) -> None:
    with pytest.raises(DataError, match="precision must be a number above 0 and up to 1"):
        accept_at_precision(torch.rand(3), precision)
    with pytest.raises(DataError, match=r"probabilities must be a tensor \(N,\)"):
        accept_at_precision(torch.rand(3, 2), 0.9)
