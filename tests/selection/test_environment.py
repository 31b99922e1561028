"""The selection problem as a Gymnasium environment."""

from __future__ import annotations

import dataclasses
import math
from typing import Literal

import numpy as np
import pytest
import torch
from gymnasium.utils.env_checker import check_env
from tests.selection.problem import K, make_round

from qurate.config import EpisodeConfig, RewardConfig
from qurate.methods import Method
from qurate.selection.environment import SelectionEnv, draw_candidates, relations_of_all
from qurate.selection.pseudo_labels import Round, view
from qurate.selection.reward import ClassSums
from qurate.selection.state import build_state, state_size


def weights(method: Method) -> torch.Tensor:
    return torch.cat([value.flatten().double() for value in method.state_dict().values()])


@pytest.mark.parametrize(
    "episode",
    [
        EpisodeConfig(candidates=5, actions=9),
        EpisodeConfig(candidates=5, actions=9, state_features=3, trial_steps=2, entropy_samples=20),
        EpisodeConfig(candidates=5, actions=9, agent="relational", state_network="frozen", trial_steps=1),
    ],
)
@pytest.mark.filterwarnings("ignore::UserWarning")  # the checker remarks on unbounded observations
def test_gymnasiums_contract_holds(episode: EpisodeConfig) -> None:
    env = SelectionEnv(make_round(), episode, seed=0)
    check_env(_OnlyLegal(env), skip_render_check=True)


class _OnlyLegal(SelectionEnv):
    """The checker samples any action; take the first legal one in place of an illegal one."""

    def __init__(self, env: SelectionEnv) -> None:
        self.__dict__.update(env.__dict__)

    def step(self, action: np.int64) -> tuple[np.ndarray, float, bool, bool, dict[str, object]]:
        legal = np.flatnonzero(self._mask())
        return super().step(action if action in legal else legal[0])


@pytest.mark.parametrize("state_network", ["trial", "frozen"])
def test_states_kept_up_to_date_equal_states_made_anew(state_network: Literal["trial", "frozen"]) -> None:
    round = make_round()
    started = round.positives_at(torch.arange(0, 80, 2)).relabeled(torch.arange(80) % K)  # some will be offered again
    episode = EpisodeConfig(
        candidates=6, state_network=state_network, harvest="adaptive", trial_steps=2, keep_rejected=False
    )
    env = SelectionEnv(round, episode, seed=0)
    positives, again = started, False
    for _ in range(6):
        env.reset(options={"positives": positives})
        for slot in range(6):
            again |= int(env.candidates[slot]) in env.positives.indices
            observation, gain, terminated, _, _ = env.step(np.int64(slot))
            network = (round.trainer if state_network == "frozen" else env.trial).method.network
            target, unlabeled = view(network, round.data.target.inputs), view(network, round.data.unlabeled)
            if gain > 0:  # a rejected one has left D_p after the state was built
                labels = torch.cat([round.data.target.labels, env.positives.labels])
                rows = torch.cat([target.rows, unlabeled.rows[env.positives.indices]])
                expected = build_state(
                    unlabeled.rows[env.candidates],
                    env.spent,
                    ClassSums.of(rows, labels, K),
                    ClassSums.of(unlabeled.rows, round.pseudo_labels, K),
                )
                torch.testing.assert_close(torch.from_numpy(observation), expected.flat(), rtol=1e-4, atol=1e-5)
            if terminated:
                break
        positives = env.positives
    assert again


def test_the_first_state_is_the_rounds_and_has_its_documented_size() -> None:
    round = make_round()
    env = SelectionEnv(round, EpisodeConfig(candidates=6), seed=0)
    observation, info = env.reset(seed=3)
    assert observation.shape == (state_size(6, 8, K),)
    assert info["action_mask"].tolist() == [1] * 6
    first = round.unlabeled.rows[env.candidates[0]]
    torch.testing.assert_close(torch.from_numpy(observation[: 8 + K]), first)


