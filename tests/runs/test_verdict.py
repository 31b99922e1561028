"""The verdict: each part against a plain loop or by what must hold, the whole on made-up models of known truth."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from qurate.run_results import Gain
from qurate.runs.verdict import (
    FOLD_ERROR,
    SPREAD,
    UNLABELED_ERROR,
    Evidence,
    combine,
    estimate_gain,
    estimate_proportions,
    images_needed,
    mean_per_image,
    soft_right,
    temperature_for,
    together,
    unlabeled_gain,
    verdict_of,
    weighted_mean,
)
from qurate.runtime.randomness import generator
from qurate.selection.crossfit import HeldOut


def say(labels: Tensor, right: float, n_classes: int, seed: int) -> Tensor:
    """Log-probabilities of a model that names the true class with this probability, and is as sure as that."""
    rng = generator(seed)
    wrong = (labels + torch.randint(1, n_classes, labels.shape, generator=rng)) % n_classes
    named = torch.where(torch.rand(labels.shape, generator=rng) < right, labels, wrong)
    sure = torch.full((len(labels), n_classes), (1 - right) / (n_classes - 1))
    sure[torch.arange(len(labels)), named] = right
    return sure.log()


def problem(adapted: float, baseline: float, n_labeled: int, *, seed: int = 0) -> tuple[HeldOut, Tensor, Tensor]:
    """Held-out images and D_u of four classes, for two models of these accuracies."""
    labels, truth = torch.arange(n_labeled) % 4, torch.arange(2000) % 4
    held_out = HeldOut(
        torch.arange(n_labeled), labels, say(labels, adapted, 4, seed), say(labels, baseline, 4, seed + 1)
    )
    return held_out, say(truth, adapted, 4, seed + 2), say(truth, baseline, 4, seed + 3)


@pytest.mark.parametrize(("adapted", "baseline", "verdict"), [(0.9, 0.6, "helps"), (0.6, 0.9, "harms")])
def test_a_large_difference_has_a_verdict_with_few_labelled_images(
    adapted: float, baseline: float, verdict: str
) -> None:
    found = estimate_gain(*problem(adapted, baseline, 48))
    assert verdict_of(found.gain) == verdict
    assert verdict_of(found.balanced) == verdict
    assert 0.1 < abs(found.gain.estimate) < 0.4


def test_equal_models_have_no_verdict_and_swapping_models_swaps_the_sign() -> None:
    held_out, adapted, baseline = problem(0.75, 0.75, 40)
    found = estimate_gain(held_out, adapted, baseline)
    assert verdict_of(found.gain) == "unclear"
    swapped = HeldOut(held_out.images, held_out.labels, held_out.baseline, held_out.adapted)
    other = estimate_gain(swapped, baseline, adapted)
    assert other.gain.estimate == pytest.approx(-found.gain.estimate)
    assert [other.gain.low, other.gain.high] == pytest.approx([-found.gain.high, -found.gain.low])
    assert other.gain.smallest == pytest.approx(found.gain.smallest)


def test_wrong_verdicts_are_rare_and_the_interval_holds_the_truth() -> None:
    wrong = held = 0
    for seed in range(60):
        better, worse = (0.74, 0.70) if seed % 2 else (0.70, 0.74)
        found = estimate_gain(*problem(better, worse, 21, seed=10 * seed)).gain
        wrong += verdict_of(found) == ("harms" if better > worse else "helps")
        held += found.low <= better - worse <= found.high
    assert wrong <= 3
    assert held >= 54


def test_models_that_agree_everywhere_have_no_gain() -> None:
    held_out, adapted, _ = problem(0.8, 0.8, 12)
    same = HeldOut(held_out.images, held_out.labels, held_out.adapted, held_out.adapted)
    found = estimate_gain(same, adapted, adapted)
    assert (found.disagreement, found.gain.estimate, found.gain.low, found.gain.high) == (0, 0, 0, 0)
    assert found.gain.smallest == math.inf
    assert verdict_of(found.gain) == "unclear"


@given(st.integers(0, 1000), st.floats(0.3, 0.95), st.floats(0.3, 0.95), st.integers(4, 60))
def test_no_gain_is_larger_than_the_disagreement(seed: int, adapted: float, baseline: float, images: int) -> None:
    found = estimate_gain(*problem(adapted, baseline, images, seed=seed))
    most = found.disagreement + 1e-9
    assert -most <= found.gain.low <= found.gain.estimate <= found.gain.high <= most
    assert 0 <= found.gain.chance <= 1
    assert float(found.proportions.sum()) == pytest.approx(1)


def test_soft_right_is_the_accuracy_where_probabilities_are_honest() -> None:
    rng = generator(0)
    probabilities = torch.softmax(2 * torch.randn(20000, 5, generator=rng), dim=1).double()
    labels = torch.multinomial(probabilities, 1, generator=rng).squeeze(1)
    hard = (probabilities.argmax(dim=1) == labels).double()
    soft = soft_right(probabilities, labels)
    assert float(soft.mean()) == pytest.approx(float(hard.mean()), abs=0.01)
    assert float(soft.var()) < 0.6 * float(hard.var())
    row, label = probabilities[7].tolist(), int(labels[7])
    assert float(soft[7]) == pytest.approx(row[label] + max(row) - sum(one**2 for one in row))


def test_unlabeled_evidence_is_that_of_a_loop() -> None:
    rng = generator(3)
    opinion = torch.rand(50, 3, generator=rng).double()
    adapted, baseline = torch.randint(0, 3, (2, 50), generator=rng)
    weigh = torch.tensor([1.0, 2.0, 0.5], dtype=torch.float64)
    won = lost = 0.0
    for row, one, other in zip(opinion.tolist(), adapted.tolist(), baseline.tolist(), strict=True):
        if one != other:
            won += row[one] / (row[one] + row[other]) * float(weigh[one])
            lost += row[other] / (row[one] + row[other]) * float(weigh[other])
    found = unlabeled_gain(opinion, adapted, baseline, weigh)
    assert list(found) == pytest.approx([(won + lost) / 50, (won - lost) / (won + lost)])


def test_a_third_class_that_outweighs_both_leaves_the_dispute_open() -> None:
    """At a low temperature the classes that the two name have no chance left, and nought over nought is no share."""
    row = torch.tensor([0.51, 0.49, 1e-30]).log().expand(300, 3)
    held_out = HeldOut(torch.arange(300), torch.zeros(300, dtype=torch.int64), row, row)
    adapted, baseline = (
        torch.tensor(log_probs).log().expand(50, 3) for log_probs in ([0.51, 1e-30, 0.49], [1e-30, 0.51, 0.49])
    )
    found = estimate_gain(held_out, adapted, baseline)
    assert found.unlabeled.value == 0
    assert found.gain.chance == pytest.approx(0.5)


def test_the_weighted_mean_counts_classes_as_often_as_wanted() -> None:
    values, classes = torch.tensor([0.2, 0.4, 1.0]).double(), torch.tensor([0, 0, 2])
    wanted = torch.tensor([0.6, 0.3, 0.1])
    middle, error = weighted_mean(values, classes, wanted, 0.1)
    assert middle == pytest.approx((0.6 * 0.3 + 0.1 * 1.0) / 0.7)
    _, of_more = weighted_mean(values.repeat(30), classes.repeat(30), wanted, 0.1)
    assert 0 < of_more < error / 4


def test_proportions_of_a_long_tailed_target_are_found() -> None:
    labels = torch.tensor([0] * 900 + [1] * 50 + [2] * 50)
    # P(log_probs | class) is the same for all classes, so these are probabilities where all classes are as likely
    opinion = say(labels, 0.7, 3, 0).exp().double()
    found = estimate_proportions(opinion)
    counted = torch.bincount(opinion.argmax(dim=1)) / 1000
    assert float(counted[0]) + 0.05 < float(found[0]) < 0.9  # nearer to the truth, and short of it
    assert float(found.sum()) == pytest.approx(1)
    even = torch.full((10, 4), 0.25, dtype=torch.float64)
    assert estimate_proportions(even).tolist() == pytest.approx([0.25] * 4)


def test_a_model_that_is_too_sure_gets_a_higher_temperature() -> None:
    labels = torch.arange(400) % 4
    honest = say(labels, 0.7, 4, 0).double()
    assert 0.8 < temperature_for(honest, labels, torch.arange(400)) < 1.25
    assert 4 < temperature_for(5 * honest, labels, torch.arange(400)) < 6
    assert temperature_for(5 * honest[:2], labels[:2], torch.arange(2)) < 3  # two images prove little


def test_together_is_the_product() -> None:
    first, second = torch.tensor([[0.9, 0.1]]), torch.tensor([[0.25, 0.75]])
    found = together(first.log(), second.log(), 1.0, 1.0)
    assert found[0].tolist() == pytest.approx([0.75, 0.25])
    assert together(first.log(), second.log(), 100.0, 1.0)[0, 0] < 0.26


def test_each_repetition_of_an_image_counts_in_its_mean() -> None:
    images, means = mean_per_image(torch.tensor([4, 1, 4, 4]), torch.tensor([1.0, 5.0, 2.0, 3.0]))
    assert (images.tolist(), means.tolist()) == ([1, 4], [5.0, 2.0])


def test_repeating_what_is_known_adds_nothing() -> None:
    held_out, adapted, baseline = problem(0.8, 0.7, 20)
    twice = estimate_gain(HeldOut.join([held_out, held_out]), adapted, baseline).labeled
    once = estimate_gain(held_out, adapted, baseline).labeled
    assert twice.value == pytest.approx(once.value)
    assert twice.deviation == pytest.approx(once.deviation)


def test_evidence_is_weighted_by_its_precision() -> None:
    found = combine(0.2, Evidence(0.5, UNLABELED_ERROR), Evidence(0.1, 0.2))
    sharp = [1 / UNLABELED_ERROR**2, 1 / 0.2**2, 1 / SPREAD**2]
    theta = (0.5 * sharp[0] + 0.1 * sharp[1]) / sum(sharp)
    assert found.estimate == pytest.approx(0.2 * theta)
    assert found.high == pytest.approx(0.2 * (theta + 1.96 / sum(sharp) ** 0.5), rel=1e-3)
    assert combine(0.2, Evidence(0.5, 1e6), Evidence(0.1, 1e6)).smallest == math.inf


@given(st.floats(0.01, 0.9), st.floats(0.05, 2.0))
def test_the_smallest_gain_is_where_the_verdict_turns(disputed: float, deviation: float) -> None:
    smallest = combine(disputed, Evidence(0.0, UNLABELED_ERROR), Evidence(0.0, deviation)).smallest
    if math.isfinite(smallest):
        for factor, verdict in ((1.01, "helps"), (0.99, "unclear")):
            theta = factor * smallest / disputed
            assert (
                verdict_of(combine(disputed, Evidence(theta, UNLABELED_ERROR), Evidence(theta, deviation))) == verdict
            )


def test_more_images_show_less_and_there_is_an_end() -> None:
    found = estimate_gain(*problem(0.76, 0.72, 24))
    seen = found.gain.smallest
    few, many = (images_needed(found, 24, share * seen) for share in (0.9, 0.7))
    assert few is not None
    assert many is not None
    assert 24 < few < many
    assert images_needed(found, 24, 0.01 * seen) is None
    assert found.labeled.deviation > FOLD_ERROR


def test_the_verdict_needs_its_probability() -> None:
    assert [verdict_of(Gain(0, 0, 0, chance, 0)) for chance in (0.96, 0.94, 0.06, 0.04)] == [
        *("helps", "unclear"),
        *("unclear", "harms"),
    ]
