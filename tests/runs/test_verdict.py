"""The verdict: each part against a plain loop or by what must hold, the whole on models of known truth."""

from __future__ import annotations

import dataclasses
import math
from pathlib import Path

import pytest
import safetensors.torch
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from qurate.run_results import Gain
from qurate.runs.verdict import (
    FOLD_ERROR,
    PRIOR_IMAGES,
    SPREAD,
    UNLABELED_ERROR,
    Evidence,
    difference_of_margins,
    estimate_gain,
    images_needed,
    labeled_evidence,
    mean_per_image,
    posterior,
    soft_right,
    verdict_of,
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
    assert 0.1 < abs(found.gain.estimate) < 0.4


def test_a_recorded_run_that_harms_is_said_to_harm() -> None:
    """Digits, 30 labels per class, MME at twenty times its usual weight, combined with S+T; a quarter of D_u."""
    kept = safetensors.torch.load_file(Path(__file__).with_name("harmful_run.safetensors"))
    images, labels, truth = (kept[name].long() for name in ("images", "labels", "truth"))
    held_out = HeldOut(images, labels, kept["adapted"].float(), kept["baseline"].float())
    adapted, baseline = (kept[f"{who}_unlabeled"].float() for who in ("adapted", "baseline"))
    found = estimate_gain(held_out, adapted, baseline).gain
    right, plain = ((said.argmax(dim=1) == truth).double().mean() for said in (adapted, baseline))
    assert float(right - plain) < -0.02
    assert found.low <= float(right - plain) <= found.high < 0
    assert verdict_of(found) == "harms"


@given(st.floats(-1, 1), st.floats(0, 1), st.floats(0, 1))
def test_the_verdict_is_whether_the_interval_excludes_zero(estimate: float, below: float, above: float) -> None:
    gain = Gain(estimate, estimate - below, estimate + above, 0.1)
    assert (verdict_of(gain) == "helps") == (gain.low > 0)
    assert (verdict_of(gain) == "harms") == (gain.high < 0)


def test_equal_models_have_no_verdict() -> None:
    assert verdict_of(estimate_gain(*problem(0.75, 0.75, 40)).gain) == "unclear"


@given(st.integers(0, 1000), st.floats(0.3, 0.95), st.floats(0.3, 0.95), st.integers(8, 60))
def test_swapping_the_models_swaps_the_sign(seed: int, adapted: float, baseline: float, images: int) -> None:
    """As far as both are calibrated; S+T is calibrated here, and the model before."""
    held_out, said, other = problem(adapted, baseline, images, seed=seed)
    margins = [difference_of_margins(*pair) for pair in ((said.exp(), other.exp()), (other.exp(), said.exp()))]
    assert margins[0] == pytest.approx(-margins[1])
    right = [soft_right(each.exp(), held_out.labels) for each in (held_out.adapted, held_out.baseline)]
    one, two = (labeled_evidence(difference, 0.4) for difference in (right[0] - right[1], right[1] - right[0]))
    assert one.value == pytest.approx(-two.value)
    assert one.deviation == pytest.approx(two.deviation)
    gain, swapped = (
        posterior(0.4, Evidence(margin, UNLABELED_ERROR), labeled)
        for margin, labeled in zip(margins, (one, two), strict=True)
    )
    assert [swapped.estimate, swapped.low, swapped.high] == pytest.approx([-gain.estimate, -gain.high, -gain.low])
    assert swapped.smallest == pytest.approx(gain.smallest)


def test_the_interval_holds_the_truth_as_often_as_stated() -> None:
    held = wrong = 0
    for seed in range(100):
        better, worse = (0.78, 0.70) if seed % 2 else (0.70, 0.78)
        held_out, adapted, baseline = problem(better, worse, 21, seed=10 * seed)
        found = estimate_gain(held_out, adapted, baseline).gain
        truth = torch.arange(2000) % 4
        right = [(said.argmax(dim=1) == truth).double().mean() for said in (adapted, baseline)]
        held += found.low <= float(right[0] - right[1]) <= found.high
        wrong += verdict_of(found) == ("harms" if better > worse else "helps")
    assert held >= 92
    assert wrong <= 3


def test_more_images_narrow_the_interval() -> None:
    widths = []
    for images in (12, 48, 192, 768):
        gain = estimate_gain(*problem(0.76, 0.72, images)).gain
        widths.append(gain.high - gain.low)
    assert widths == sorted(widths, reverse=True)
    assert widths[-1] < widths[0] / 2


def test_models_that_agree_everywhere_have_no_gain() -> None:
    held_out, adapted, _ = problem(0.8, 0.8, 12)
    same = dataclasses.replace(held_out, baseline=held_out.adapted)
    found = estimate_gain(same, adapted, adapted)
    assert (found.disagreement, found.gain.estimate, found.gain.low, found.gain.high) == (0, 0, 0, 0)
    assert found.gain.smallest == math.inf
    assert verdict_of(found.gain) == "unclear"


@given(st.integers(0, 1000), st.floats(0.3, 0.95), st.floats(0.3, 0.95), st.integers(4, 60))
def test_no_gain_is_larger_than_the_disagreement(seed: int, adapted: float, baseline: float, images: int) -> None:
    found = estimate_gain(*problem(adapted, baseline, images, seed=seed))
    most = found.disagreement + 1e-9
    assert -most <= found.gain.low <= found.gain.estimate <= found.gain.high <= most


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
    first, second = torch.rand(2, 50, 3, generator=rng).double()
    margins = []
    for one, other in zip(first.tolist(), second.tolist(), strict=True):
        mine, yours = one.index(max(one)), other.index(max(other))
        if mine != yours:
            margins.append((one[mine] - one[yours]) - (other[yours] - other[mine]))
    assert 0 < len(margins) < 50
    assert difference_of_margins(first, second) == pytest.approx(sum(margins) / len(margins))
    assert difference_of_margins(first, first) == 0


def test_labeled_evidence_is_that_of_a_loop() -> None:
    values = [0.2, -0.4, 1.0, 0.0]
    middle = sum(values) / 4
    variance = (sum((value - middle) ** 2 for value in values) + PRIOR_IMAGES * 0.1) / (3 + PRIOR_IMAGES)
    found = labeled_evidence(torch.tensor(values).double(), 0.1)
    assert found.value == pytest.approx(middle / 0.1)
    assert found.deviation == pytest.approx(math.hypot(math.sqrt(variance / 4) / 0.1, FOLD_ERROR))


def test_a_model_without_any_chance_for_a_class_is_judged_all_the_same() -> None:
    labels = torch.arange(30) % 3
    certain = torch.eye(3).log()
    held_out = HeldOut(torch.arange(30), labels, certain[labels], certain[(labels + (labels == 0).long()) % 3])
    found = estimate_gain(held_out, certain[labels], certain[(labels + 1) % 3])
    assert math.isfinite(found.gain.estimate)
    assert found.gain.estimate > 0


def test_each_repetition_of_an_image_counts_in_its_mean() -> None:
    assert mean_per_image(torch.tensor([4, 1, 4, 4]), torch.tensor([1.0, 5.0, 2.0, 3.0])).tolist() == [5.0, 2.0]


def test_evidence_is_weighted_by_its_precision() -> None:
    found = posterior(0.2, Evidence(0.5, UNLABELED_ERROR), Evidence(0.1, 0.2))
    sharp = [1 / UNLABELED_ERROR**2, 1 / 0.2**2, 1 / SPREAD**2]
    theta = (0.5 * sharp[0] + 0.1 * sharp[1]) / sum(sharp)
    assert found.estimate == pytest.approx(0.2 * theta)
    assert found.high == pytest.approx(0.2 * (theta + 1.96 / sum(sharp) ** 0.5), rel=1e-3)
    assert posterior(0.2, Evidence(0.5, 1e6), Evidence(0.1, 1e6)).smallest == math.inf


@given(st.floats(0.01, 0.9), st.floats(0.05, 2.0))
def test_the_smallest_gain_is_where_the_verdict_turns(disputed: float, deviation: float) -> None:
    smallest = posterior(disputed, Evidence(0.0, UNLABELED_ERROR), Evidence(0.0, deviation)).smallest
    if math.isfinite(smallest):
        for factor, verdict in ((1.01, "helps"), (0.99, "unclear")):
            theta = factor * smallest / disputed
            gain = posterior(disputed, Evidence(theta, UNLABELED_ERROR), Evidence(theta, deviation))
            assert verdict_of(gain) == verdict


def test_more_images_show_less_and_there_is_an_end() -> None:
    found = estimate_gain(*problem(0.76, 0.72, 24))
    seen = found.gain.smallest
    few, many = (images_needed(found, 24, share * seen) for share in (0.9, 0.7))
    assert few is not None
    assert many is not None
    assert 24 < few < many
    assert images_needed(found, 24, 0.01 * seen) is None
    assert found.labeled.deviation > FOLD_ERROR