def test_a_step_moves_the_candidate_trains_the_copy_and_leaves_the_original() -> None:
    round = make_round()
    before = weights(round.trainer.method)
    env = SelectionEnv(round, EpisodeConfig(candidates=6), seed=0)
    env.reset(seed=3)
    observation, gain, _, _, info = env.step(np.int64(2))
    assert torch.equal(weights(round.trainer.method), before)
    assert not torch.equal(weights(env.trial.method), before)
    assert env.trial.step == round.trainer.step + math.ceil(80 / 12)  # one epoch over D_s
    assert env.positives.indices.tolist() == [int(env.candidates[2])]
    assert info["action_mask"].tolist() == [1, 1, 0, 1, 1, 1]
    width = 8 + K
    assert observation[2 * width : 3 * width].tolist() == [0.0] * width
    assert env.positives.rewards.tolist() == [gain]
    assert len(round.positives) == 0


@pytest.mark.parametrize("trial_steps", [1, 5])
def test_a_trial_holds_the_running_statistics_of_its_round(trial_steps: int) -> None:
    round = make_round()
    env = SelectionEnv(round, EpisodeConfig(candidates=4, trial_steps=trial_steps), seed=0)
    for _ in range(2):  # the second episode's trial network is the first one's, set back
        env.reset()
        env.step(np.int64(0))
        env.step(np.int64(1))
        trial, held = env.trial.method.state_dict(), round.trainer.method.state_dict()
        names = [name for name in held if "running" in name]
        assert len(names) == 2
        assert all(torch.equal(trial[name], held[name]) for name in names)
        assert not torch.equal(trial["network.classifier.weight"], held["network.classifier.weight"])
        layer = env.trial.method.get_submodule("network.bottleneck.2")
        assert layer.training  # batches are still normalized by their own statistics


def test_line_20_goes_on_updating_them() -> None:
    round = make_round()
    before = round.trainer.method.state_dict()["network.bottleneck.2.running_mean"].clone()
    env = SelectionEnv(round, EpisodeConfig(candidates=4, trial_steps=1), seed=0)
    env.reset()
    env.step(np.int64(0))
    round.trainer.run(round.data, steps=2, seed=0)
    assert not torch.equal(before, round.trainer.method.state_dict()["network.bottleneck.2.running_mean"])


def test_phi_is_made_of_its_terms_by_the_trial_network() -> None:
    round = make_round()
    env = SelectionEnv(round, EpisodeConfig(candidates=6), seed=0)
    env.reset(seed=3)
    before = view(env.trial.method.network, round.data.unlabeled).probabilities
    _, gain, _, _, info = env.step(np.int64(1))
    i, y = info["sample"], info["label"]
    after = view(env.trial.method.network, round.data.unlabeled)
    target = view(env.trial.method.network, round.data.target.inputs)
    drop = float(
        (before * -before.log()).sum(1).mean() - (after.probabilities * -after.probabilities.log()).sum(1).mean()
    )
    centers = []
    for j in range(K):
        members = [f for f, label in zip(target.features, round.data.target.labels, strict=True) if label == j]
        members += [after.features[i]] if j == y else []
        centers.append(torch.stack(members).mean(0))
    cosines = torch.nn.functional.cosine_similarity(after.features[i], torch.stack(centers))
    center_prob = (30 * cosines).softmax(0)[y]
    assert info["entropy_drop"] == pytest.approx(drop, abs=1e-5)
    assert info["classifier_prob"] == pytest.approx(float(after.probabilities[i, y]), rel=1e-4)
    assert info["center_prob"] == pytest.approx(float(center_prob), rel=1e-4)
    phi = math.log(after.probabilities[i, y]) + math.log(center_prob) + 0.1 * drop
    assert info["phi"] == pytest.approx(phi, abs=1e-4)
    assert gain == (1.0 if phi > 2 * math.log(0.9) else -1.0)


def test_a_spent_candidate_is_no_legal_action() -> None:
    env = SelectionEnv(make_round(), EpisodeConfig(candidates=6, trial_steps=1), seed=0)
    env.reset(seed=3)
    env.step(np.int64(2))
    with pytest.raises(ValueError, match="candidate 2 is spent"):
        env.step(np.int64(2))


def always(sign: float) -> RewardConfig:
    """A threshold that every sample passes (+1), or none (-1)."""
    return RewardConfig(threshold_prob=1e-9 if sign > 0 else 1 - 1e-12, entropy_drop_weight=0.0)


def test_a_negative_reward_is_given_and_whoever_acts_decides_what_follows() -> None:
    env = SelectionEnv(make_round(always(-1), noise=3.0), EpisodeConfig(candidates=6, trial_steps=1), seed=0)
    env.reset()
    assert env.step(np.int64(0))[1:4] == (-1.0, False, False)
    assert len(env.positives) == 1  # as printed, it has entered D_p (decision 5)
    assert env.step(np.int64(1))[1:4] == (-1.0, False, False)


