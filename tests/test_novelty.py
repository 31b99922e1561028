"""The score of belonging: each part against a plain loop, and what the p-values, the flags and the score promise."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from sklearn.linear_model import Ridge
from sklearn.metrics import roc_auc_score
from torch import Tensor

from qurate.data.samples import Labeled
from qurate.novelty import (
    FALSE_DISCOVERY_RATE,
    Novelty,
    ScoreFitter,
    class_means,
    conformal_p_values,
    domain_means,
    fit_novelty,
    fit_ridge,
    flag,
    highest_known_share,
    known_of_scores,
    known_share,
    mean_direction,
    nearest_cosine,
    smooth,
    standardize,
    unit,
)


def rng(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=rng(seed), dtype=torch.float64)


def test_rows_get_length_one_and_values_the_spread_of_the_reference() -> None:
    rows = normal(7, 3).float()
    for row, found in zip(rows.tolist(), unit(rows).tolist(), strict=True):
        length = math.sqrt(sum(x * x for x in row))
        assert found == pytest.approx([x / length for x in row], abs=1e-6)
    values, reference = normal(5, seed=1), normal(9, seed=2) * 3 + 1
    known = reference.tolist()
    mean = sum(known) / 9
    spread = math.sqrt(sum((x - mean) ** 2 for x in known) / 9)
    assert standardize(values, reference).tolist() == pytest.approx([(x - mean) / spread for x in values.tolist()])
    assert bool(standardize(torch.ones(3), torch.ones(4)).eq(0).all())


def test_a_class_mean_is_the_mean_over_domains_of_the_domains_mean() -> None:
    """Class 1 is absent from the second domain, class 3 from both."""
    parts = [
        (normal(6, 4).float(), torch.tensor([0, 0, 0, 1, 1, 2])),
        (normal(3, 4, seed=1).float(), torch.tensor([0, 2, 2])),
    ]
    found = class_means([domain_means(*part, 4) for part in parts]).numpy()
    for k in range(4):
        total = np.zeros(4)
        for rows, labels in parts:
            members = [row for row, label in zip(rows.numpy(), labels.tolist(), strict=True) if label == k]
            if members:
                total += sum(members) / len(members)
        length = math.sqrt(float((total**2).sum()))
        assert found[k] == pytest.approx(total / length if length else total, abs=1e-6)
    assert not found[3].any()


def test_the_largest_cosine_is_that_of_a_plain_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("qurate.novelty._SLICE", 4)
    rows, others = unit(normal(11, 5)), unit(normal(8, 5, seed=1))
    by_hand = rows.numpy() @ others.numpy().T
    assert nearest_cosine(rows, others).tolist() == pytest.approx([max(row) for row in by_hand])


@pytest.mark.parametrize("weight", [0.0, 0.5, 0.8])
def test_smooth_scores_solve_the_linear_system(weight: float) -> None:
    n, k = 40, 5
    scores, neighbors = normal(n), torch.stack([torch.randperm(n, generator=rng(i))[:k] for i in range(n)])
    average = np.zeros((n, n))
    for i, near in enumerate(neighbors.tolist()):
        for j in near:
            average[i, j] += 1 / k
    exact = np.linalg.solve(np.eye(n) - weight * average, (1 - weight) * scores.numpy())
    assert smooth(scores, neighbors, weight).numpy() == pytest.approx(
        exact, abs=0.8**30 * 2 * float(scores.abs().max())
    )


def test_smoothing_leaves_a_constant_and_brings_neighbours_together() -> None:
    neighbors = torch.tensor([[1, 2], [0, 2], [0, 1], [4, 5], [3, 5], [3, 4]])
    assert smooth(torch.full((6,), 2.5), neighbors, 0.8).tolist() == pytest.approx([2.5] * 6)
    found = smooth(torch.tensor([0.0, 0.0, 3.0, 10.0, 10.0, 13.0]), neighbors, 0.8)
    assert float(found[:3].max() - found[:3].min()) < 1
    assert found[:3].mean().item() == pytest.approx(1, abs=0.02)  # the two groups do not mix
    assert found[3:].mean().item() == pytest.approx(11, abs=0.02)


@pytest.mark.parametrize(("penalty", "slice_size"), [(0.3, 100), (5.0, 100), (0.3, 7)])
def test_ridge_is_augmented_least_squares(penalty: float, slice_size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """||[x 1; sqrt(penalty) I 0] (w, b) - (y, 0)||^2 is the same problem."""
    monkeypatch.setattr("qurate.novelty._RIDGE_SLICE", slice_size)
    x, y = normal(30, 6).float(), normal(30, seed=1).float() + 4
    rows = np.hstack([x.numpy(), np.ones((30, 1))])
    added = np.hstack([math.sqrt(penalty) * np.eye(6), np.zeros((6, 1))])
    exact = np.linalg.lstsq(np.vstack([rows, added]), np.concatenate([y.numpy(), np.zeros(6)]), rcond=None)[0]
    weight, bias = fit_ridge(x, y, penalty)
    assert weight.numpy() == pytest.approx(exact[:6], abs=1e-5)
    assert bias == pytest.approx(exact[6], abs=1e-5)


def test_ridge_with_more_columns_than_rows_is_solved() -> None:
    weight, bias = fit_ridge(normal(5, 20).float(), torch.full((5,), 2.0), 0.3)
    assert weight.abs().max().item() == pytest.approx(0, abs=1e-6)
    assert bias == pytest.approx(2)


def p_value_by_hand(score: float, held_out: Sequence[float]) -> float:
    mean = sum(held_out) / len(held_out)
    spread = max(math.sqrt(sum((x - mean) ** 2 for x in held_out) / len(held_out)), 1e-6)
    rank = sum(x <= score for x in held_out)
    tail = math.exp((score - min(held_out)) / spread) if score < min(held_out) else 1.0
    return (1 + rank) / (len(held_out) + 1) * tail


@given(st.integers(1, 30), st.integers(1, 30), st.integers(0, 50))
def test_p_values_are_those_of_a_plain_loop(n: int, images: int, seed: int) -> None:
    scores = (normal(images, seed=seed) * 2).round(decimals=1)  # with ties
    held_out = normal(n, seed=seed + 100).round(decimals=1)
    by_hand = [p_value_by_hand(score, held_out.tolist()) for score in scores.tolist()]
    assert conformal_p_values(scores, held_out).tolist() == pytest.approx(by_hand)


@pytest.mark.parametrize("n", [21, 93])
def test_p_values_of_exchangeable_scores_are_uniform(n: int) -> None:
    """At steps of 1 / (n + 1) P(p <= t) is t; below the first step, where the rank tells no more, at most t."""
    repeats = 20_000
    draws = normal(repeats, n + 1, seed=n)
    p_values = torch.cat([conformal_p_values(row[:1], row[1:]) for row in draws])
    for step in (1, 2, n // 4, n // 2, n):
        t = step / (n + 1)
        noise = 4 * math.sqrt(t * (1 - t) / repeats)
        assert float((p_values <= t + 1e-6).double().mean()) == pytest.approx(t, abs=noise)
    for t in (0.5 / (n + 1), 0.2 / (n + 1), 0.05 / (n + 1)):
        assert float((p_values <= t).double().mean()) <= t + 4 * math.sqrt(t / repeats)


def flags_by_hand(p_values: list[float], level: float) -> list[bool]:
    """Benjamini and Hochberg with Storey's share, as in a textbook."""
    n = len(p_values)
    share = min(1.0, (1 + sum(p > 0.5 for p in p_values)) / (0.5 * n))
    order = sorted(range(n), key=lambda i: p_values[i])
    last = 0
    for k in range(1, n + 1):
        if p_values[order[k - 1]] <= level * k / (n * share):
            last = k
    return [i in order[:last] for i in range(n)]


