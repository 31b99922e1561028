from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from tests.benchmark.tiny_grid import small_split, tiny_grid

from qurate.benchmark.cell import (
    SNAPSHOTS,
    Cell,
    CellResult,
    Pretrained,
    SnapshotMonitor,
    judge,
    run_cell,
    snapshot_steps,
)
from qurate.benchmark.folder import current_commit
from qurate.config import DQNConfig, RunConfig
from qurate.data.samples import UNKNOWN, SealedLabels, Split, Unlabeled
from qurate.evaluation import evaluate
from qurate.model_selection import RULES
from qurate.selection.algorithm import fit


@pytest.fixture(scope="module")
def split() -> Split:
    return small_split()


def cell_of(selector: str, *, rules: tuple[str, ...] = ("last",), steps: int = 16, method: str = "tml") -> Cell:
    cell = tiny_grid(methods=(method,), selectors=(selector,), model_selection=rules, steps=steps).cells()[0]
    chosen = cell.config.selection.selector
    if not isinstance(chosen, DQNConfig):
        return cell
    shorter = replace(chosen, episode=replace(chosen.episode, actions=3, candidates=10))
    return replace(cell, config=replace(cell.config, selection=replace(cell.config.selection, selector=shorter)))


def run(split: Split, cell: Cell, before: Pretrained | None = None) -> tuple[CellResult, Pretrained]:
    return run_cell(split, cell, cell.config, before=before, commit=current_commit())


def run_weights(split: Split, config: RunConfig, monitor: SnapshotMonitor | None) -> torch.Tensor:
    result = fit(split, config, callbacks=() if monitor is None else (monitor,))
    return torch.cat([value.flatten().double() for value in result.method.state_dict().values()])


@pytest.mark.parametrize("selector", ["none", "balanced"])
def test_looking_at_models_on_the_way_changes_no_bit_of_training(split: Split, selector: str) -> None:
    config = cell_of(selector).config
    monitor = SnapshotMonitor(split, RULES, steps=range(1, 16))
    assert torch.equal(run_weights(split, config, monitor), run_weights(split, config, None))
    assert len(monitor.snapshots) == (16 if selector == "none" else 15 + 1 + config.selection.rounds)


def test_the_rule_of_validation_needs_validation(split: Split) -> None:
    with pytest.raises(ValueError, match="needs validation samples and the split has none"):
        SnapshotMonitor(replace(split, validation=None), RULES)
    SnapshotMonitor(replace(split, validation=None), ("last", "entropy"))


@pytest.mark.parametrize("selector", ["none", "long", "balanced", "dqn", "oracle"])
def test_every_rule_has_a_row_and_the_last_model_is_that_of_a_plain_run(split: Split, selector: str) -> None:
    cell = cell_of(selector, rules=RULES)
    result, _ = run(split, cell)
    assert [row.model_selection for row in result.rows] == list(RULES)
    if selector != "oracle":
        plain = fit(split, cell.config)
        assert result.rows[0].accuracy == evaluate(plain.method, split.target_unlabeled).accuracy
        assert (result.rows[0].positives or 0) == len(plain.positives)
    assert {row.config for row in result.rows} == {cell.name}
    assert {row.steps for row in result.rows} == {16 if selector == "none" else 32}
    by_rule = {row.model_selection: row for row in result.rows}
    assert by_rule["oracle"].accuracy == max(row.accuracy for row in result.rows)
    if selector in ("none", "long"):
        assert result.rounds == ()
        assert by_rule["last"].positives is None
        return
    assert [row.round for row in result.rounds] == list(range(5))
    assert result.rounds[0].positives == 0
    assert result.rounds[0].positives_accuracy is None
    assert result.rounds[-1].accuracy == by_rule["last"].accuracy
    assert result.rounds[-1].positives == by_rule["last"].positives
    assert result.rounds[-1].coverage == pytest.approx(result.rounds[-1].positives / len(split.target_unlabeled))
    assert by_rule["oracle"].accuracy == max(row.accuracy for row in result.rounds)


def test_a_model_is_judged_by_its_score_and_flags_where_it_has_them() -> None:
    probabilities = torch.tensor([[0.9, 0.1], [0.4, 0.6], [0.7, 0.3], [0.2, 0.8], [0.5, 0.5]])
    truth = torch.tensor([0, 1, 1, UNKNOWN, -1])
    alone = judge(probabilities, truth)
    assert alone.accuracy == pytest.approx(2 / 3)
    assert alone.balanced_accuracy == pytest.approx(0.75)
    assert alone.auroc == 0.5  # the wrong one, at 0.7, is below 0.9 and above 0.6
    assert alone.auroc_unknown == pytest.approx(1 / 3)  # 0.8 is above two of the three
    assert alone.hos is None
    known = torch.tensor([0.9, 0.8, 0.7, 0.1, 0.0])
    whole = judge(probabilities, truth, known=known, flagged=torch.tensor([False, True, False, True, False]))
    assert whole.auroc_unknown == 1
    assert whole.hos == pytest.approx(
        2 / (3 / 1 + 1)
    )  # one of three is right and not flagged, the unknown one is found
    assert replace(whole, auroc_unknown=alone.auroc_unknown, hos=None) == alone
    closed = judge(probabilities, torch.tensor([0, 1, 1, -1, -1]), flagged=torch.zeros(5, dtype=torch.bool))
    assert (closed.auroc_unknown, closed.hos) == (None, None)


def test_a_run_without_rounds_is_looked_at_evenly_unless_only_the_last_model_counts() -> None:
    config = cell_of("none", steps=80).config
    assert snapshot_steps(config, ("last", "snd")) == (10, 20, 30, 40, 50, 60, 70)
    assert len(snapshot_steps(config, ("oracle",))) == SNAPSHOTS - 1
    assert snapshot_steps(config, ("last",)) == ()
    assert snapshot_steps(cell_of("random").config, ("snd",)) == ()


@pytest.mark.parametrize("selector", ["none", "quality", "dqn"])
def test_shared_pre_training_gives_the_same_rows(split: Split, selector: str) -> None:
    _, pretrained = run(split, cell_of("balanced"))
    cell = cell_of(selector)
    alone, _ = run(split, cell)
    shared, after = run(split, cell, pretrained)
    assert after is pretrained
    assert [replace(row, seconds=0) for row in alone.rows] == [replace(row, seconds=0) for row in shared.rows]
    assert alone.rounds == shared.rounds
    assert shared.rows[0].seconds > pretrained.seconds  # what the pre-training took is counted
    other = cell_of(selector, method="ent")
    _, own = run(split, other, pretrained)
    assert own is not pretrained


@pytest.mark.parametrize("selector", ["none", "balanced"])
def test_only_the_oracle_and_the_measures_depend_on_hidden_labels(split: Split, selector: str) -> None:
    def chosen(labels: torch.Tensor) -> tuple[list[int], list[dict[str, float]]]:
        poisoned = replace(split, target_unlabeled=Unlabeled(split.target_unlabeled.inputs, SealedLabels(labels)))
        monitor = SnapshotMonitor(poisoned, RULES, steps=(4, 8))
        run_weights(poisoned, cell_of(selector).config, monitor)
        scores = [
            {rule: score for rule, score in snapshot.scores.items() if rule != "oracle"}
            for snapshot in monitor.snapshots
        ]
        return [snapshot.positives for snapshot in monitor.snapshots], scores

    n = len(split.target_unlabeled)
    assert chosen(torch.zeros(n, dtype=torch.int64)) == chosen(torch.arange(n) % 10)
