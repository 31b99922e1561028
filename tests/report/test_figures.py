from __future__ import annotations

import io
import warnings
from pathlib import Path

import numpy as np
import pandas as pd
from PIL import Image
from tests.report.grids import D, W, in_rounds, outcome_of, rows

from qurate.report.figures import MOST_LINES, readable, round_lines, rounds_figure, shots_figure, shots_lines
from qurate.report.tables import make_tables

SHOTS = [
    *rows(W, "tml", "none", 0.5, 0.7, shots=1), *rows(D, "tml", "none", 0.6, 0.8, shots=1),
    *rows(W, "tml", "none", 0.8, 0.8, shots=20), *rows(D, "tml", "none", 0.9, 0.9, shots=20),
    *rows(W, "ent", "none", 0.9, 0.9, shots=20),  # without its second scenario it has no mean and so no point
    *rows(W, "tml", "dqn", 0.9, 0.9, shots=20), *rows(D, "tml", "dqn", 0.9, 0.9, shots=20),
]  # fmt: skip


def check(line: pd.DataFrame, *points: tuple[float, float, float]) -> None:
    np.testing.assert_allclose(line[["x", "mean", "spread"]].to_numpy(), points, atol=1e-9)


def test_many_lines_of_which_none_is_the_papers_are_the_first_ones() -> None:
    many = {f"MME + {i}": i for i in range(MOST_LINES + 3)}
    assert readable(many) == {f"MME + {i}": i for i in range(MOST_LINES)}


def test_a_point_is_the_mean_over_scenarios_with_the_spread_over_seeds(tmp_path: Path) -> None:
    lines = shots_lines(make_tables(outcome_of(tmp_path, SHOTS)))
    assert set(lines) == {"TML", "TML_DQNPL*"}
    check(lines["TML"], (1, 65.0, 20 / 2**0.5), (20, 85.0, 0.0))
    check(lines["TML_DQNPL*"], (20, 90.0, 0.0))


def test_a_run_that_stopped_early_keeps_its_last_value_and_half_a_seed_is_left_out(tmp_path: Path) -> None:
    rounds = [
        *in_rounds(W, "dqn", 0, 0.5, 0.6, 0.7), *in_rounds(D, "dqn", 0, 0.7, 0.8),
        *in_rounds(W, "dqn", 1, 0.1, 0.1, 0.1),
        *in_rounds(W, "random", 0, 0.5),
    ]  # fmt: skip
    table = outcome_of(tmp_path, SHOTS, rounds).rounds
    assert list(round_lines(table, "accuracy")) == ["TML_DQNPL*"]
    check(round_lines(table, "accuracy")["TML_DQNPL*"], (0, 60.0, 0), (1, 70.0, 0), (2, 75.0, 0))
    check(round_lines(table, "coverage")["TML_DQNPL*"], (0, 0, 0), (1, 10, 0), (2, 15, 0))


def test_the_spread_by_round_is_over_seeds(tmp_path: Path) -> None:
    table = outcome_of(tmp_path, SHOTS, [*in_rounds(W, "dqn", 0, 0.5), *in_rounds(W, "dqn", 1, 0.7)]).rounds
    check(round_lines(table, "accuracy")["TML_DQNPL*"], (0, 60.0, 20 / 2**0.5))


def test_a_point_by_round_is_the_mean_over_imbalances_too(tmp_path: Path) -> None:
    plain, thin = in_rounds(W, "dqn", 0, 0.5, 0.6), in_rounds(W, "dqn", 0, 0.3, 0.2, 0.1)
    half = in_rounds(W, "dqn", 1, 0.9)  # a seed without its thinned target
    rounds = [*({**row, "imbalance": 1} for row in [*plain, *half]), *({**row, "imbalance": 20} for row in thin)]
    table = outcome_of(tmp_path, SHOTS, rounds).rounds
    check(round_lines(table, "accuracy")["TML_DQNPL*"], (0, 40.0, 0), (1, 40.0, 0), (2, 35.0, 0))


def test_the_figures_are_pictures_and_the_same_every_time(tmp_path: Path) -> None:
    outcome = outcome_of(
        tmp_path, SHOTS, [*in_rounds(W, "dqn", 0, 0.5, 0.6), *in_rounds(W, "oracle", 0, 0.5, 0.9, shots=20)]
    )
    first, again = ((shots_figure(make_tables(outcome)), rounds_figure(outcome.rounds)) for _ in range(2))
    assert first == again
    for png in first:
        assert png is not None
        with Image.open(io.BytesIO(png)) as image:
            assert image.format == "PNG"
            assert image.width >= 1000
            assert len(image.convert("RGB").getcolors(1 << 20) or []) > 50
        assert len(png) < 300_000


def test_there_is_no_figure_of_nothing(tmp_path: Path) -> None:
    outcome = outcome_of(tmp_path, rows(W, "tml", "none", 0.5))
    assert shots_figure(make_tables(outcome)) is None
    assert rounds_figure(outcome.rounds) is None


def test_a_figure_of_too_many_rows_shows_plain_methods_and_tml() -> None:
    few = dict.fromkeys(["S+T", "TML", "TML_SPL", "TML + random", "MME + dqn"])
    assert readable(few) == few
    many = few | dict.fromkeys(f"ENT + rule {i}" for i in range(MOST_LINES))
    assert list(readable(many)) == ["S+T", "TML", "TML_SPL", "TML + random"]


def test_names_are_drawn_as_they_are_written(tmp_path: Path) -> None:
    strange = [*rows("$a:b$", "_$x^{", "dqn", 0.5, 0.7, shots=1), *rows("$a:b$", "_$x^{", "dqn", 0.5, 0.7)]
    rounds = [{**row, "method": "_$x^{"} for row in in_rounds("$a:b$", "dqn", 0, 0.5, 0.6)]
    outcome = outcome_of(tmp_path, strange, rounds)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="The label .* starts with '_'")
        assert shots_figure(make_tables(outcome)) is not None
        assert rounds_figure(outcome.rounds) is not None
