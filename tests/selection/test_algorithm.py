"""Algorithm 1: the order of its lines, its rules, its honesty."""

from __future__ import annotations

import dataclasses
import itertools

import pytest
import torch
from tests.selection.problem import K, blobs, config, our_config

from qurate.config import EpisodeConfig, RewardConfig, RunConfig
from qurate.data.samples import SealedLabels, Unlabeled
from qurate.evaluation import evaluate
from qurate.methods import METHODS
from qurate.presets import with_preset
from qurate.selection.algorithm import SELECTORS, Adaptation, Event, adapt
from qurate.selection.pseudo_labels import Positives, Round
from qurate.selection.q_learning.pool import OversizeStateError
from qurate.selection.selectors import OracleSelector, harvest
from qurate.training import Trainer

OURS = our_config(rounds=2)


def trace(run: RunConfig, noise: float = 1.0) -> tuple[list[Event], Adaptation]:
    events: list[Event] = []
    return events, adapt(blobs(noise=noise), run, on_event=events.append)


def weights(result: Adaptation) -> torch.Tensor:
    return torch.cat([value.flatten().double() for value in result.method.state_dict().values()])


def test_the_lines_come_in_the_order_of_the_paper() -> None:
    events, result = trace(config(reward=RewardConfig(threshold_prob=1e-9), rounds=2))
    lines = [event.line for event in events]
    assert lines[:5] == [0, 0, 1, 2, 3]  # memory is counted, and F and C are built, before pre-training
    action = [9, 10, 11, 12, 13, 14, 15]
    one_round = [5, 6, 7, *action * 6, 20]
    assert lines[5:] == one_round * 2
    assert len(result.positives) == 12
    assert result.stopped == "the budget of 2 rounds is used up"


@pytest.mark.parametrize("selector", ["balanced", "dqn"])
def test_a_run_on_the_pre_training_of_another_selector_is_the_same_to_the_bit(selector: str) -> None:
    states: list[dict[str, torch.Tensor]] = []
    trainers: list[Trainer] = []

    def after_line_1(event: Event) -> None:
        if event.what == "build F and C":
            trainers.append(event.data["trainer"])
        elif event.line == 1:
            states.append(trainers[0].state_dict())

    run = OURS if selector == "dqn" else config(selector=selector, rounds=2)
    first = dataclasses.replace(run, selection=dataclasses.replace(run.selection, selector="confidence"))
    adapt(blobs(), first, on_event=after_line_1)
    whole, shared = adapt(blobs(), run), adapt(blobs(), run, pretrained=states[0])
    assert torch.equal(weights(whole), weights(shared))
    assert whole.positives.same_as(shared.positives)


def test_a_negative_reward_breaks_the_episode_and_ends_the_round() -> None:
    never = RewardConfig(threshold_prob=1 - 1e-12, entropy_drop_weight=0.0)
    events, result = trace(config(reward=never, rounds=2), noise=3.0)
    lines = [event.line for event in events]
    assert lines.count(17) == 2
    for before, after in itertools.pairwise(lines):
        if before == 17:
            assert after == 20
    assert result.positives.rewards.tolist() == [-1.0, -1.0]
    assert result.positives.rounds.tolist() == [0, 1]


def test_episodes_repeat_until_the_actions_are_used_up_and_a_harvest_follows() -> None:
    events, result = trace(OURS)
    for number in range(2):
        of_round = [e.line for e in events if e.data.get("round", number) == number]
        assert of_round.count(9) >= 12
    lines = [event.line for event in events]
    assert lines.count(9) == 24
    assert lines.count(19) == 2
    assert len(result.positives) == len(result.positives.pairs())


@pytest.mark.parametrize("run", [config(), OURS], ids=["paper", "ours"])
def test_same_seed_twice_gives_the_same_positives_and_metrics(run: RunConfig) -> None:
    split = blobs()
    first, second = adapt(split, run), adapt(split, run)
    assert first.positives.indices.tolist() == second.positives.indices.tolist()
    assert torch.equal(first.positives.phi, second.positives.phi)
    assert torch.equal(weights(first), weights(second))
    assert evaluate(first.method, split.target_unlabeled) == evaluate(second.method, split.target_unlabeled)


@pytest.mark.parametrize("run", [config(name) for name in SELECTORS] + [OURS], ids=[*SELECTORS, "ours"])
def test_poisoned_labels_change_nothing(run: RunConfig) -> None:
    split = blobs()
    poison = SealedLabels((torch.arange(80) + 1) % K)
    poisoned = dataclasses.replace(split, target_unlabeled=Unlabeled(split.target_unlabeled.inputs, poison))
    honest, fooled = adapt(split, run), adapt(poisoned, run)
    assert torch.equal(weights(honest), weights(fooled))
    assert honest.positives.same_as(fooled.positives)


@pytest.mark.parametrize(("method", "selector"), list(itertools.product(METHODS, SELECTORS)))
def test_any_method_with_any_selector(method: str, selector: str) -> None:
    run = config(selector, method=method, episode=EpisodeConfig(candidates=4, actions=2, trial_steps=1))
    run = dataclasses.replace(run, training=dataclasses.replace(run.training, steps=8))
    result = adapt(blobs(), run)
    assert 0 <= evaluate(result.method, blobs().target_unlabeled).accuracy <= 1
    assert (len(result.positives) > 0) == (selector in ("balanced", "random", "dqn")) or selector in (
        "confidence",
        "quality",
    )


