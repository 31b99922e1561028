"""Algorithm 1: the order of its lines, its rules, its honesty."""

from __future__ import annotations

import dataclasses
import functools
import itertools
from collections.abc import Callable
from typing import Any

import pytest
import torch
from tests.selection.problem import K, agent_of, blobs, config, our_config

from qurate.config import EpisodeConfig, MethodConfig, NoneConfig, RewardConfig, RunConfig, SelectorConfig
from qurate.data.samples import SealedLabels, Unlabeled
from qurate.evaluation import evaluate
from qurate.presets import agent_selection
from qurate.registry import SELECTORS, TRAINED
from qurate.selection import algorithm, reward
from qurate.selection.algorithm import Adaptation, fit
from qurate.selection.callbacks import Action, Callback
from qurate.selection.environment import SelectionEnv
from qurate.selection.pseudo_labels import Positives, Round
from qurate.selection.q_learning.agent import DeepQAgent
from qurate.selection.q_learning.pool import OversizeStateError
from qurate.selection.session import Pretraining
from qurate.training import Trainer

OURS = our_config(rounds=2)
ALWAYS = RewardConfig(threshold_prob=1e-9, entropy_drop_weight=0.0)
"""Every candidate is good."""


class Actions(Callback):
    """Keeps what it is told of actions."""

    def __init__(self) -> None:
        self.actions: list[Action] = []

    def on_action(self, action: Action) -> None:
        self.actions.append(action)

    def of_round(self, number: int) -> list[Action]:
        return [action for action in self.actions if action.round == number]


def weights(result: Adaptation) -> torch.Tensor:
    return torch.cat([value.flatten().double() for value in result.method.state_dict().values()])


