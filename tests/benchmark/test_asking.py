"""Cells that ask: what they ask, what they learn from it, and that they learn nothing else."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import torch
from tests.benchmark.tiny_grid import InlineExecutor, SmallRunner, run_grid, small_split, tables, tiny_grid
from torch import Tensor

from qurate.active.pool import Pool
from qurate.benchmark.asking import BaseRun, QueryState, ask_in_rounds, pool_of, run_base, run_query_cell
from qurate.benchmark.cell import Cell, CellResult, run_cell
from qurate.benchmark.executors import next_cell
from qurate.benchmark.folder import BenchmarkFolder, read_queries
from qurate.benchmark.results import BenchmarkError, Row, read_results
from qurate.data.samples import SealedLabels, Split, Unlabeled
from qurate.data.suites import hide_classes
from qurate.evaluation import Annotator, true_labels
from qurate.registry import QUERY_STRATEGIES

EVERYBODY = ("none", *QUERY_STRATEGIES)


def cell_of(strategy: str, *, ask: int = 8, rounds: int = 2, selector: str = "adaptive", steps: int = 16) -> Cell:
    grid = tiny_grid(
        methods=("tml",),
        selectors=(selector,),
        steps=steps,
        query_strategy=(strategy,),
        ask=ask,
        ask_rounds=rounds,
    )
    return grid.cells()[0]


@pytest.fixture(scope="module")
def split() -> Split:
    return small_split()


@pytest.fixture(scope="module")
def base(split: Split) -> BaseRun:
    cell = cell_of("none")
    return run_base(split, cell, cell.config, None)


class Person(Annotator):
    """Remembers what it was asked."""

    def __init__(self, part: Unlabeled) -> None:
        super().__init__(part)
        self.questions: list[list[int]] = []

    def label(self, indices: Tensor) -> Tensor:
        self.questions.append(indices.tolist())
        return super().label(indices)


def follow(split: Split, base: BaseRun, strategy: str, size: int, rounds: int) -> tuple[list[QueryState], Person]:
    person, cell = Person(split.target_unlabeled), cell_of(strategy, ask=size * rounds, rounds=rounds)
    states = ask_in_rounds(split, base.state, cell, cell.config, person)
    return [base.state, *states], person


def plain(rows: tuple[Row, ...]) -> list[Row]:
    return [replace(row, seconds=0) for row in rows]


@pytest.mark.parametrize("strategy", EVERYBODY)
def test_every_query_strategy_asks_as_often_as_it_may_and_nothing_twice(
    split: Split, base: BaseRun, strategy: str
) -> None:
    result, _ = run_query_cell(split, cell_of(strategy), cell_of(strategy).config, base=base, commit="c")
    assert [(row.query_strategy, row.asked) for row in result.rows] == [
        (strategy, 0),
        (strategy, 4),
        (strategy, 8),
    ]
    assert {row.device for row in result.rows} == {"cpu"}
    states, person = follow(split, base, strategy, 4, 2)
    count = 0 if strategy == "none" else 4
    assert [len(asked) for asked in person.questions] == ([0] if strategy == "none" else [count, count])
    assert person.asked == len({place for asked in person.questions for place in asked}) == 2 * count
    truth = true_labels(split.target_unlabeled)
    for number, (state, row) in enumerate(zip(states, result.rows, strict=True)):
        asked = {place for some in person.questions[:number] for place in some}
        said = state.probabilities.argmax(dim=1).tolist()
        right = [said[i] == label or i in asked for i, label in enumerate(truth.tolist())]
        assert row.accuracy == pytest.approx(sum(right) / len(truth), abs=1e-6)
        of_class = [[ok for ok, label in zip(right, truth.tolist(), strict=True) if label == k] for k in range(10)]
        assert row.balanced_accuracy == pytest.approx(sum(sum(some) / len(some) for some in of_class) / 10, abs=1e-6)
        assert len(state.left) == len(state.split.target_unlabeled) == len(truth) - len(asked)
        assert len(state.split.target_labeled) == 30 + len(asked)
        assert torch.equal(true_labels(state.split.target_unlabeled), truth[state.left])
    seconds = [row.seconds for row in result.rows]
    assert seconds == sorted(seconds)
    assert [row.steps for row in result.rows] == [
        32,
        46,
        46 if strategy == "none" else 60,
    ]  # 16 + 4 x 4; then 6 + 4 x 2


def test_a_method_that_is_fitted_takes_no_steps_with_answers_either(split: Split) -> None:
    (cell,) = tiny_grid(
        methods=("logistic",), selectors=("none",), ask=8, ask_rounds=2, query_strategy=("margin",)
    ).cells()
    assert [row.steps for row in run_query_cell(split, cell, cell.config)[0].rows] == [0, 0, 0]


def test_the_first_row_is_the_cell_that_does_not_ask(split: Split, base: BaseRun) -> None:
    cell = cell_of("random")
    asked, _ = run_query_cell(split, cell, cell.config, base=base, commit="c")
    alone, _ = run_cell(split, cell.base, cell.config, commit="c")
    (row,) = plain(alone.rows)
    assert plain(asked.rows)[0] == replace(row, config=cell.name, query_strategy="random", asked=0)


@pytest.mark.parametrize("strategy", ["none", "clusters", "density"])
def test_a_longer_asking_begins_as_a_shorter_one(split: Split, base: BaseRun, strategy: str) -> None:
    short, long = cell_of(strategy, ask=4, rounds=1), cell_of(strategy, ask=12, rounds=3)
    few, _ = run_query_cell(split, short, short.config, base=base)
    many, _ = run_query_cell(split, long, long.config, base=base)
    assert [row.asked for row in many.rows] == [0, 4, 8, 12]
    assert plain(few.rows) == [replace(row, config=short.name) for row in plain(many.rows)[:2]]


@pytest.mark.parametrize("selector", ["adaptive", "none"])
@pytest.mark.parametrize("strategy", ["random", "density"])
def test_nothing_of_the_truth_but_the_answers_gets_to_training(strategy: str, selector: str, split: Split) -> None:
    cell = cell_of(strategy, selector=selector)

    def followed(part: Split) -> tuple[list[QueryState], Person]:
        return follow(part, run_base(part, cell, cell.config, None), strategy, 4, 2)

    states, person = followed(split)
    truth = true_labels(split.target_unlabeled)
    wrong = (truth + 1) % 10
    for asked in person.questions:
        wrong[asked] = truth[asked]
    poisoned = replace(split, target_unlabeled=Unlabeled(split.target_unlabeled.inputs, SealedLabels(wrong)))
    others, again = followed(poisoned)
    assert again.questions == person.questions
    for one, other in zip(states, others, strict=True):
        assert torch.equal(one.probabilities, other.probabilities)
    wrong[person.questions[0][0]] += 1  # and the answers do get there
    wrong %= 10
    changed, _ = followed(
        replace(split, target_unlabeled=Unlabeled(split.target_unlabeled.inputs, SealedLabels(wrong)))
    )
    assert torch.equal(states[0].probabilities, changed[0].probabilities)
    assert not torch.equal(states[1].probabilities, changed[1].probabilities)


def test_a_query_strategy_sees_answers_as_certain_and_what_is_trusted_where_it_is(split: Split, base: BaseRun) -> None:
    states, person = follow(split, base, "density", 4, 2)
    truth, asked = true_labels(split.target_unlabeled), [place for some in person.questions for place in some]
    pool: Pool = pool_of(split, states[-1])
    assert pool.closed is not None
    assert pool.trusted is not None
    assert set(pool.closed.nonzero().squeeze(1).tolist()) == set(asked)
    assert pool.features.shape == (200, states[-1].method.network.backbone(torch.zeros(1, 1, 28, 28)).shape[1])
    for place in range(200):
        if place in asked:
            assert pool.probabilities[place].tolist() == [float(k == truth[place]) for k in range(10)]
            assert int(pool.trusted[place]) == -1
        else:
            assert torch.equal(pool.probabilities[place], states[-1].probabilities[place])
    inputs, left = split.target_unlabeled.inputs, states[-1].split.target_unlabeled.inputs
    assert isinstance(inputs, Tensor)
    assert isinstance(left, Tensor)
    for place, label in zip(states[-1].positives.indices.tolist(), states[-1].positives.labels.tolist(), strict=True):
        before = int(states[-1].left[place])
        assert torch.equal(inputs[before], left[place])
        assert int(pool.trusted[before]) == label
    assert int((pool.trusted >= 0).sum()) == len(states[-1].positives) > 100


def test_more_than_there_is_to_ask_about_is_an_error(split: Split, base: BaseRun) -> None:
    cell = cell_of("random", ask=202, rounds=1)
    with pytest.raises(
        BenchmarkError, match=r"query strategy 'random' finds 200 images .* round 1, which asks for 202"
    ):
        run_query_cell(split, cell, cell.config, base=base)


GRID = tiny_grid(
    methods=("tml",),
    selectors=("none", "adaptive"),
    query_strategy=("none", "random"),
    ask=4,
    ask_rounds=2,
    seeds=(0, 1),
)


class Counting(SmallRunner):
    """Forgets what cells can share, or counts how often it is made."""

    def __init__(self, forgets: bool = False) -> None:
        super().__init__()
        self.forgets = forgets
        self.bases: set[int] = set()
        self.kept: list[BaseRun] = []

    def run(self, cell: Cell) -> Any:
        if self.forgets:
            self._base = self._pretrained = None
        result = super().run(cell)
        assert self._base is not None
        self.kept.append(self._base)  # so that no other can have its place
        self.bases.add(id(self._base))
        return result


def test_shared_runs_give_the_same_numbers(tmp_path: Path) -> None:
    sharing, alone = Counting(), Counting(forgets=True)
    assert run_grid(GRID, tmp_path / "shared", [InlineExecutor(sharing)]) == []
    assert run_grid(GRID, tmp_path / "alone", [InlineExecutor(alone)]) == []
    assert tables(tmp_path / "shared") == tables(tmp_path / "alone")
    assert (len(sharing.bases), len(alone.bases)) == (4, 8)
    for cell in GRID.cells():
        one, other = (tmp_path / name / "cells" / cell.name / "asked.csv" for name in ("shared", "alone"))
        assert one.read_bytes() == other.read_bytes()


def test_an_executor_keeps_to_the_query_strategies_of_a_run() -> None:
    first, second, *_ = cells = GRID.cells()
    assert next_cell(cells[1:], first.pretraining, set()) == second
    assert second.base == first.base


def test_the_folder_of_a_cell_tells_when_each_sample_was_asked_about(tmp_path: Path) -> None:
    assert run_grid(GRID, tmp_path) == []
    results = read_results(tmp_path / "results.csv")
    assert len(results) == 8 * 3
    cell = next(cell for cell in GRID.cells() if (cell.query_strategy, cell.selector) == ("random", "adaptive"))
    table = read_queries(tmp_path / "cells" / cell.name / "asked.csv", cell.label_counts)
    assert table["asked_at"].value_counts().to_dict() == {0: 196, 2: 2, 4: 2}
    for number in cell.label_counts:
        said = table["asked_at"].between(1, number) | (table[f"right_{number}"] == 1)
        (row,) = results[(results["config"] == cell.name) & (results["asked"] == number)].itertuples()
        assert row.accuracy == pytest.approx(said.mean(), abs=1e-6)
    assert (tmp_path / "rounds.csv").read_text().count("\n") == 1  # those of the run before are not repeated
    again = InlineExecutor()
    assert run_grid(GRID, tmp_path, [again]) == []
    assert again.ran == []


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (lambda text: text[:-9], "is cut off|field"),
        (lambda text: text.replace("right_4", "right_5"), "must have the columns sample, asked_at, right_0, right_2"),
        (lambda text: text.replace("\n0,0,", "\n0,3,"), "each sample once"),
        (lambda text: text.replace("\n0,0,", "\n0,x,"), "must hold whole numbers"),
        (lambda text: text.replace("\n1,", "\n0,"), "each sample once"),
        (lambda text: "", "no header line"),
    ],
)
def test_a_damaged_table_of_samples_is_told_and_the_cell_run_again(tmp_path: Path, damage: Any, said: str) -> None:
    cell = cell_of("none", ask=4, steps=4)
    truth = pd.DataFrame(
        {"sample": [0, 1], "asked_at": [0, 0], "right_0": [1, 0], "right_2": [1, 1], "right_4": [0, 1]}
    )
    row = Row(
        **cell.key(), model_selection="last", accuracy=0.5, balanced_accuracy=0.5, positives=0, positives_accuracy=None,
        seconds=1.0, config=cell.name, commit="c", query_strategy="none",
    )  # fmt: skip
    rows = [replace(row, asked=n) for n in cell.label_counts]
    BenchmarkFolder(tmp_path).keep(cell, CellResult(tuple(rows), asked=truth))
    assert BenchmarkFolder(tmp_path).is_finished(cell)
    path = tmp_path / "cells" / cell.name / "asked.csv"
    path.write_text(damage(path.read_text()))
    with pytest.warns(UserWarning, match=said):
        assert not BenchmarkFolder(tmp_path).is_finished(cell)


def test_images_of_no_class_are_answered_so_and_count_as_found(split: Split) -> None:
    hidden = hide_classes(split, 4, 0, 0)
    cell = replace(cell_of("random", ask=40, rounds=1, selector="balanced"), unknown=4)
    (first, last), asked = (result := run_query_cell(hidden, cell, cell.config)[0]).rows, result.asked
    truth = true_labels(hidden.target_unlabeled)
    assert asked is not None
    assert len(asked) == int((truth >= 0).sum())
    of_a_class = int((asked["asked_at"] > 0).sum())
    assert 0 < of_a_class < 40  # the others are of no class
    assert (first.unknown, first.hos) == (4, None)
    assert first.auroc_unknown is not None
    assert last.auroc_unknown is not None
    assert last.auroc_unknown > first.auroc_unknown
