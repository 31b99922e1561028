"""Each selector against a plain loop."""

from __future__ import annotations

import dataclasses
import math
import statistics
from collections.abc import Sequence

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tests.selection.problem import K, blobs, config, make_round
from torch import Tensor

from qurate.config import NoneConfig, RewardConfig, SelectorConfig
from qurate.data.batches import TrainingData
from qurate.runtime.randomness import generator, stream_seed
from qurate.selection.algorithm import fit
from qurate.selection.pseudo_labels import Round
from qurate.selection.selectors import (
    AdaptiveConfig,
    AdaptiveSelector,
    BalancedConfig,
    BalancedSelector,
    ConfidenceConfig,
    ConfidenceSelector,
    NoneSelector,
    OracleSelector,
    QualityConfig,
    QualitySelector,
    RandomConfig,
    RandomSelector,
    ShareSelector,
    TopShareConfig,
    balance,
)
from qurate.selection.state import View
from qurate.training import start

ROUND = make_round(noise=2.0)
EVEN, BETWEEN, LOPSIDED = (20, 20, 20, 20), (32, 20, 16, 12), (50, 14, 10, 6)


def round_of(sizes: Sequence[int], progress: float = 0.5, phi: Tensor | None = None, gap: float = 1.0) -> Round:
    """A round whose pseudo-classes have these sizes.

    Quality falls evenly within each class, and from class to class by a gap, unless it is given.
    """
    labels = torch.tensor([label for label, size in enumerate(sizes) for _ in range(size)])
    within = torch.cat([torch.arange(size) / size for size in sizes])
    order = torch.randperm(80, generator=torch.Generator().manual_seed(1))
    round = dataclasses.replace(ROUND, pseudo_labels=labels[order], progress=progress)
    round.__dict__["phi"] = -(within + gap * labels)[order] if phi is None else phi
    return round


def by_a_plain_loop(phi: list[float], labels: list[int], share: float) -> set[tuple[int, int]]:
    """One sample after another, the best first, as long as its class has room."""
    n = len(phi)
    distance = sum(abs(labels.count(k) / n - 1 / K) for k in range(K))
    w = min(1.0, max(0.0, (0.6 - distance) / 0.35))
    medians = {k: statistics.median(phi[i] for i in range(n) if labels[i] == k) for k in set(labels)}
    most = math.ceil(share * n * (1.15 * w / K + 1 - w))
    given = dict.fromkeys(range(K), 0)
    taken: set[tuple[int, int]] = set()
    for i in sorted(range(n), key=lambda i: -(phi[i] - w * medians[labels[i]])):
        if len(taken) < math.ceil(share * n) and given[labels[i]] < most:
            given[labels[i]] += 1
            taken.add((i, labels[i]))
    return taken


@pytest.mark.parametrize("sizes", [EVEN, BETWEEN, LOPSIDED, (78, 1, 1, 0)])
@pytest.mark.parametrize(("progress", "share"), [(0.0, 0.25), (0.5, 0.5), (1.0, 0.75)])
def test_adaptive_takes_what_a_plain_loop_takes(sizes: tuple[int, ...], progress: float, share: float) -> None:
    round = round_of(sizes, progress, ROUND.phi.double())
    selector = AdaptiveSelector(AdaptiveConfig(share_start=0.25, share_end=0.75))
    chosen = selector.select(round)
    assert chosen.pairs() == by_a_plain_loop(round.phi.tolist(), round.pseudo_labels.tolist(), share)
    assert len(chosen) > 0


@pytest.mark.parametrize(("sizes", "w"), [(EVEN, 1.0), (BETWEEN, (0.6 - 0.3) / 0.35), (LOPSIDED, 0.0)])
def test_how_far_it_balances_depends_on_how_equal_the_predicted_classes_are(sizes: tuple[int, ...], w: float) -> None:
    assert balance(round_of(sizes), AdaptiveConfig()) == pytest.approx(w)


@pytest.mark.parametrize("progress", [0.0, 0.5, 1.0])
def test_equal_predictions_give_nearly_equal_counts_whatever_the_quality_of_a_class(progress: float) -> None:
    config = AdaptiveConfig()
    chosen = AdaptiveSelector(config).select(round_of(EVEN, progress))
    counts = torch.bincount(chosen.labels, minlength=K)
    equal = config.share_at(progress) * 80 / K
    assert int(counts.max()) <= math.ceil(1.15 * equal)
    assert int(counts.min()) >= 0.7 * equal
    by_quality = ShareSelector(TopShareConfig()).select(round_of(EVEN, progress))
    assert int(torch.bincount(by_quality.labels, minlength=K).max()) == min(20, len(by_quality))


