"""What holds for every query strategy, by being listed."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tests.active.pools import make_pool

from qurate.active.strategies import NamedStrategy, Pool
from qurate.errors import DataError
from qurate.registry import QUERY_STRATEGIES

NAMES = tuple("abcd")
ALL = pytest.mark.parametrize("name", QUERY_STRATEGIES)


def asker(name: str) -> NamedStrategy:
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
    asked = asker(name).ask(pool, count, seed).tolist()
    assert len(asked) == len(set(asked)) == min(count, len(askable(name, pool)))
    assert set(asked) <= askable(name, pool)


@ALL
def test_the_same_seed_asks_the_same_and_changes_nothing_it_was_given(name: str) -> None:
    pool = make_pool(closed=True)
    before = [pool.features.clone(), pool.probabilities.clone()]
    first, second = asker(name).ask(pool, 12, 3), asker(name).ask(make_pool(closed=True), 12, 3)
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
    assert asker(name).ask(pool, 9, 0).tolist() == asker(name).ask(other, 9, 0).tolist()


@ALL
def test_it_says_in_a_sentence_why_it_asks(name: str) -> None:
    pool = make_pool()
    asked = asker(name).ask(pool, 7, 0)
    said = asker(name).explain(pool, asked, NAMES)
    assert len(said) == 7
    assert all(sentence[0].isupper() and sentence.endswith(".") and "tensor" not in sentence for sentence in said)


@ALL
@pytest.mark.parametrize("n", [1, 2, 3])
def test_few_or_equal_images_are_no_problem(name: str, n: int) -> None:
    pool = Pool(torch.zeros(n, 3), torch.full((n, 4), 0.25), torch.zeros(n, dtype=torch.int64))
    assert sorted(asker(name).ask(pool, 5, 0).tolist()) == list(range(n))
    assert len(asker(name).explain(pool, torch.arange(n), NAMES)) == n


@ALL
def test_equal_and_certain_images_are_no_problem(name: str) -> None:
    pool = Pool(torch.ones(30, 3), torch.eye(4)[torch.zeros(30, dtype=torch.int64)], torch.zeros(30).long())
    asked = asker(name).ask(pool, 8, 0)
    assert len(set(asked.tolist())) == 8
    assert len(asker(name).explain(pool, asked, NAMES)) == 8


@ALL
def test_nothing_open_means_nothing_asked(name: str) -> None:
    pool = replace(make_pool(), closed=torch.ones(60, dtype=torch.bool))
    assert asker(name).ask(pool, 5, 0).tolist() == []


@pytest.mark.parametrize("name", ["probability", "margin", "density", "check"])
def test_where_nothing_is_random_the_seed_changes_nothing(name: str) -> None:
    pool = make_pool()
    assert asker(name).ask(pool, 9, 0).tolist() == asker(name).ask(pool, 9, 1).tolist()


def test_every_asker_loads_and_is_listed_with_what_it_asks() -> None:
    assert list(QUERY_STRATEGIES) == ["random", "probability", "margin", "clusters", "density", "check"]
    assert all(entry.summary and isinstance(asker(name), NamedStrategy) for name, entry in QUERY_STRATEGIES.items())


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"features": torch.zeros(3)}, "features must be a tensor of two dimensions of floats, got a tensor (3,)"),
        ({"features": [[1.0]]}, "features must be a tensor of two dimensions of floats, got list"),
        ({"features": torch.full((60, 2), float("nan"))}, "features must be finite"),
        ({"probabilities": torch.zeros(59, 4)}, "probabilities must be (60, K) for 60 features"),
        ({"probabilities": torch.zeros(60, 1)}, "K > 1 classes, got a tensor (60, 1)"),
        ({"trusted": torch.zeros(60)}, "trusted must be a tensor (60,) of torch.int64"),
        ({"closed": torch.zeros(60, dtype=torch.int64)}, "closed must be a tensor (60,) of torch.bool"),
    ],
)
def test_a_pool_refuses_what_is_none(change: dict[str, object], words: str) -> None:
    with pytest.raises(DataError) as caught:
        replace(make_pool(), **change)  # type: ignore[arg-type]
    assert words in str(caught.value)