@given(st.lists(st.floats(1e-6, 1.0), min_size=1, max_size=60), st.sampled_from([0.05, 0.1, 0.3]))
def test_flags_are_those_of_a_plain_loop(p_values: list[float], level: float) -> None:
    tensor = torch.tensor(p_values, dtype=torch.float64)
    assert flag(tensor, level).tolist() == flags_by_hand(p_values, level)
    assert known_share(tensor) == pytest.approx(min(1.0, (1 + sum(p > 0.5 for p in p_values)) / (0.5 * len(p_values))))


def test_no_flagged_image_has_a_larger_p_value_than_one_that_is_not() -> None:
    p_values = torch.rand(500, generator=rng(), dtype=torch.float64) ** 3
    flagged = flag(p_values)
    assert 0 < int(flagged.sum()) < 500
    assert float(p_values[flagged].max()) <= float(p_values[~flagged].min())
    assert bool((flag(p_values, 0.2) | ~flagged).all())  # a higher level flags no fewer


@pytest.mark.parametrize(("share", "distance"), [(0.5, 3.0), (0.8, 3.0), (0.95, 4.0), (0.75, 1.5)])
def test_the_false_discovery_rate_is_held_on_mixtures(share: float, distance: float) -> None:
    images, held, found, wrong = 400, 93, [], []
    known = torch.arange(images) < share * images
    for seed in range(300):
        scores = normal(images, seed=seed) - distance * (~known)
        flagged = flag(conformal_p_values(scores, normal(held, seed=seed + 10_000)))
        wrong.append(int((flagged & known).sum()) / max(1, int(flagged.sum())))
        found.append(int((flagged & ~known).sum()) / int((~known).sum()))
    standard_error = float(np.std(wrong)) / math.sqrt(len(wrong))
    assert np.mean(wrong) <= FALSE_DISCOVERY_RATE + 3 * standard_error
    if distance >= 3:
        assert np.mean(found) > 0.3