@pytest.mark.parametrize("progress", [0.0, 0.5, 1.0])
def test_imbalanced_predictions_are_followed_and_not_balanced(progress: float) -> None:
    round = round_of(LOPSIDED, progress, gap=0.0)
    chosen = AdaptiveSelector(AdaptiveConfig()).select(round)
    assert chosen.pairs() == ShareSelector(TopShareConfig()).select(round).pairs()
    shares = torch.bincount(chosen.labels, minlength=K) / len(chosen)
    assert float((shares - torch.tensor(LOPSIDED) / 80).abs().sum()) < 0.15


@given(st.lists(st.integers(0, K - 1), min_size=80, max_size=80), st.floats(0, 1))
def test_no_class_gives_more_than_its_room_and_no_more_than_the_share_is_taken(
    labels: list[int], progress: float
) -> None:
    config = AdaptiveConfig()
    round = dataclasses.replace(ROUND, pseudo_labels=torch.tensor(labels), progress=progress)
    chosen, w = AdaptiveSelector(config).select(round), balance(round, config)
    wanted = config.share_at(progress) * 80
    assert len(chosen.indices.unique()) == len(chosen) <= math.ceil(wanted)
    assert int(torch.bincount(chosen.labels).max()) <= math.ceil(wanted * (1.15 * w / K + 1 - w))


@pytest.mark.parametrize(("progress", "share"), [(0.0, 0.3), (0.5, 0.5), (1.0, 0.7)])
def test_balanced_takes_what_a_plain_loop_takes(progress: float, share: float) -> None:
    round = dataclasses.replace(make_round(noise=2.0), progress=progress)
    phi, labels = round.phi.tolist(), round.pseudo_labels.tolist()
    expected = set()
    for label in range(K):
        members = sorted((i for i in range(80) if labels[i] == label), key=lambda i: -phi[i])
        expected |= {(i, label) for i in members[: math.ceil(share * len(members))]}
    chosen = BalancedSelector(BalancedConfig(share_start=0.3, share_end=0.7)).select(round)
    assert chosen.pairs() == expected
    assert len(chosen) == len(expected) < 80


def test_a_class_of_one_gives_it_and_an_empty_class_nothing() -> None:
    labels = torch.zeros(80, dtype=torch.int64)
    labels[5] = 2
    round = dataclasses.replace(make_round(), pseudo_labels=labels, progress=0.0)
    chosen = BalancedSelector(BalancedConfig()).select(round)
    assert torch.bincount(chosen.labels, minlength=K).tolist() == [16, 0, 1, 0]  # a fifth of 79, rounded up


@pytest.mark.parametrize("threshold", [0.5, 0.9, 0.99])
def test_confidence_takes_what_a_plain_loop_takes(threshold: float) -> None:
    round = make_round(noise=3.0)
    expected = {}
    for i, row in enumerate(round.unlabeled.probabilities.tolist()):
        label = max(range(len(row)), key=lambda j: row[j])
        if row[label] > threshold:
            expected[i] = label
    chosen = ConfidenceSelector(ConfidenceConfig(threshold=threshold)).select(round)
    assert dict(zip(chosen.indices.tolist(), chosen.labels.tolist(), strict=True)) == expected
    assert 0 < len(chosen) < 80


def test_the_threshold_of_confidence_itself_is_not_enough() -> None:
    round = make_round()
    rows = torch.cat([round.unlabeled.features, torch.tensor([[0.75, 0.25, 0.0, 0.0]]).repeat(80, 1)], dim=1)
    rows[7, -4:] = torch.tensor([0.875, 0.125, 0.0, 0.0])
    round = dataclasses.replace(
        round, unlabeled=View(rows, round.unlabeled.d), pseudo_labels=torch.zeros(80, dtype=torch.int64)
    )
    assert ConfidenceSelector(ConfidenceConfig(threshold=0.75)).select(round).indices.tolist() == [7]


def test_the_papers_threshold_is_the_default() -> None:
    assert SelectorConfig.of("confidence") == ConfidenceConfig(threshold=0.9)


def test_nothing_is_trusted_even_where_all_is_certain() -> None:
    assert len(NoneSelector(NoneConfig()).select(make_round(noise=0.1))) == 0


def test_the_result_is_the_base_model_and_there_are_no_rounds() -> None:
    split, run = blobs(), config("none", rounds=5)
    result = fit(split, run)
    trainer = start(split, run)
    trainer.run(TrainingData.of(split), steps=60, seed=stream_seed(run.seed, 1))
    assert result.rounds == ()
    assert result.stopped == "no selector: the base model is the result"
    for name, values in trainer.method.state_dict().items():
        assert torch.equal(values, result.method.state_dict()[name]), name


def test_oracle_takes_what_a_plain_loop_takes() -> None:
    round = make_round(noise=2.0)
    truth = [i % K for i in range(80)]
    expected = {
        (i, y) for i, (y, guess) in enumerate(zip(truth, round.pseudo_labels.tolist(), strict=True)) if y == guess
    }
    chosen = OracleSelector(torch.tensor(truth)).select(round)
    assert chosen.pairs() == expected
    assert 0 < len(chosen) < 80  # some pseudo-labels are wrong


