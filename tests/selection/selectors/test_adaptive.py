from __future__ import annotations

import dataclasses
import math
import statistics
from collections.abc import Sequence

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tests.selection.problem import K, make_round
from torch import Tensor

from qurate.selection.pseudo_labels import Round
from qurate.selection.selectors import AdaptiveConfig, AdaptiveSelector, ShareSelector, TopShareConfig, balance

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
def test_it_takes_what_a_plain_loop_takes(sizes: tuple[int, ...], progress: float, share: float) -> None:
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
def test_lopsided_predictions_are_followed_and_not_balanced(progress: float) -> None:
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