def test_a_clean_folder_is_flagged_in_few_draws() -> None:
    """Where all images are known each flag is false, so the rate is how often there is any."""
    any_flag = [
        bool(flag(conformal_p_values(normal(400, seed=seed), normal(93, seed=seed + 10_000))).any())
        for seed in range(300)
    ]
    assert np.mean(any_flag) <= FALSE_DISCOVERY_RATE + 3 * math.sqrt(0.09 / 300)


@given(st.integers(2, 60), st.integers(0, 50))
def test_known_rises_with_the_score_and_is_the_p_value_at_held_out_scores(n: int, seed: int) -> None:
    held_out = normal(n, seed=seed).sort().values
    reach = 8 * float(held_out.std(correction=0))
    grid = torch.linspace(float(held_out[0]) - reach, float(held_out[-1]) + reach, 500, dtype=torch.float64)
    known = known_of_scores(grid, held_out)
    assert bool((known.diff() > 0).all())
    assert float(known[0]) > 0
    assert float(known[-1]) < 1
    p_values = conformal_p_values(held_out, held_out)
    assert float((known_of_scores(held_out, held_out) - p_values).abs().max()) <= 1 / (n + 1) + 1e-6
    below = grid < held_out[0]
    assert torch.allclose(known[below], conformal_p_values(grid[below], held_out), atol=1e-6)


def test_known_has_no_jump_and_stands_ties() -> None:
    held_out = torch.tensor([-1.0, 0.0, 0.0, 2.0], dtype=torch.float64)
    for place in (-1.0, 2.0):
        low, high = known_of_scores(torch.tensor([place - 1e-9, place + 1e-9], dtype=torch.float64), held_out)
        assert float(high - low) == pytest.approx(0, abs=1e-6)
    grid = torch.linspace(-3, 4, 300, dtype=torch.float64)
    assert bool((known_of_scores(grid, held_out).diff() > 0).all())
    assert known_of_scores(torch.tensor([0.5, 1.0]), held_out.float()).tolist() == pytest.approx([3.25 / 5, 3.5 / 5])