def test_a_run_with_it_ends_with_right_labels_only() -> None:
    labels = torch.arange(80) % K
    result = fit(blobs(), config(rounds=1), selector=OracleSelector(labels))
    assert len(result.positives) > 0
    assert torch.equal(result.positives.labels, labels[result.positives.indices])


def plain_phi(round: Round) -> list[float]:
    """log p_c + log p_f with centres over D_t, by hand."""
    target, labels = round.target.features, round.data.target.labels.tolist()
    centers = [torch.stack([target[i] for i, y in enumerate(labels) if y == j]).mean(0) for j in range(K)]
    values = []
    for features, probabilities, label in zip(
        round.unlabeled.features, round.unlabeled.probabilities, round.pseudo_labels.tolist(), strict=True
    ):
        cosines = [float(torch.nn.functional.cosine_similarity(features, center, dim=0)) for center in centers]
        masses = [math.exp(30 * cosine) for cosine in cosines]
        values.append(math.log(float(probabilities[label])) + math.log(masses[label] / sum(masses)))
    return values


@pytest.mark.parametrize("threshold", ["fixed", "class_median"])
def test_quality_takes_what_a_plain_loop_takes(threshold: str) -> None:
    round = make_round(RewardConfig(threshold=threshold), noise=2.0)  # type: ignore[arg-type]  # one of the two
    phi, labels = plain_phi(round), round.pseudo_labels.tolist()
    expected = set()
    for i, (value, label) in enumerate(zip(phi, labels, strict=True)):
        median = statistics.median(other for other, own in zip(phi, labels, strict=True) if own == label)
        tau = 2 * math.log(0.9) if threshold == "fixed" else median
        if value > tau + 1e-5:
            expected.add((i, label))
        else:
            assert value < tau - 1e-5 or threshold == "class_median"  # nobody is on the edge, but the median itself
    chosen = QualitySelector(QualityConfig()).select(round)
    assert chosen.pairs() == expected
    assert 0 < len(chosen) < 80


def test_the_threshold_of_quality_itself_is_not_enough() -> None:
    labels = torch.zeros(80, dtype=torch.int64)
    labels[5] = 2  # alone in its class, it is the median
    round = dataclasses.replace(make_round(RewardConfig(threshold="class_median")), pseudo_labels=labels)
    assert float(round.phi[5]) == float(round.threshold[5])
    chosen = QualitySelector(QualityConfig()).select(round).indices.tolist()
    assert 5 not in chosen
    assert len(chosen) > 30


SELECTOR = RandomSelector(RandomConfig(share_start=0.25, share_end=0.75))


@pytest.fixture(scope="module")
def round() -> Round:
    return make_round()


@pytest.mark.parametrize(("progress", "count"), [(0.0, 20), (0.5, 40), (0.51, 41), (1.0, 60)])
def test_it_takes_its_share_rounded_up_each_once_under_its_pseudo_label(
    round: Round, progress: float, count: int
) -> None:
    chosen = SELECTOR.select(dataclasses.replace(round, progress=progress))
    assert len(set(chosen.indices.tolist())) == len(chosen) == count
    assert chosen.labels.tolist() == [int(round.pseudo_labels[i]) for i in chosen.indices.tolist()]


def test_the_generator_of_the_round_decides_and_favours_nobody(round: Round) -> None:
    taken = torch.zeros(80)
    for seed in range(400):
        first, second = (
            SELECTOR.select(dataclasses.replace(round, progress=0.5, rng=generator(seed))) for _ in range(2)
        )
        assert first.indices.tolist() == second.indices.tolist()
        taken[first.indices] += 1
    assert float(taken.mean()) == 200
    assert 150 < float(taken.min()) < 200 < float(taken.max()) < 250  # five deviations of a fair draw


@pytest.mark.parametrize(("progress", "count"), [(0.0, 24), (0.5, 40), (1.0, 56)])
def test_share_takes_what_a_plain_loop_takes(progress: float, count: int) -> None:
    round = dataclasses.replace(make_round(noise=2.0), progress=progress)
    phi, labels = round.phi.tolist(), round.pseudo_labels.tolist()
    expected = {(i, labels[i]) for i in sorted(range(80), key=lambda i: -phi[i])[:count]}
    chosen = ShareSelector(TopShareConfig(share_start=0.3, share_end=0.7)).select(round)
    assert chosen.pairs() == expected


def test_a_class_of_poor_quality_gives_nothing() -> None:
    labels = torch.arange(80) % 2
    round = dataclasses.replace(make_round(), pseudo_labels=labels, progress=0.0)
    round.__dict__["phi"] = -labels.float() - torch.arange(80) / 1000
    chosen = ShareSelector(TopShareConfig()).select(round)
    assert torch.bincount(chosen.labels, minlength=2).tolist() == [16, 0]  # a fifth of 80
