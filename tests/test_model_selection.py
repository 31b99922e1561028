from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from qurate.model_selection import (
    LABEL_FREE,
    RULES,
    certainty,
    choose_model,
    describe_rule,
    information,
    soft_neighborhood_density,
)


def predictions(n: int, k: int, seed: int = 0, sharpness: float = 2.0) -> Tensor:
    return (torch.randn(n, k, generator=torch.Generator().manual_seed(seed)) * sharpness).softmax(dim=1)


def entropy_of(p: list[float]) -> float:
    return -sum(x * math.log(x) for x in p if x > 0)


def loop_information(rows: list[list[float]]) -> float:
    mean = [sum(row[k] for row in rows) / len(rows) for k in range(len(rows[0]))]
    return entropy_of(mean) - sum(entropy_of(row) for row in rows) / len(rows)


def loop_density(rows: list[list[float]], temperature: float) -> float:
    lengths = [math.sqrt(sum(x * x for x in row)) for row in rows]
    total = 0.0
    for i, a in enumerate(rows):
        weights = []
        for j, b in enumerate(rows):
            if i != j:
                cosine = sum(x * y for x, y in zip(a, b, strict=True)) / lengths[i] / lengths[j]
                weights.append(math.exp(cosine / temperature))
        total += entropy_of([weight / sum(weights) for weight in weights])
    return total / len(rows)


@pytest.mark.parametrize(("n", "k"), [(2, 2), (7, 3), (30, 10)])
def test_scores_agree_with_plain_loops(n: int, k: int) -> None:
    p = predictions(n, k)
    rows = p.double().tolist()
    assert certainty(p) == pytest.approx(-sum(map(entropy_of, rows)) / n)
    assert information(p) == pytest.approx(loop_information(rows))
    assert soft_neighborhood_density(p) == pytest.approx(loop_density(rows, 0.05))
    assert soft_neighborhood_density(p, 0.5) == pytest.approx(loop_density(rows, 0.5))


def test_density_is_the_same_in_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    p = predictions(40, 5)
    whole = soft_neighborhood_density(p)
    monkeypatch.setattr("qurate.model_selection._ROWS", 7)
    assert soft_neighborhood_density(p) == pytest.approx(whole, rel=1e-12)


@given(st.integers(2, 20), st.integers(2, 6), st.integers(0, 5))
def test_scores_stay_in_their_bounds_and_do_not_depend_on_the_order(n: int, k: int, seed: int) -> None:
    p = predictions(n, k, seed)
    order = torch.randperm(n, generator=torch.Generator().manual_seed(seed))
    bounds = {"entropy": (-math.log(k), 0.0), "information_maximization": (0.0, math.log(k))}
    bounds["snd"] = (0.0, math.log(n - 1))
    for name, score in LABEL_FREE.items():
        low, high = bounds[name]
        assert low - 1e-9 <= score(p) <= high + 1e-9
        assert score(p[order]) == pytest.approx(score(p), abs=1e-9)


def test_one_certain_class_for_all_satisfies_entropy_but_not_information() -> None:
    collapsed = torch.eye(4)[torch.zeros(12, dtype=torch.int64)]
    spread = torch.eye(4)[torch.arange(12) % 4]
    assert certainty(collapsed) == certainty(spread) == 0
    assert information(collapsed) == 0
    assert information(spread) == pytest.approx(math.log(4))
    assert soft_neighborhood_density(spread) == pytest.approx(math.log(2), abs=1e-5)  # two others of its class


def test_the_latest_of_equally_good_models_is_chosen() -> None:
    assert choose_model([0.5, 0.9, 0.9, 0.2]) == 2
    assert choose_model([0.1]) == 0


def test_every_rule_has_words_and_mme_validation_says_what_it_is() -> None:
    assert len({describe_rule(rule, "clean") for rule in RULES}) == len(RULES)
    assert "inside the unlabelled test list" in describe_rule("validation", "mme")
    assert "inside" not in describe_rule("validation", "clean")
    assert "ORACLE" in describe_rule("oracle", "mme")