def test_a_selector_of_ones_own_is_one_small_class() -> None:
    class FirstFive:
        def select(self, round: Round) -> Positives:
            return round.positives_at(torch.arange(5))

    result = adapt(blobs(), config(rounds=9), selector=FirstFive())
    assert result.positives.indices.tolist() == [0, 1, 2, 3, 4]
    assert result.rounds[0].new == 5


def test_rounds_stop_when_positives_no_longer_change() -> None:
    class Same:
        def select(self, round: Round) -> Positives:
            return dataclasses.replace(round.positives_at(torch.arange(5)), labels=torch.zeros(5, dtype=torch.int64))

    result = adapt(blobs(), config(rounds=9), selector=Same())
    assert result.stopped == "D_p did not change for 3 rounds"
    assert len(result.rounds) == 4


def test_the_oracle_takes_right_labels_only() -> None:
    labels = torch.arange(80) % K
    result = adapt(blobs(), config(rounds=1), selector=OracleSelector(labels))
    assert torch.equal(result.positives.labels, labels[result.positives.indices])


def test_every_positive_says_why_it_was_trusted() -> None:
    result = adapt(blobs(), config())
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
    assert set(table["label"]) <= set("abcd")
    assert set(table["reward"]) <= {1.0, -1.0}
    assert len(table) == len(result.positives) > 0


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

        adapt(blobs(), run, selector=Mislabel())
        expected = seen[1].pseudo_labels[:20] if relabel else wrong[:20]
        assert seen[1].positives.labels.tolist() == expected.tolist()
    assert not torch.equal(seen[1].pseudo_labels[:20], wrong[:20])


def make_round() -> Round:
    found: list[Round] = []

    class Keep:
        def select(self, round: Round) -> Positives:
            found.append(round)
            return Positives.none()

    adapt(blobs(), config(rounds=1), selector=Keep())
    return found[0]


def test_a_harvest_is_balanced_and_gated() -> None:
    round = make_round()
    chosen = harvest(round, torch.rand(80, generator=torch.Generator().manual_seed(0)), share=0.5)
    counts = torch.bincount(chosen.labels, minlength=K)
    assert int(counts.max()) <= 10  # ceil(0.5 * 80 / 4)
    for label in range(K):
        members = round.phi[round.pseudo_labels == label]
        got = chosen.phi[chosen.labels == label]
        if len(got):
            assert float(got.min()) >= float(members.quantile(0.25))


def test_an_oversize_state_fails_before_training_in_bytes() -> None:
    run = with_preset(config(), "paper")
    big = dataclasses.replace(run.selection.q_learning, hidden=(10**9, 512))
    run = dataclasses.replace(run, selection=dataclasses.replace(run.selection, q_learning=big))
    steps: list[int] = []
    with pytest.raises(OversizeStateError, match=r"bytes .* Ways out"):
        adapt(blobs(), run, on_step=lambda step, _: steps.append(step))
    assert steps == []


def test_an_unknown_selector_says_what_is_allowed() -> None:
    with pytest.raises(ValueError, match="one of none, confidence, quality, balanced, random, dqn, got 'best'"):
        adapt(blobs(), config("best"))


@pytest.mark.parametrize("name", ["paper", "qurate"])
def test_presets_keep_the_rest_of_the_run(name: str) -> None:
    run = with_preset(config(method="mme"), name)
    assert run.selection.selector == "dqn"
    assert (run.method.name, run.seed, run.training.steps) == ("mme", 1, 60)
    with pytest.raises(ValueError, match="'paper' or 'qurate'"):
        with_preset(run, "best")


def test_the_paper_preset_is_the_printed_algorithm() -> None:
    selection = with_preset(RunConfig(), "paper").selection
    assert (selection.reward.network, selection.reward.center, selection.reward.threshold) == (
        "trial",
        "centers",
        "fixed",
    )
    episode = selection.episode
    assert (episode.agent, episode.state_network, episode.trial_steps, episode.entropy_samples) == (
        "flat",
        "trial",
        0,
        0,
    )
    assert (episode.keep_rejected, episode.harvest, episode.repeat_episodes) == (True, False, False)
    assert selection.reward.tau == pytest.approx(-0.2107210)


def test_a_harvested_positive_remembers_its_first_round_and_its_reward() -> None:
    events, result = trace(dataclasses.replace(OURS, selection=dataclasses.replace(OURS.selection, rounds=3)))
    assert set(result.positives.rounds.tolist()) >= {0}
    chosen = {event.data["sample"] for event in events if event.line == 10}
    rewarded = ~result.positives.rewards.isnan()
    assert bool(rewarded.any())
    assert set(result.positives.indices[rewarded].tolist()) <= chosen


def test_remembering_needs_the_same_label() -> None:
    round = make_round()
    before = dataclasses.replace(round.positives_at(torch.tensor([3, 4])), rewards=torch.tensor([1.0, -1.0]))
    now = dataclasses.replace(round.positives_at(torch.tensor([4, 3, 5])), rounds=torch.tensor([7, 7, 7]))
    now = dataclasses.replace(now, labels=torch.tensor([int(now.labels[0]), (int(now.labels[1]) + 1) % K, 0]))
    remembered = now.remembering(before)
    assert remembered.rounds.tolist() == [0, 7, 7]
    assert remembered.rewards[0] == -1.0
    assert bool(remembered.rewards[1:].isnan().all())
