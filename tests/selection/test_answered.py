"""Going on from a finished run with answers, and what an agent learns from them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.selection.problem import K, agent_of, blobs, config, our_config
from tests.selection.test_session import Events, File, KilledError, assert_equal
from torch import Tensor

from qurate.config import EpisodeConfig
from qurate.data.batches import TrainingData
from qurate.data.images import ImageFiles
from qurate.data.samples import DataError, Labeled, Split, Unlabeled
from qurate.errors import ConfigError, QurateError
from qurate.evaluation import true_labels
from qurate.methods import Method
from qurate.selection import selectors
from qurate.selection.algorithm import Adaptation, fit
from qurate.selection.answered import Answered, Previous, answer, before_answers, fit_with_answers, shorten
from qurate.selection.callbacks import Callback, RoundRecord
from qurate.selection.dqn import DQNSelector
from qurate.selection.environment import SelectionEnv
from qurate.selection.pseudo_labels import Positives
from qurate.selection.selectors import Selector

ASKED = torch.tensor([70, 3, 41, 12, 0, 55, 28, 33])


def answered(split: Split, asked: Tensor = ASKED) -> Answered:
    return answer(split, asked, true_labels(split.target_unlabeled)[asked])


def rows(split: Split) -> tuple[Tensor, Tensor]:
    target, unlabeled = split.target_labeled.inputs, split.target_unlabeled.inputs
    assert isinstance(target, Tensor)
    assert isinstance(unlabeled, Tensor)
    return target, unlabeled


def test_labelled_samples_join_the_labelled_target_and_all_answered_ones_leave() -> None:
    split = blobs()
    labels = torch.tensor([2, -1, 0])
    asked = torch.tensor([7, 5, 1])
    after = answer(split, asked, labels)
    (target, unlabeled), (new_target, left) = rows(split), rows(after.split)
    assert torch.equal(new_target, torch.cat([target, unlabeled[[7, 1]]]))
    assert after.split.target_labeled.labels.tolist() == [*split.target_labeled.labels.tolist(), 2, 0]
    kept = [i for i in range(80) if i not in (7, 5, 1)]
    assert after.kept.tolist() == kept
    assert torch.equal(left, unlabeled[kept])
    assert torch.equal(true_labels(after.split.target_unlabeled), true_labels(split.target_unlabeled)[kept])
    assert after.joined == 2
    assert after.split.source is split.source
    assert len(split.target_unlabeled) == 80  # the split before is as it was


def test_only_answers_without_a_class_change_nothing_but_the_unlabelled() -> None:
    split = blobs()
    after = answer(split, torch.tensor([4]), torch.tensor([-1]))
    assert (after.joined, len(after.split.target_unlabeled)) == (0, 79)
    assert after.split.target_labeled is split.target_labeled


def test_nothing_answered_is_the_same_split() -> None:
    none = torch.empty(0, dtype=torch.int64)
    after = answer(blobs(), none, none)
    assert (after.joined, after.kept.tolist()) == (0, list(range(80)))


def test_files_and_unknown_truth_are_answered_alike(tmp_path: Path) -> None:
    def files(*names: str) -> ImageFiles:
        return ImageFiles(tuple(tmp_path / name for name in names))

    split = Split(
        ("a", "b"),
        Labeled(files("s"), torch.tensor([0])),
        Labeled(files("t"), torch.tensor([1])),
        Unlabeled(files("u", "v", "w")),
    )
    after = answer(split, torch.tensor([1]), torch.tensor([0])).split
    assert after.target_labeled.inputs == files("t", "v")
    assert after.target_unlabeled.inputs == files("u", "w")
    assert after.target_unlabeled.sealed is None


@pytest.mark.parametrize(
    ("indices", "labels", "said"),
    [
        ([0, 80], [1, 1], "indices must be .* between 0 and 79, got 0 to 80"),
        ([0], [K], r"labels must be a tensor \(N,\) of int64 between -1 and 3, got 4 to 4"),
        ([0], [-2], "between -1 and 3, got -2 to -2"),
        ([5, 5], [1, 1], "once and with one label, got 2 positions, 1 of them different, and 2 labels"),
        ([5, 6], [1], "2 of them different, and 1 labels"),
        (range(80), [0] * 80, "nothing left to adapt to"),
    ],
)
def test_wrong_answers_are_refused(indices: list[int], labels: list[int], said: str) -> None:
    with pytest.raises(DataError, match=said):
        answer(blobs(), torch.tensor(list(indices)), torch.tensor(labels))


def test_labels_that_are_no_tensor_are_refused() -> None:
    wrong: Any = [1]
    with pytest.raises(DataError, match=r"labels must be a tensor .* got list"):
        answer(blobs(), torch.tensor([0]), wrong)


def positives_at(indices: list[int]) -> Positives:
    places, numbers = torch.tensor(indices, dtype=torch.int64), torch.tensor([0.1 * i for i in indices])
    return Positives(places, places % K, places, *[numbers] * 5)


@pytest.mark.parametrize("indices", [[], [79], [3, 9, 41, 2], [70, 3, 41, 12, 0, 55, 28, 33], list(range(80))])
def test_positives_that_are_left_are_found_again(indices: list[int]) -> None:
    split, before = blobs(), positives_at(indices)
    after = answered(split)
    kept = after.keep(before)
    expected = [i for i in indices if i not in ASKED.tolist()]
    assert len(kept) == len(expected)
    for place, old in enumerate(expected):
        new = int(kept.indices[place])
        assert torch.equal(rows(after.split)[1][new], rows(split)[1][old])
        assert (int(kept.labels[place]), int(kept.rounds[place])) == (old % K, old)
        assert float(kept.phi[place]) == pytest.approx(0.1 * old)


def test_the_data_of_before_the_answers() -> None:
    split = blobs()
    former, truth = before_answers(TrainingData.of(answered(split).split), len(ASKED))
    assert torch.equal(former.target.labels, split.target_labeled.labels)
    unlabeled, expected = rows(split)[1], [*ASKED.tolist(), *(i for i in range(80) if i not in ASKED.tolist())]
    assert isinstance(former.unlabeled, Tensor)
    assert torch.equal(former.unlabeled, unlabeled[expected])
    assert truth.tolist() == [*true_labels(split.target_unlabeled)[ASKED].tolist(), *[-1] * 72]


def test_very_many_images_stay_in_half_precision_before_the_answers() -> None:
    data = TrainingData.of(answered(blobs()).split)
    assert isinstance(data.unlabeled, Tensor)
    former, _ = before_answers(replace(data, unlabeled=data.unlabeled.half()), len(ASKED))
    assert isinstance(former.unlabeled, Tensor)
    assert former.unlabeled.dtype == torch.float16


def weights_of(method: Method) -> dict[str, Tensor]:
    return {name: values.clone() for name, values in method.state_dict().items()}


def previous_of(base: Adaptation, after: Answered, **changes: Any) -> Previous:
    return Previous(weights_of(base.method), after.keep(base.positives), after.joined, **changes)


class Spy(Callback):
    """Keeps what it is told of the rounds, and counts steps."""

    def __init__(self) -> None:
        self.starts: list[int] = []
        self.steps = 0
        self.actions = 0
        self.records: list[RoundRecord] = []
        self.first: dict[str, Tensor] = {}

    def on_step(self, step: int, terms: dict[str, float]) -> None:
        self.steps += 1

    def on_pretrained(self, method: Method) -> None:
        self.first = weights_of(method)

    def on_round_start(self, number: int) -> None:
        self.starts.append(number)

    def on_action(self, action: object) -> None:
        self.actions += 1

    def on_round(self, record: RoundRecord, method: Method, positives: Positives) -> None:
        self.records.append(record)


def test_it_begins_anew_with_a_third_of_the_steps_and_with_all_rounds() -> None:
    split, run, spy, plain = blobs(), config("adaptive", rounds=7), Spy(), Spy()
    base, after = fit(split, run), answered(split)
    done = fit_with_answers(after.split, run, previous_of(base, after), callbacks=[spy])
    assert spy.starts == list(range(7))
    assert spy.steps == 20 + 7 * 4  # of 60 and of 10
    short = replace(run, training=replace(run.training, steps=20), selection=replace(run.selection, round_steps=4))
    assert_equal(done, fit(after.split, short, callbacks=[plain]))
    assert (spy.steps, spy.starts) == (plain.steps, plain.starts)


def test_without_rounds_a_third_of_the_steps_follow() -> None:
    split, run, spy = blobs(), config("none"), Spy()
    base, after = fit(split, run), answered(split)
    done = fit_with_answers(after.split, run, previous_of(base, after), callbacks=[spy])
    assert spy.steps == 20  # of 60
    assert (done.rounds, len(done.positives)) == ((), 0)
    assert not torch.equal(done.method.network.classifier.weight, base.method.network.classifier.weight)


def test_an_agent_acts_a_third_as_often() -> None:
    run = our_config(rounds=7)
    assert (agent_of(run).episode.actions, agent_of(shorten(run)).episode.actions) == (12, 4)
    assert shorten(replace(run, training=replace(run.training, steps=1))).training.steps == 1


RUNS = {
    "adaptive": config("adaptive", rounds=7),
    "ours": our_config(rounds=7),
    "printed": config(rounds=7),
    "none": config("none"),
}


@pytest.mark.parametrize("name", RUNS)
def test_the_same_twice_and_killed_anywhere_the_same(name: str, tmp_path: Path) -> None:
    split, run = blobs(), RUNS[name]
    base, after = fit(split, run), answered(split)
    previous, events = previous_of(base, after), Events()
    whole = fit_with_answers(after.split, run, previous, callbacks=[events])
    assert_equal(whole, fit_with_answers(after.split, run, previous))
    ends = [i for i, name in enumerate(events.names, 1) if name == "round"]
    for count in sorted({2, len(events.names) // 2, *ends}):
        checkpoint = File(tmp_path / f"{count}.safetensors")
        with pytest.raises(KilledError):
            fit_with_answers(after.split, run, previous, callbacks=[Events(count)], checkpoint=checkpoint)
        assert_equal(whole, fit_with_answers(after.split, run, previous, checkpoint=checkpoint))


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"positives": positives_at([72])}, "previous.positives.indices must be .* between 0 and 71"),
        ({"positives": replace(positives_at([1]), labels=torch.tensor([K]))}, "labels must be .* between 0 and 3"),
        ({"answered": 16}, "answered must be below the 16 samples of D_t, got 16"),
        ({"weights": {"x": torch.zeros(1)}}, "The weights are of another network or method"),
    ],
)
def test_a_previous_run_that_does_not_fit_is_named(change: dict[str, Any], said: str) -> None:
    split, run = blobs(), our_config(rounds=2)
    base, after = fit(split, run), answered(split)
    with pytest.raises(QurateError, match=said):
        fit_with_answers(after.split, run, replace(previous_of(base, after), **change))


def test_a_previous_run_is_checked_by_itself_too() -> None:
    with pytest.raises(ConfigError, match="answered must be at least 0, got -1"):
        Previous({}, Positives.none(), answered=-1)
    wrong: Any = "run"
    with pytest.raises(ConfigError, match="previous must be a Previous, got str"):
        fit_with_answers(blobs(), config("none"), wrong)


class Steps:
    """Every step of every environment: whether it had the truth, the sample, its pseudo-label, its reward."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.true: list[tuple[int, int, float]] = []
        self.others = 0
        original = SelectionEnv.step

        def step(env: SelectionEnv, action: np.int64) -> Any:
            made = original(env, action)
            if env.truth is None:
                self.others += 1
            else:
                self.true.append((made[4]["sample"], made[4]["label"], made[1]))
            return made

        monkeypatch.setattr(SelectionEnv, "step", step)