WIDTH, CLASSES = 48, 8


class Folder:
    """Embeddings of two domains around class directions, and of a cluster or several of no class.

    Args:
        unknown: How many images of D_u are of no class.
        groups: Directions that those lie around.
        near: How far these lean towards a class, 0 to 1.
        shots: Labelled target images per class.
        seed: Of all of it.
    """

    def __init__(self, unknown: int, *, groups: int = 3, near: float = 0.0, shots: int = 6, seed: int = 0) -> None:
        self._rng = rng(seed)
        self.directions = unit(self._draw(CLASSES, WIDTH))
        self.shift = 0.8 * unit(self._draw(1, WIDTH))
        self.source = Labeled(self._around(torch.arange(CLASSES).repeat(20)), torch.arange(CLASSES).repeat(20))
        labels = torch.arange(CLASSES).repeat(shots)
        self.labeled = Labeled(self._around(labels) + self.shift, labels)
        others = unit((1 - near) * unit(self._draw(groups, WIDTH)) + near * self.directions[:groups])
        self.strange = others[torch.arange(unknown + 30) % groups] + self._noise(unknown + 30) + self.shift
        of_class = torch.arange(300) % CLASSES
        self.unlabeled = torch.cat([self._around(of_class) + self.shift, self.strange[:unknown]])
        self.known = torch.arange(300 + unknown) < 300

    def _draw(self, *shape: int) -> Tensor:
        return torch.randn(*shape, generator=self._rng)

    def _noise(self, count: int) -> Tensor:
        return 0.09 * self._draw(count, WIDTH)

    def _around(self, labels: Tensor) -> Tensor:
        return self.directions[labels] + self._noise(len(labels))

    def cosines(self, images: Tensor) -> Tensor:
        """What a classifier would give: the largest cosine to a class direction."""
        return nearest_cosine(unit(images - self.shift), self.directions)

    def fit(self, none: Tensor | None = None, *, held_out: int | None = None) -> tuple[Novelty, Tensor]:
        """The score, by three folds over the first `held_out` labelled images; all of them unless given."""
        assert isinstance(self.labeled.inputs, Tensor)
        fitter, folds = ScoreFitter(self.source, self.labeled, self.unlabeled, none), []
        for number in range(3):
            places = torch.arange(len(self.labeled))[:held_out]
            images = places[places // CLASSES % 3 == number]
            folds.append(
                fitter.score_fold(images, self.cosines(torch.cat([self.unlabeled, self.labeled.inputs[images]])))
            )
        return fit_novelty(fitter, self.cosines(self.unlabeled), folds)

    def auroc(self, novelty: Novelty) -> float:
        return float(roc_auc_score(self.known.numpy(), novelty.known(self.unlabeled).numpy()))


def fold_by_hand(folder: Folder, images: list[int], cosines: Tensor, none: Tensor) -> list[float]:
    """Scores of held-out images by NumPy: three signals, their smoothing to the fixed point, and ridge regression."""

    def unit_row(row: Any) -> Any:
        return row / np.linalg.norm(row)

    def rows_of(tensor: Tensor) -> list[Any]:
        return [unit_row(row) for row in tensor.double().numpy()]

    unlabeled, center = rows_of(folder.unlabeled), np.mean(rows_of(folder.unlabeled), axis=0)
    assert isinstance(folder.source.inputs, Tensor)
    assert isinstance(folder.labeled.inputs, Tensor)
    source = rows_of(folder.source.inputs)
    source = [unit_row(row - np.mean(source, axis=0)) for row in source]
    labeled, rejected = ([unit_row(row - center) for row in rows_of(part)] for part in (folder.labeled.inputs, none))
    rows = [unit_row(row - center) for row in unlabeled] + [labeled[i] for i in images]
    count, kept = len(unlabeled), [i for i in range(len(labeled)) if i not in images]
    means = []
    for label in range(CLASSES):
        of_source = [row for row, y in zip(source, folder.source.labels.tolist(), strict=True) if y == label]
        of_target = [labeled[i] for i in kept if int(folder.labeled.labels[i]) == label]
        means.append(unit_row(np.mean(of_source, axis=0) + (np.mean(of_target, axis=0) if of_target else 0)))
    to_classes = [max(row @ mean for mean in means) for row in rows]
    to_none = [max(row @ labeled[i] for i in kept) - max(row @ other for other in rejected) for row in rows]
    total = np.zeros(len(rows))
    for signal in (cosines.double().numpy(), np.array(to_classes), np.array(to_none)):
        total += (signal - signal[:count].mean()) / signal[:count].std()
    mixing = np.zeros((len(rows), len(rows)))
    for i, row in enumerate(rows):
        cosines_of = {j: float(row @ rows[j]) for j in range(count) if j != i}
        for j in sorted(cosines_of, key=cosines_of.__getitem__)[-5:]:
            mixing[i, j] = 1 / 5
    smoothed = np.linalg.solve(np.eye(len(rows)) - 0.8 * mixing, 0.2 * total)
    found = Ridge(alpha=0.3).fit(np.array(rows), smoothed)
    return list(found.predict(np.array([labeled[i] for i in images])))


@pytest.mark.parametrize("seed", range(2))
def test_held_out_images_are_scored_as_a_plain_loop_scores_them(seed: int) -> None:
    folder, images = Folder(40, near=0.4, seed=seed), [1, 5, 8, 13]
    fitter = ScoreFitter(folder.source, folder.labeled, folder.unlabeled, folder.strange[40:50])
    cosines = torch.randn(len(folder.unlabeled) + len(images), generator=rng(seed))
    found = fitter.with_answers(fitter.score_fold(torch.tensor(images), cosines))
    assert found.tolist() == pytest.approx(fold_by_hand(folder, images, cosines, folder.strange[40:50]), abs=2e-3)


def test_scores_of_held_out_images_do_not_depend_on_their_labels() -> None:
    folder, images = Folder(40), torch.tensor([0, 9, 18, 27])
    labels = folder.labeled.labels.clone()
    labels[images] = (labels[images] + 3) % CLASSES
    cosines = torch.randn(len(folder.unlabeled) + len(images), generator=rng())
    plain, other = (
        ScoreFitter(folder.source, part, folder.unlabeled).score_fold(images, cosines).scores
        for part in (folder.labeled, Labeled(folder.labeled.inputs, labels))
    )
    assert torch.equal(plain, other)


@pytest.mark.parametrize("seed", range(3))
def test_far_clusters_are_found_and_little_else(seed: int) -> None:
    folder = Folder(120, seed=seed)
    novelty, flagged = folder.fit()
    assert folder.auroc(novelty) > 0.98
    assert int((flagged & ~folder.known).sum()) > 100
    assert int((flagged & folder.known).sum()) <= 0.2 * int(flagged.sum())
    assert novelty.share == pytest.approx(300 / 420, abs=0.15)
    assert novelty.share <= novelty.highest_share < 1
    new = folder.strange[120:]  # images that it has not seen
    assert float(novelty.flags(new).float().mean()) > 0.8


@pytest.mark.parametrize("shots", [3, 6])
def test_the_false_discovery_rate_is_held_by_the_whole_of_it(shots: int) -> None:
    wrong = []
    for seed in range(30):
        folder = Folder(120, near=0.3, shots=shots, seed=seed)
        flagged = folder.fit()[1]
        wrong.append(int((flagged & folder.known).sum()) / max(1, int(flagged.sum())))
    assert np.mean(wrong) <= FALSE_DISCOVERY_RATE + 3 * float(np.std(wrong)) / math.sqrt(len(wrong))


def test_flags_are_the_images_up_to_the_threshold() -> None:
    folder = Folder(120)
    novelty, flagged = folder.fit()
    assert torch.equal(novelty.flags(folder.unlabeled), flagged)
    assert torch.equal(novelty.held_out, novelty.held_out.sort().values)
    assert len(novelty.held_out) == len(folder.labeled)
    known = novelty.known(folder.unlabeled)
    assert float(known[flagged].max()) < float(known[~flagged].min())
    by_hand = [
        float(unit(unit(image[None]) - novelty.center) @ novelty.weight) + novelty.bias
        for image in folder.unlabeled[:20]
    ]
    assert novelty.scores(folder.unlabeled[:20]).tolist() == pytest.approx(by_hand, abs=1e-4)


def test_a_clean_folder_has_nothing_to_flag() -> None:
    flags = []
    for seed in range(5):
        novelty, flagged = Folder(0, seed=seed).fit()
        flags.append(int(flagged.sum()))
        if not flags[-1]:
            assert novelty.threshold == -math.inf
            assert novelty.share > 0.75
            assert not bool(novelty.flags(torch.randn(5, WIDTH, generator=rng())).any())
    assert sorted(flags)[len(flags) // 2] == 0
    assert max(flags) < 0.05 * 300


def test_answers_of_no_class_raise_the_auroc() -> None:
    without, with_answers = [], []
    for seed in range(3):
        folder = Folder(120, near=0.85, seed=seed)
        without.append(folder.auroc(folder.fit()[0]))
        with_answers.append(folder.auroc(folder.fit(folder.strange[120:])[0]))
    assert all(after > before for before, after in zip(without, with_answers, strict=True))
    assert np.mean(with_answers) > np.mean(without) + 0.03


def test_no_answers_are_the_same_as_none() -> None:
    folder = Folder(60)
    assert torch.equal(folder.fit()[0].weight, folder.fit(torch.zeros(0, WIDTH))[0].weight)


def test_few_held_out_images_flag_nothing_near() -> None:
    """24 find what is far from all classes, and 48 also what leans to one; with 8 nothing is flagged."""
    far, near = Folder(120, shots=3), Folder(120, near=0.7, shots=3)
    assert int((far.fit()[1] & ~far.known).sum()) > 60
    assert int(near.fit()[1].sum()) == 0
    assert int((Folder(120, near=0.7, shots=6).fit()[1]).sum()) > 60
    novelty, flagged = far.fit(held_out=8)
    assert not bool(flagged.any())
    assert (novelty.threshold, novelty.share, novelty.highest_share) == (-math.inf, 1.0, 1.0)


def test_images_of_no_class_are_counted_where_none_can_be_flagged() -> None:
    """With 24 held-out images nothing that leans to a class can be flagged, but 120 of 420 images are too many."""
    found = []
    for seed in range(5):
        novelty, flagged = Folder(120, near=0.7, shots=3, seed=seed).fit()
        if not bool(flagged.any()):
            found.append((novelty.share, novelty.highest_share))
    assert len(found) >= 3
    assert np.mean([share for share, _ in found]) == pytest.approx(300 / 420, abs=0.15)
    assert np.mean([highest < 1 for _, highest in found]) > 0.5


def highest_by_hand(above: int, images: int, held_out: int, rank: int) -> int:
    """The largest m with P(X <= above) > 5 %, where X is how many of m draws are above the rank-th of held_out ones.

    All orders of m + held_out draws are equally likely, so P(X = x) is a quotient of binomial coefficients.
    """

    def at_most(m: int) -> float:
        whole = math.comb(m + held_out, m)
        ways = [math.comb(m - x + rank - 1, m - x) * math.comb(x + held_out - rank, x) for x in range(above + 1)]
        return sum(ways) / whole

    return max(m for m in range(above, images + 1) if at_most(m) > 0.05)


@pytest.mark.parametrize(("held_out", "images", "seed"), [(12, 60, 0), (24, 60, 1), (31, 90, 2), (60, 40, 3)])
def test_the_highest_number_of_known_images_is_that_of_counting_orders(held_out: int, images: int, seed: int) -> None:
    scores = normal(images, seed=seed) - 3 * (torch.arange(images) % 3 == 0)
    p_values = conformal_p_values(scores, normal(held_out, seed=seed + 50))
    rank = int(0.3 * (held_out + 1))
    above = sum(round(p * (held_out + 1)) > rank for p in p_values.tolist())
    assert round(highest_known_share(p_values, held_out) * images) == highest_by_hand(above, images, held_out, rank)


@pytest.mark.parametrize(("share", "distance"), [(1.0, 0.0), (0.7, 3.0), (0.7, 1.5), (0.4, 3.0)])
def test_the_highest_share_is_too_low_in_one_draw_of_twenty_at_most(share: float, distance: float) -> None:
    images, known = 400, torch.arange(400) < share * 400
    found = []
    for seed in range(400):
        scores = normal(images, seed=seed) - distance * (~known)
        p_values = conformal_p_values(scores, normal(30, seed=seed + 10_000))
        found.append((known_share(p_values), highest_known_share(p_values, 30)))
    estimates, highest = zip(*found, strict=True)
    assert np.mean([each < share for each in highest]) <= 0.05 + 3 * math.sqrt(0.05 * 0.95 / 400)
    if distance == 3:
        assert np.mean(estimates) == pytest.approx(share, abs=0.05)
    if share == 0.4:
        assert np.mean([each < 1 for each in highest]) > 0.95


def test_embeddings_of_half_precision_are_scored_as_in_single(monkeypatch: pytest.MonkeyPatch) -> None:
    means = torch.randn(3, 16, generator=rng())
    labels = torch.arange(90) % 3
    rows = means[labels] + 0.3 * torch.randn(90, 16, generator=rng(1))
    source, labeled = Labeled(rows[:30], labels[:30]), Labeled(rows[30:45], labels[30:45])
    cosines = torch.rand(45, generator=rng(2))
    none = torch.randn(4, 16, generator=rng(4))
    whole = ScoreFitter(source, labeled, rows[45:], none)
    monkeypatch.setattr("qurate.novelty._RIDGE_SLICE", 7)
    monkeypatch.setattr("qurate.novelty.MOST_IN_MEMORY", 8)
    images, seen = torch.tensor([0, 4]), torch.rand(47, generator=rng(3))
    for unlabeled, near in ((rows[45:], 1e-4), (rows[45:].half(), 0.1)):
        known = Labeled(rows[30:45].to(unlabeled.dtype), labels[30:45])
        parts = ScoreFitter(source, known, unlabeled, none.to(unlabeled.dtype))
        assert parts._rows.dtype == unlabeled.dtype
        torch.testing.assert_close(parts.fit(cosines)[2], whole.fit(cosines)[2], rtol=0, atol=near)
        folds = [each.score_fold(images, seen) for each in (whole, parts)]
        expected, found = whole.with_answers(folds[0]), parts.with_answers(folds[1])
        torch.testing.assert_close(found, expected, rtol=0, atol=near)


def test_means_of_very_many_are_made_in_slices(monkeypatch: pytest.MonkeyPatch) -> None:
    rows, labels = torch.randn(50, 8, generator=rng()), torch.arange(50) % 3
    middle = mean_direction(rows)
    torch.testing.assert_close(middle, unit(rows).mean(dim=0), rtol=0, atol=0)
    means = domain_means(rows, labels, 4, middle)
    assert torch.equal(means, domain_means(unit(unit(rows) - middle), labels, 4))
    assert not means[3].any()
    monkeypatch.setattr("qurate.novelty.MOST_IN_MEMORY", 7)
    torch.testing.assert_close(mean_direction(rows), middle, rtol=0, atol=1e-6)
    torch.testing.assert_close(domain_means(rows, labels, 4, middle), means, rtol=0, atol=1e-6)