@pytest.fixture
def lines(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The lines of the paper, in the order in which whoever carries them out is called."""
    seen: list[str] = []

    def spy(owner: Any, name: str, line: str | Callable[..., str]) -> None:
        original = getattr(owner, name)

        @functools.wraps(original)
        def called(*values: Any, **named: Any) -> Any:
            seen.append(line if isinstance(line, str) else line(**named))
            return original(*values, **named)

        monkeypatch.setattr(owner, name, called)

    spy(Trainer, "run", lambda labeled_only=False, **_: "train F', C'" if labeled_only else "train F, C")
    spy(algorithm, "pseudo_label", "5")
    spy(SelectionEnv, "reset", "6-7")
    for name, line in {"_move": "10", "_train_trial": "11", "_next_state": "12", "_judge": "13"}.items():
        spy(SelectionEnv, name, line)
    for name, line in {"act": "9", "remember": "14", "learn": "15"}.items():
        spy(DeepQAgent, name, line)
    return seen


ACTION = ["9", "10", "11", "train F', C'", "12", "13", "14", "15"]


def test_the_lines_come_in_the_order_of_the_paper(lines: list[str]) -> None:
    result = fit(blobs(), config(reward=ALWAYS, rounds=2))
    one_round = ["5", "6-7", *ACTION * 6, "train F, C"]
    assert lines == ["train F, C", *one_round * 2]
    assert len(result.positives) == 12
    assert result.stopped == "the budget of 2 rounds is used up"


@pytest.fixture
def never(monkeypatch: pytest.MonkeyPatch) -> None:
    """No candidate is good."""
    monkeypatch.setattr(reward, "reward", lambda phi, threshold: -1.0)


@pytest.mark.usefixtures("never")
def test_a_negative_reward_breaks_the_episode_and_ends_the_round(lines: list[str]) -> None:
    heard = Actions()
    result = fit(blobs(), config(rounds=2), callbacks=[heard])
    one_round = ["5", "6-7", *ACTION, "train F, C"]  # one action of six, then lines 16-18
    assert lines == ["train F, C", *one_round * 2]
    assert [(action.round, action.reward) for action in heard.actions] == [(0, -1.0), (1, -1.0)]
    assert result.positives.indices.tolist() == [action.sample for action in heard.actions]
    assert result.positives.rewards.tolist() == [-1.0, -1.0]
    assert result.positives.rounds.tolist() == [0, 1]


def test_a_break_is_the_end_of_an_episode_to_the_pool_too(monkeypatch: pytest.MonkeyPatch) -> None:
    ends: list[tuple[float, bool, bool]] = []
    original = DeepQAgent.remember

    def remember(self: DeepQAgent, *values: Any, terminated: bool, last: bool) -> None:
        ends.append((values[2], terminated, last))
        original(self, *values, terminated=terminated, last=last)

    monkeypatch.setattr(DeepQAgent, "remember", remember)
    episode = EpisodeConfig(candidates=6, actions=20, repeat_episodes=True, trial_steps=1)
    fit(blobs(noise=2.0), config(reward=RewardConfig(threshold_prob=0.9), episode=episode, rounds=1))
    assert len(ends) == 20
    assert {gain for gain, _, _ in ends} == {1.0, -1.0}
    for number, (gain, terminated, last) in enumerate(ends):
        if gain < 0:
            assert terminated
        assert last == (terminated or number == 19)


def test_episodes_repeat_until_the_actions_are_used_up(lines: list[str]) -> None:
    heard = Actions()
    fit(blobs(), OURS, callbacks=[heard])
    for number in range(2):
        assert len(heard.of_round(number)) == 12
        negative = [action.reward < 0 for action in heard.of_round(number)]
        assert any(negative[:-1])  # an episode was broken off, and another began
    assert lines.count("6-7") > 2
    assert lines.count("9") == 24


@pytest.mark.usefixtures("never")
@pytest.mark.parametrize(("repeat", "actions"), [(False, 1), (True, 9)])
def test_a_round_has_one_episode_unless_episodes_repeat(repeat: bool, actions: int, lines: list[str]) -> None:
    episode = EpisodeConfig(candidates=3, actions=9, repeat_episodes=repeat, trial_steps=1)
    result = fit(blobs(), config(rounds=1, episode=episode))
    assert result.stopped == "the budget of 1 round is used up"
    assert (lines.count("6-7"), lines.count("9")) == (actions, actions)


@pytest.mark.parametrize("selector", ["balanced", "dqn"])
def test_a_run_on_the_pre_training_of_another_selector_is_the_same_to_the_bit(selector: str) -> None:
    run = OURS if selector == "dqn" else config(selector=selector, rounds=2)
    other = dataclasses.replace(run.selection, selector=SelectorConfig.of("confidence"))
    first = Pretraining()
    fit(blobs(), dataclasses.replace(run, selection=other), pretrained=first)
    assert first.seconds > 0
    whole, shared = fit(blobs(), run), fit(blobs(), run, pretrained=first)
    assert torch.equal(weights(whole), weights(shared))
    assert whole.positives.same_as(shared.positives)


@pytest.mark.parametrize("rounds", range(1, 9))
def test_exploration_falls_from_round_to_round_and_the_last_one_has_none(rounds: int) -> None:
    chosen = dataclasses.replace(agent_selection("paper"), rounds=rounds, round_steps=1, patience=rounds + 1)
    heard = Actions()
    run = dataclasses.replace(config(), selection=chosen)
    learning = dataclasses.replace(agent_of(run).q_learning, hidden=(8,))
    run = dataclasses.replace(
        run, selection=dataclasses.replace(chosen, selector=dataclasses.replace(agent_of(run), q_learning=learning))
    )
    fit(blobs(n=300), run, callbacks=[heard])
    explored = [heard.of_round(number)[0].exploration for number in range(rounds)]
    assert explored == pytest.approx([1 - number / (rounds - 1) for number in range(rounds)] if rounds > 1 else [0])
    assert heard.actions[-1].exploration == 0


def test_no_two_places_of_a_run_draw_the_same_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    seeds: list[int] = []

    class Recorded(torch.Generator):
        def manual_seed(self, seed: int) -> torch.Generator:
            seeds.append(seed)
            return super().manual_seed(seed)

    def manual_seed(seed: int) -> torch.Generator:
        seeds.append(seed)
        return torch.default_generator.manual_seed(seed)

    monkeypatch.setattr(torch, "Generator", Recorded)
    monkeypatch.setattr(torch, "manual_seed", manual_seed)
    split = blobs()
    seeds.clear()
    fit(split, dataclasses.replace(OURS, method=MethodConfig.of("dann")))
    assert len(seeds) > 50
    assert sorted(set(seeds)) == sorted(seeds)


@pytest.mark.parametrize("run", [config(), OURS], ids=["paper", "ours"])
def test_same_seed_twice_gives_the_same_positives_and_metrics(run: RunConfig) -> None:
    split = blobs()
    first, second = fit(split, run), fit(split, run)
    other = fit(split, dataclasses.replace(run, seed=run.seed + 1))
    assert first.positives.indices.tolist() == second.positives.indices.tolist() != other.positives.indices.tolist()
    assert torch.equal(first.positives.phi, second.positives.phi)
    assert torch.equal(weights(first), weights(second))
    assert evaluate(first.method, split.target_unlabeled) == evaluate(second.method, split.target_unlabeled)


@pytest.mark.parametrize("run", [config(name) for name in SELECTORS] + [OURS], ids=[*SELECTORS, "ours"])
def test_poisoned_labels_change_nothing(run: RunConfig) -> None:
    split = blobs()
    poison = SealedLabels((torch.arange(80) + 1) % K)
    poisoned = dataclasses.replace(split, target_unlabeled=Unlabeled(split.target_unlabeled.inputs, poison))
    honest, fooled = fit(split, run), fit(poisoned, run)
    assert torch.equal(weights(honest), weights(fooled))
    assert honest.positives.same_as(fooled.positives)


@pytest.mark.parametrize(("method", "selector"), list(itertools.product(TRAINED, SELECTORS)))
def test_any_method_with_any_selector_trains_on_what_was_selected(method: str, selector: str) -> None:
    run = config(selector, method=method, episode=EpisodeConfig(candidates=4, actions=2, trial_steps=1))
    run = dataclasses.replace(run, training=dataclasses.replace(run.training, steps=8))
    plain = dataclasses.replace(run, selection=dataclasses.replace(run.selection, selector=NoneConfig()))
    base, result = fit(blobs(), plain), fit(blobs(), run)
    assert bool(weights(result).isfinite().all())
    assert len(result.rounds) == (0 if selector == "none" else 2)
    assert torch.equal(weights(result), weights(base)) == (selector == "none")
    if selector in ("balanced", "share", "adaptive", "random", "dqn"):
        assert len(result.positives) > 0


def test_a_config_names_its_selector_and_an_argument_replaces_it() -> None:
    class FirstFive:
        def select(self, round: Round) -> Positives:
            return round.positives_at(torch.arange(5))

    assert len(fit(blobs(), config("random", rounds=2)).positives) == 72  # the share of the last round
    result = fit(blobs(), config("random", rounds=2), selector=FirstFive())
    assert result.positives.indices.tolist() == [0, 1, 2, 3, 4]
    assert result.rounds[0].new == 5


def test_rounds_stop_when_positives_no_longer_change() -> None:
    class Same:
        def select(self, round: Round) -> Positives:
            return dataclasses.replace(round.positives_at(torch.arange(5)), labels=torch.zeros(5, dtype=torch.int64))

    result = fit(blobs(), config(rounds=9), selector=Same())
    assert result.stopped == "the trusted pseudo-labels did not change for 3 rounds"
    assert len(result.rounds) == 4


def test_every_positive_says_why_it_was_trusted() -> None:
    heard = Actions()
    result = fit(blobs(), config(reward=ALWAYS), callbacks=[heard])
    table = result.positives.table(("a", "b", "c", "d"))
    assert list(table.columns) == [
        "sample",
        "label",
        "round",
        "reward",
        "phi",
        "classifier_prob",
        "center_prob",
        "entropy_drop",
    ]
    said = [(action.sample, "abcd"[action.label], action.round, action.reward) for action in heard.actions]
    assert list(table[["sample", "label", "round", "reward"]].itertuples(index=False, name=None)) == said
    assert table["phi"].tolist() == pytest.approx([action.phi for action in heard.actions], rel=1e-6)


def test_positives_can_be_relabelled_each_round() -> None:
    wrong = torch.full((80,), 3)
    for relabel in (True, False):
        run = config(rounds=2)
        run = dataclasses.replace(run, selection=dataclasses.replace(run.selection, relabel_positives=relabel))
        seen: list[Round] = []

        class Mislabel:
            def select(self, round: Round, seen: list[Round] = seen) -> Positives:
                seen.append(round)
                return round.positives_at(torch.arange(20)).relabeled(wrong)

        fit(blobs(), run, selector=Mislabel())
        expected = seen[1].pseudo_labels[:20] if relabel else wrong[:20]
        assert seen[1].positives.labels.tolist() == expected.tolist()
    assert not torch.equal(seen[1].pseudo_labels[:20], wrong[:20])


def test_an_oversize_state_fails_before_training_in_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("qurate.selection.q_learning.agent.available_memory", lambda: 1000)

    class Steps(Callback):
        def __init__(self) -> None:
            self.seen: list[int] = []

        def on_step(self, step: int, terms: dict[str, float]) -> None:
            self.seen.append(step)

    steps = Steps()
    with pytest.raises(OversizeStateError, match=r"bytes .* Ways out"):
        fit(blobs(), config(), callbacks=[steps])
    assert steps.seen == []


def test_a_harvested_positive_remembers_its_first_round_and_its_reward() -> None:
    heard = Actions()
    run = dataclasses.replace(OURS, selection=dataclasses.replace(OURS.selection, rounds=3))
    positives = fit(blobs(), run, callbacks=[heard]).positives
    assert len(positives) == len(positives.pairs())
    assert set(positives.rounds.tolist()) == {0, 1, 2}
    rewarded = {
        (sample, label): gain
        for sample, label, gain in zip(
            positives.indices.tolist(), positives.labels.tolist(), positives.rewards.tolist(), strict=True
        )
        if gain == gain
    }
    told = {(action.sample, action.label): action.reward for action in heard.actions}
    assert len(rewarded) > 0
    assert all(told[pair] == gain for pair, gain in rewarded.items())
