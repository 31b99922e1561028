from __future__ import annotations

from tests.active.pools import make_pool

from qurate.active.strategies import MarginStrategy, ProbabilityStrategy


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
        "The model wavers between two classes: b has 50 % and d 40 %."
    ]
    assert "b has 50 %" in ProbabilityStrategy().explain(pool, asked, "abcd")[0]