class Selectors:
    """The selectors that runs build."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.built: list[Selector] = []
        original = selectors.build_selector

        def build(*arguments: Any, **named: Any) -> Selector:
            self.built.append(original(*arguments, **named))
            return self.built[-1]

        monkeypatch.setattr("qurate.selection.answered.build_selector", build)

    @property
    def last(self) -> DQNSelector:
        selector = self.built[-1]
        assert isinstance(selector, DQNSelector)
        return selector


def rewards_in(selector: DQNSelector) -> list[float]:
    """Those in the pool, the oldest first; nothing must have been overwritten."""
    state = selector.agent.pool.state_dict()
    written, oldest, added, _ = state["counters"].tolist()
    assert (oldest, len(state["rewards"])) == (0, added)
    assert written == len(state["observations"])
    return [float(reward) for reward in state["rewards"]]


AGENTS = {
    "ours": our_config(rounds=7),
    "printed": config(rounds=7),
    "one round": our_config(rounds=1),
    "few images": config(rounds=3, episode=EpisodeConfig(candidates=78, actions=6, repeat_episodes=True)),
}


@pytest.mark.parametrize("name", AGENTS)
def test_an_agent_is_rewarded_by_the_answers_and_keeps_them(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    run, split = AGENTS[name], blobs(noise=2.0)
    base = fit(split, run)
    asked = torch.arange(0, 80, 5)
    after = answered(split, asked)
    steps, selectors, spy = Steps(monkeypatch), Selectors(monkeypatch), Spy()
    fit_with_answers(after.split, run, previous_of(base, after), callbacks=[spy])
    truth = true_labels(split.target_unlabeled)[asked].tolist()
    assert len(steps.true) == len(asked)  # also where a round has one episode
    for place, label, reward in steps.true:
        assert place < len(asked)  # nothing but what was answered
        assert reward == (1.0 if label == truth[place] else -1.0)
    kept = rewards_in(selectors.last)
    assert kept[: len(steps.true)] == [reward for _, _, reward in steps.true]
    assert len(kept) == len(steps.true) + steps.others
    assert spy.actions == steps.others  # of D_u as it is now


def test_answers_of_both_kinds_were_among_them(monkeypatch: pytest.MonkeyPatch) -> None:
    run, split = AGENTS["ours"], blobs(noise=2.0)
    base, after = fit(split, run), answered(split, torch.arange(0, 80, 5))
    steps = Steps(monkeypatch)
    fit_with_answers(after.split, run, previous_of(base, after))
    assert {reward for _, _, reward in steps.true} == {1.0, -1.0}


def test_the_trial_of_answers_leaves_the_positives_and_the_model_alone() -> None:
    run, split, spy, other = our_config(rounds=7), blobs(), Spy(), Spy()
    base, after = fit(split, run), answered(split)
    previous = previous_of(base, after)
    fit_with_answers(after.split, run, previous, callbacks=[spy])
    fit_with_answers(after.split, run, replace(previous, true_rewards=False), callbacks=[other])
    for name, values in spy.first.items():
        assert torch.equal(values, other.first[name]), name


def test_without_true_rewards_the_agent_begins_as_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    run, split = our_config(rounds=7), blobs()
    base, after = fit(split, run), answered(split)
    steps = Steps(monkeypatch)
    fit_with_answers(after.split, run, previous_of(base, after, true_rewards=False))
    assert steps.true == []
    fit_with_answers(after.split, run, replace(previous_of(base, after), answered=0))
    assert steps.true == []
