"""Query strategies: what holds for each by being listed, and each against plain loops."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tests.active.pools import make_pool, neighbors_by_hand

from qurate.active import pool as pools
from qurate.active import strategies
from qurate.active.pool import NEIGHBORS, Pool, main_directions, nearest
from qurate.active.strategies import (
    BadgeStrategy,
    CheckStrategy,
    ClustersStrategy,
    CommitteeStrategy,
    DegreeStrategy,
    DensityStrategy,
    MarginStrategy,
    NamedStrategy,
    ProbabilityStrategy,
    RandomStrategy,
)
from qurate.errors import DataError
from qurate.registry import QUERY_STRATEGIES

NAMES = tuple("abcd")
ALL = pytest.mark.parametrize("name", QUERY_STRATEGIES)


def strategy(name: str) -> NamedStrategy:
    found = QUERY_STRATEGIES.find(name).load()()
    assert isinstance(found, NamedStrategy)
    return found


def askable(name: str, pool: Pool) -> set[int]:
    """The images that a query strategy may ask about."""
    assert pool.trusted is not None
    return {i for i in pool.open.tolist() if name != "check" or pool.trusted[i] >= 0}


@ALL
@given(count=st.integers(0, 80), seed=st.integers(0, 9), closed=st.booleans())
def test_it_asks_for_different_open_images_and_for_as_many_as_there_are(
    name: str, count: int, seed: int, closed: bool
) -> None:
    pool = make_pool(seed=seed, closed=closed)
    asked = strategy(name).ask(pool, count, seed).tolist()
    assert len(asked) == len(set(asked)) == min(count, len(askable(name, pool)))
    assert set(asked) <= askable(name, pool)


@ALL
def test_the_same_seed_asks_the_same_and_changes_nothing_it_was_given(name: str) -> None:
    pool = make_pool(closed=True)
    before = [pool.features.clone(), pool.probabilities.clone()]
    first, second = strategy(name).ask(pool, 12, 3), strategy(name).ask(make_pool(closed=True), 12, 3)
    assert first.tolist() == second.tolist()
    assert first.dtype == torch.int64
    assert all(torch.equal(a, b) for a, b in zip(before, [pool.features, pool.probabilities], strict=True))


@ALL
def test_it_does_not_matter_how_the_classes_are_numbered(name: str) -> None:
    pool, turned = make_pool(), torch.tensor([2, 0, 3, 1])
    assert pool.trusted is not None
    back = torch.argsort(turned)
    trusted = torch.where(pool.trusted >= 0, back[pool.trusted.clamp(min=0)], -1)
    other = Pool(pool.features, pool.probabilities[:, turned], trusted)
    assert strategy(name).ask(pool, 9, 0).tolist() == strategy(name).ask(other, 9, 0).tolist()


@ALL
def test_it_says_in_a_sentence_why_it_asks(name: str) -> None:
    pool = make_pool()
    asked = strategy(name).ask(pool, 7, 0)
    said = strategy(name).explain(pool, asked, NAMES)
    assert len(said) == 7
    assert all(sentence[0].isupper() and sentence.endswith(".") and "tensor" not in sentence for sentence in said)


@ALL
@pytest.mark.parametrize("n", [1, 2, 3])
def test_few_or_equal_images_are_no_problem(name: str, n: int) -> None:
    pool = Pool(torch.zeros(n, 3), torch.full((n, 4), 0.25), torch.zeros(n, dtype=torch.int64))
    assert sorted(strategy(name).ask(pool, 5, 0).tolist()) == list(range(n))
    assert len(strategy(name).explain(pool, torch.arange(n), NAMES)) == n


@ALL
def test_equal_and_certain_images_are_no_problem(name: str) -> None:
    pool = Pool(torch.ones(30, 3), torch.eye(4)[torch.zeros(30, dtype=torch.int64)], torch.zeros(30).long())
    asked = strategy(name).ask(pool, 8, 0)
    assert len(set(asked.tolist())) == 8
    assert len(strategy(name).explain(pool, asked, NAMES)) == 8


@ALL
def test_nothing_open_means_nothing_asked(name: str) -> None:
    pool = replace(make_pool(), closed=torch.ones(60, dtype=torch.bool))
    assert strategy(name).ask(pool, 5, 0).tolist() == []


@pytest.mark.parametrize("name", ["probability", "margin", "density", "degree", "committee", "check"])
def test_where_nothing_is_random_the_seed_changes_nothing(name: str) -> None:
    pool = make_pool()
    assert strategy(name).ask(pool, 9, 0).tolist() == strategy(name).ask(pool, 9, 1).tolist()


def test_every_strategy_loads_and_is_listed_with_what_it_asks() -> None:
    assert all(entry.summary and isinstance(strategy(name), NamedStrategy) for name, entry in QUERY_STRATEGIES.items())


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"features": torch.zeros(3)}, "features must be a tensor of two dimensions of floats, got a tensor (3,)"),
        ({"features": [[1.0]]}, "features must be a tensor of two dimensions of floats, got list"),
        ({"features": torch.full((60, 2), float("nan"))}, "features must be finite"),
        ({"probabilities": torch.zeros(59, 4)}, "probabilities must be (60, K) for 60 features"),
        ({"probabilities": torch.zeros(60, 1)}, "K > 1 classes, got a tensor (60, 1)"),
        ({"trusted": torch.zeros(60)}, "trusted must be a tensor (60,) of torch.int64"),
        ({"baseline": torch.zeros(60, 3)}, "baseline must be of the shape of probabilities, got a tensor (60, 3)"),
        ({"closed": torch.zeros(60, dtype=torch.int64)}, "closed must be a tensor (60,) of torch.bool"),
    ],
)
def test_a_pool_refuses_what_is_none(change: dict[str, object], words: str) -> None:
    with pytest.raises(DataError) as caught:
        replace(make_pool(), **change)  # type: ignore[arg-type]
    assert words in str(caught.value)


def test_a_larger_count_asks_the_same_and_more() -> None:
    pool = make_pool()
    assert RandomStrategy().ask(pool, 30, 4)[:12].tolist() == RandomStrategy().ask(pool, 12, 4).tolist()


def test_what_was_closed_meanwhile_does_not_change_the_order_of_the_rest() -> None:
    pool = make_pool()
    first = RandomStrategy().ask(pool, 20, 4).tolist()
    closed = torch.zeros(60, dtype=torch.bool)
    closed[first[:7]] = True
    assert RandomStrategy().ask(replace(pool, closed=closed), 13, 4).tolist() == first[7:]


def test_every_image_is_as_likely_as_any_other() -> None:
    pool, counts = make_pool(n=10), torch.zeros(10)
    for seed in range(2000):
        counts[RandomStrategy().ask(pool, 3, seed)] += 1
    assert float((counts / 2000 - 0.3).abs().max()) < 0.045  # more than four standard errors


def test_probability_asks_what_a_plain_loop_asks() -> None:
    pool = make_pool(closed=True)
    rows = pool.probabilities.tolist()
    expected = sorted(pool.open.tolist(), key=lambda i: max(rows[i]))[:11]
    assert ProbabilityStrategy().ask(pool, 11, 0).tolist() == expected


def test_margin_asks_what_a_plain_loop_asks() -> None:
    pool = make_pool(closed=True)
    rows = pool.probabilities.tolist()
    margins = {i: sorted(rows[i])[-1] - sorted(rows[i])[-2] for i in pool.open.tolist()}
    assert MarginStrategy().ask(pool, 11, 0).tolist() == sorted(margins, key=lambda i: margins[i])[:11]


def test_they_differ_where_doubt_is_between_two_classes() -> None:
    pool = make_pool()
    pool.probabilities[:2] = pool.probabilities.new_tensor([[0.49, 0.48, 0.02, 0.01], [0.3, 0.24, 0.23, 0.23]])
    pool.probabilities[2:] = pool.probabilities.new_tensor([0.97, 0.01, 0.01, 0.01])
    assert MarginStrategy().ask(pool, 1, 0).tolist() == [0]
    assert ProbabilityStrategy().ask(pool, 1, 0).tolist() == [1]


def test_the_words_have_the_classes_and_their_probabilities() -> None:
    pool = make_pool()
    pool.probabilities[5] = pool.probabilities.new_tensor([0.1, 0.5, 0.0, 0.4])
    asked = pool.open[5:6]
    assert MarginStrategy().explain(pool, asked, "abcd") == [
        "The model cannot decide between two: b has 50 % and d 40 %."
    ]
    assert "b has 50 %" in ProbabilityStrategy().explain(pool, asked, "abcd")[0]


def make_groups(sizes: list[int], doubts: list[float]) -> tuple[Pool, list[int]]:
    """Groups around directions of their own; the first image of each is exactly its middle."""
    rng = torch.Generator().manual_seed(1)
    rows, predictions, group = [], [], []
    for label, (size, doubt) in enumerate(zip(sizes, doubts, strict=True)):
        noise = 0.05 * torch.randn(size // 2, len(sizes), generator=rng)
        noise[:, label] = 0  # mirrored across the middle, so that the mean is the middle
        rows.append(torch.eye(len(sizes))[label] + torch.cat([torch.zeros(1, len(sizes)), noise, -noise]))
        predictions.append(torch.tensor([[1 - doubt, doubt / 2, doubt / 2]]).repeat(size + 1, 1))
        group += [label] * (size + 1)
    return Pool(torch.cat(rows), torch.cat(predictions)), group


def test_it_asks_the_middle_of_each_group_the_one_of_most_doubt_first() -> None:
    pool, group = make_groups([20, 20, 20], [0.2, 0.6, 0.4])
    asked = ClustersStrategy().ask(pool, 3, 0).tolist()
    assert [group[i] for i in asked] == [1, 2, 0]
    for i in asked:  # by a plain loop: no image of the group is nearer to its mean
        rows = [pool.features[j] / pool.features[j].norm() for j in range(len(pool)) if group[j] == group[i]]
        mean = sum(rows, torch.zeros(3)) / len(rows)
        own = pool.features[i] / pool.features[i].norm()
        assert float((own - mean).norm()) <= min(float((row - mean).norm()) for row in rows) + 1e-6


def test_groups_gather_where_doubt_is() -> None:
    pool, group = make_groups([40, 40], [0.66, 1e-4])
    asked = ClustersStrategy().ask(pool, 6, 0).tolist()
    assert sum(group[i] == 0 for i in asked) >= 5


def test_of_very_many_the_most_doubtful_are_grouped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(strategies, "MOST_IMAGES", 15)
    pool = make_pool()
    most = set(pool.uncertainty.argsort(descending=True)[:15].tolist())
    assert set(ClustersStrategy().ask(pool, 6, 0).tolist()) <= most


def asked_by_hand(pool: Pool, count: int) -> list[int]:
    """The same by plain loops over lists."""
    rows = pool.probabilities.tolist()
    near = {i: neighbors_by_hand(pool, i, NEIGHBORS) for i in pool.open.tolist()}

    def doubt(row: list[float]) -> float:
        return -sum(p * math.log(p) for p in row if p > 0)

    def score(i: int) -> float:
        members = [rows[j] for j in (i, *near[i])]
        mean = [sum(column) / len(members) for column in zip(*members, strict=True)]
        return doubt(mean) * sum(map(doubt, members)) / len(members)

    order = sorted(near, key=lambda i: -score(i))
    asked: list[int] = []
    for i in order:
        if not any(i in near[j] or j in near[i] for j in asked):
            asked.append(i)
    return (asked + [i for i in order if i not in asked])[:count]


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("count", [3, 40])
def test_density_asks_what_a_plain_loop_asks(seed: int, count: int) -> None:
    pool = make_pool(seed=seed, closed=True)
    assert DensityStrategy().ask(pool, count, 0).tolist() == asked_by_hand(pool, count)


def groups_of(*predictions: list[float]) -> Pool:
    """Thirty images around a direction of its own for each of these predictions."""
    rng = torch.Generator().manual_seed(0)
    middles = torch.eye(len(predictions)).repeat_interleave(30, dim=0)
    features = middles + 0.05 * torch.randn(middles.shape, generator=rng)
    return Pool(features, torch.tensor(predictions).repeat_interleave(30, dim=0))


def test_a_lonely_doubt_is_no_dense_one() -> None:
    pool = groups_of([0.98, 0.01, 0.01], [0.4, 0.3, 0.3], [0.01, 0.98, 0.01])
    pool.probabilities[3] = torch.tensor([0.34, 0.33, 0.33])  # the most doubtful of all, among certain ones
    asked = DensityStrategy().ask(pool, 2, 0).tolist()
    assert all(30 <= i < 60 for i in asked)


def test_certain_neighbours_that_disagree_are_no_doubt_of_theirs() -> None:
    """The mean of these is undecided, but each is sure: the neighbourhood must doubt too."""
    pool = groups_of([0.5, 0.5, 0.0], [0.6, 0.2, 0.2], [0.0, 0.0, 1.0])
    pool.probabilities[:30] = torch.eye(3)[torch.arange(30) % 2]
    assert 30 <= int(DensityStrategy().ask(pool, 1, 0)) < 60


def test_no_two_neighbours_are_asked_while_there_are_others() -> None:
    pool = make_pool(n=200)
    asked = DensityStrategy().ask(pool, 8, 0).tolist()
    for i in asked:
        assert not set(neighbors_by_hand(pool, i, NEIGHBORS)) & set(asked)


def test_an_answer_takes_the_doubt_out_of_its_neighbourhood() -> None:
    pool = groups_of([0.4, 0.3, 0.3], [0.5, 0.3, 0.2])
    assert int(DensityStrategy().ask(pool, 1, 0)) < 30
    answered = pool.probabilities.clone()
    answered[:30] = torch.tensor([1.0, 0.0, 0.0])
    closed = torch.arange(60) < 25
    assert int(DensityStrategy().ask(Pool(pool.features, answered, closed=closed), 1, 0)) >= 30


def test_of_very_many_only_the_most_doubtful_are_looked_at_and_a_large_count_still_gets_all(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(strategies, "MOST_IMAGES", 20)
    pool = make_pool()
    most = set(pool.uncertainty.argsort(descending=True)[:20].tolist())
    assert set(DensityStrategy().ask(pool, 5, 0).tolist()) <= most
    asked = DensityStrategy().ask(pool, 50, 0).tolist()
    assert len(set(asked)) == 50
    assert set(asked[:20]) == most


def test_the_words_name_the_classes_between_which_the_neighbourhood_is_undecided() -> None:
    pool = groups_of([0.5, 0.45, 0.05], [0.0, 0.0, 1.0])
    asked = torch.tensor([4, 40])
    assert DensityStrategy().explain(pool, asked, ("mug", "cup", "pen")) == [
        "Of this image and the 10 most like it the model cannot tell whether they are mug or cup.",
        "Of this image and the 10 most like it the model cannot tell whether they are pen or one of the 2 other "
        "classes.",
    ]


def test_degree_asks_what_a_plain_loop_asks() -> None:
    pool = make_pool(n=90)
    entropies = [-sum(p * math.log(p) for p in row if p > 0) for row in pool.probabilities.tolist()]
    near = [{i, *neighbors_by_hand(pool, i, NEIGHBORS)} for i in range(90)]
    left = set(range(90))
    asked: list[int] = []
    while len(asked) < 6:
        degrees = {i: sum(entropies[j] for j in left if i in near[j]) for i in left}
        asked.append(max(degrees, key=lambda i: degrees[i]))
        left -= {j for j in left if asked[-1] in near[j]}
    assert DegreeStrategy().ask(pool, 6, 0).tolist() == asked


def test_degree_asks_once_in_each_group_and_about_closed_ones_never() -> None:
    features = torch.eye(3).repeat_interleave(11, dim=0) + 0.01 * torch.arange(99).reshape(33, 3) / 99
    uncertain = torch.tensor([[0.5, 0.5]]).expand(33, 2).clone()
    asked = DegreeStrategy().ask(Pool(features, uncertain), 3, 0)
    assert sorted((asked // 11).tolist()) == [0, 1, 2]
    closed = torch.zeros(33, dtype=torch.bool)
    closed[asked] = True
    assert not set(asked.tolist()) & set(DegreeStrategy().ask(Pool(features, uncertain, closed=closed), 30, 0).tolist())


def test_badge_measures_the_distances_of_the_gradients_as_autograd_has_them(monkeypatch: pytest.MonkeyPatch) -> None:
    """With the draw at the middle of the sum, the images are those of a plain k-means++ on the gradients."""
    pool = make_pool(n=40)
    unit = torch.nn.functional.normalize(pool.features.double(), dim=1)
    gradients = []
    for x, p in zip(unit, pool.probabilities.double(), strict=True):
        weight = torch.zeros(4, 6, dtype=torch.float64, requires_grad=True)
        loss = torch.nn.functional.cross_entropy((weight @ x + p.log()).unsqueeze(0), p.argmax().unsqueeze(0))
        gradients.append(torch.autograd.grad(loss, weight)[0].flatten())
    asked = [max(range(40), key=lambda i: float(gradients[i].norm()))]
    while len(asked) < 8:
        squares = [min(float((gradients[i] - gradients[j]).square().sum()) for j in asked) for i in range(40)]
        total = 0.0
        for i, square in enumerate(squares):
            total += square
            if total >= sum(squares) / 2:
                asked.append(i)
                break
    monkeypatch.setattr(torch, "rand", lambda *_, **__: torch.tensor(0.5, dtype=torch.float64))
    assert BadgeStrategy().ask(pool, 8, 0).tolist() == asked


def test_badge_asks_none_twice_that_has_the_gradient_of_another() -> None:
    """Two groups of equal images: the first two questions are one of each, whatever the seed."""
    features = torch.eye(2).repeat_interleave(10, dim=0)
    pool = Pool(features, torch.tensor([[0.6, 0.4]]).expand(20, 2).clone())
    for seed in range(5):
        assert len({i // 10 for i in BadgeStrategy().ask(pool, 2, seed).tolist()}) == 2


def test_committee_asks_what_a_plain_loop_asks_of_those_that_are_no_neighbours() -> None:
    pool = replace(make_pool(n=90), baseline=make_pool(n=90, seed=5).probabilities)
    assert pool.baseline is not None

    def h(row: list[float]) -> float:
        return -sum(p * math.log(p) for p in row if p > 0)

    def score(i: int) -> float:
        p, q = pool.probabilities[i].tolist(), (pool.baseline[i].tolist() if pool.baseline is not None else [])
        mixed = [(a + b) / 2 for a, b in zip(p, q, strict=True)]
        near = neighbors_by_hand(pool, i, NEIGHBORS)
        cosines = [float(torch.cosine_similarity(pool.features[i], pool.features[j], dim=0)) for j in near]
        return (h(mixed) - (h(p) + h(q)) / 2) * sum(cosines) / len(cosines)

    near = [set(neighbors_by_hand(pool, i, NEIGHBORS)) for i in range(90)]
    asked: list[int] = []
    for i in sorted(range(90), key=score, reverse=True):
        if not any(i in near[j] or j in near[i] for j in asked):
            asked.append(i)
    assert CommitteeStrategy().ask(pool, 5, 0).tolist() == asked[:5]


def test_committee_asks_nothing_first_on_which_both_agree_and_names_both_opinions() -> None:
    pool = groups_of([0.9, 0.05, 0.05], [0.4, 0.3, 0.3])
    baseline = pool.probabilities.clone()
    baseline[7] = torch.tensor([0.0, 1.0, 0.0])
    pool = replace(pool, baseline=baseline)
    assert CommitteeStrategy().ask(pool, 1, 0).tolist() == [7]
    said = CommitteeStrategy().explain(pool, torch.tensor([7, 8]), ("mug", "cup", "pen"))
    assert said[0] == "The model takes it for mug, plain training (S+T) for cup."
    assert said[1] == "The model and plain training (S+T) take it for mug, and are not equally sure."


def test_check_asks_what_a_plain_loop_asks() -> None:
    pool = make_pool(n=90, closed=True)
    assert pool.trusted is not None
    labels, rows = pool.trusted.tolist(), pool.probabilities.tolist()

    def support(i: int) -> float:
        near = neighbors_by_hand(pool, i, NEIGHBORS)
        return float(rows[i][labels[i]] * sum(rows[j][labels[i]] for j in near) / len(near))

    suspects = [i for i in pool.open.tolist() if labels[i] >= 0]
    assert CheckStrategy().ask(pool, 9, 0).tolist() == sorted(suspects, key=support)[:9]


def test_a_wrong_label_among_others_is_the_first_to_be_checked() -> None:
    features = torch.eye(2).repeat_interleave(20, dim=0) + 0.01 * torch.arange(80).reshape(40, 2) / 80
    probabilities = torch.tensor([[0.97, 0.03], [0.03, 0.97]]).repeat_interleave(20, dim=0)
    probabilities[7] = torch.tensor([0.01, 0.99])  # the model learned it, and is the surest of all
    pool = Pool(features, probabilities, probabilities.argmax(dim=1))
    assert CheckStrategy().ask(pool, 1, 0).tolist() == [7]
    said = CheckStrategy().explain(pool, torch.tensor([7]), ("mug", "pen"))
    assert said == ["It was trusted as pen, and the images most like it are 3 % in favour of that."]


def test_of_very_many_those_that_the_model_is_least_sure_of_are_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(strategies, "MOST_IMAGES", 6)
    pool = make_pool(n=90)
    assert pool.trusted is not None
    suspects = [i for i in range(90) if pool.trusted[i] >= 0]
    least = sorted(suspects, key=lambda i: float(pool.probabilities[i].max()))
    assert set(CheckStrategy().ask(pool, 3, 0).tolist()) <= set(least[:6])
    assert sorted(CheckStrategy().ask(pool, 90, 0).tolist()) == suspects


def test_without_trusted_labels_there_is_nothing_to_check() -> None:
    pool = replace(make_pool(), trusted=None)
    assert CheckStrategy().ask(pool, 5, 0).tolist() == []
    assert CheckStrategy().explain(pool, torch.empty(0, dtype=torch.int64), "abcd") == []


@pytest.mark.parametrize("cells", [1, 200, 2**24])
def test_they_are_those_of_a_plain_loop_in_slices_of_any_size(cells: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("qurate.neighbors._COSINES", cells)
    pool, rows = make_pool(), torch.tensor([0, 7, 59, 3])
    assert nearest(pool.features, rows, 5).tolist() == [neighbors_by_hand(pool, i, 5) for i in rows.tolist()]


def test_equal_images_are_neighbours_and_nothing_is_its_own() -> None:
    features = torch.ones(6, 3)
    found = nearest(features, torch.arange(6), 10)
    assert found.shape == (6, 5)
    assert all(i not in row for i, row in enumerate(found.tolist()))


def test_length_does_not_matter_and_few_images_stay_as_they_are() -> None:
    pool = make_pool()
    assert torch.equal(nearest(pool.features * 7, pool.open, 4), nearest(pool.features, pool.open, 4))
    assert main_directions(pool.features).shape == pool.features.shape


def test_many_wide_images_keep_their_neighbours_in_fewer_directions(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = torch.Generator().manual_seed(0)
    groups = torch.randn(20, 300, generator=rng).repeat_interleave(15, dim=0)
    features = groups + 0.1 * torch.randn(300, 300, generator=rng)
    exact = nearest(features, torch.arange(300), 14)
    monkeypatch.setattr(pools, "MOST_IMAGES", 200)
    assert main_directions(features).shape == (300, 128)
    found = nearest(features, torch.arange(300), 14)
    assert [set(row) for row in found.tolist()] == [set(row) for row in exact.tolist()]