def test_a_rejected_sample_can_be_left_out() -> None:
    episode = EpisodeConfig(candidates=6, trial_steps=1, keep_rejected=False)
    env = SelectionEnv(make_round(always(-1), noise=3.0), episode, seed=0)
    env.reset()
    env.step(np.int64(0))
    assert len(env.positives) == 0


def test_an_empty_candidate_set_terminates() -> None:
    env = SelectionEnv(make_round(always(+1)), EpisodeConfig(candidates=2, trial_steps=1), seed=0)
    env.reset()
    assert env.step(np.int64(0))[1:4] == (1.0, False, False)
    assert env.step(np.int64(1))[1:4] == (1.0, True, False)


def test_candidates_are_not_positives_and_empty_slots_are_spent() -> None:
    round = make_round()
    taken = round.positives_at(torch.arange(76))
    round = dataclasses.replace(round, positives=taken)
    candidates, spent = draw_candidates(round, round.positives, EpisodeConfig(candidates=6), torch.Generator())
    assert spent.tolist() == [False] * 4 + [True] * 2
    assert sorted(candidates[:4].tolist()) == [76, 77, 78, 79]


def test_a_harvest_offers_all_of_d_u_again() -> None:
    round = make_round()
    round = dataclasses.replace(round, positives=round.positives_at(torch.arange(80)))
    episode = EpisodeConfig(candidates=6, harvest="adaptive", agent="relational", trial_steps=1)
    _, spent = draw_candidates(round, round.positives, episode, torch.Generator())
    assert not bool(spent.any())
    env = SelectionEnv(round, episode, seed=0)
    env.reset()
    env.step(np.int64(0))
    assert len(env.positives) == 80  # no sample is in D_p twice


def test_even_candidates_come_from_all_classes() -> None:
    round = make_round()
    imbalanced = torch.zeros(80, dtype=torch.int64)
    imbalanced[:3], imbalanced[3] = 1, 2
    round = dataclasses.replace(round, pseudo_labels=imbalanced)
    candidates, _ = draw_candidates(
        round, round.positives, EpisodeConfig(candidates=9, even_candidates=True), torch.Generator()
    )
    assert torch.bincount(imbalanced[candidates]).tolist() == [5, 3, 1]


def test_relations_are_standardised_over_d_u() -> None:
    rows = relations_of_all(make_round())
    torch.testing.assert_close(rows.mean(dim=0), torch.zeros(9), atol=1e-4, rtol=0)
    torch.testing.assert_close(rows.std(dim=0), torch.ones(9), atol=1e-3, rtol=0)


def test_the_tenth_relation_is_what_neighbours_say_as_far_as_they_are_believed() -> None:
    reward = RewardConfig(network="round", center="neighbors", threshold="class_median", neighbor_trust="assortative")
    round = make_round(reward, noise=1.5)
    without = dataclasses.replace(round, config=dataclasses.replace(reward, neighbor_trust="full"))
    rows = relations_of_all(round)
    assert torch.equal(rows[:, :9], relations_of_all(without))
    believed = [row[round.pseudo_labels[i]].item() for i, row in enumerate(_means_of_neighbors(round))]
    floored = np.array([(each + reward.neighbor_floor) / (1 + reward.neighbor_floor) for each in believed])
    assert 0 < round.neighbor_trust < 1
    expected = round.neighbor_trust * (floored - floored.mean()) / floored.std(ddof=1)
    np.testing.assert_allclose(rows[:, 9], expected, atol=1e-5)
    env = SelectionEnv(round, EpisodeConfig(candidates=7, agent="relational"), seed=0)
    observation, _ = env.reset()
    assert observation.shape == env.observation_space.shape == (7, 10)
    np.testing.assert_allclose(observation, rows[env.candidates], atol=1e-5)


def _means_of_neighbors(round: Round) -> list[torch.Tensor]:
    assert round.neighbors is not None
    labels, found = round.data.target.labels.tolist(), []
    for neighbors in round.neighbors.tolist():
        total = torch.zeros(round.n_classes)
        for each in neighbors:
            if each < len(labels):
                total[labels[each]] += 1
            else:
                total += round.unlabeled.probabilities[each - len(labels)]
        found.append(total / len(neighbors))
    return found
