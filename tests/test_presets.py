"""A few words become a run."""

from __future__ import annotations

import itertools
import math

import pytest

from qurate.config import DQNConfig, NetworkConfig, RewardConfig, RunConfig, SelectorConfig, TrainingConfig
from qurate.errors import ConfigError
from qurate.presets import POSITIVE_SHARE, agent_selection, make_config
from qurate.registry import METHODS, SELECTORS, goes_with


@pytest.mark.parametrize(
    ("method", "selector"), [pair for pair in itertools.product(METHODS, SELECTORS) if goes_with(*pair)]
)
def test_any_method_goes_with_any_selector(method: str, selector: str) -> None:
    config = make_config(method, selector, seed=3)
    assert (config.method.name, config.selection.selector.name, config.seed) == (method, selector, 3)
    assert config.network == NetworkConfig(bottleneck="normalized")
    assert config.training == TrainingConfig(positive_share=POSITIVE_SHARE)
    if selector != "dqn":
        assert config.selection.selector == SelectorConfig.of(selector)


@pytest.mark.parametrize(
    ("word", "pair"),
    [
        ("TML_SPL", ("tml", "confidence")),
        ("tml_dqnpl", ("tml", "dqn")),
        ("S+T", ("source_target", "adaptive")),  # no pair: the default, as with any method
        ("Mme+quality", ("mme", "quality")),
        ("tml", ("tml", "adaptive")),
    ],
)
def test_names_that_tables_print_are_understood(word: str, pair: tuple[str, str]) -> None:
    config = make_config(word)
    assert (config.method.name, config.selection.selector.name) == pair


def test_a_selector_named_twice_may_be_the_same() -> None:
    assert make_config("TML_SPL", "confidence") == make_config("TML_SPL") == make_config("tml", "confidence")
    assert make_config("TML_SPL", "Confidence") == make_config("TML_SPL")


def test_numbers_that_are_given_replace_the_presets_and_no_others() -> None:
    network = NetworkConfig(backbone="digits", features=64)
    plain = make_config("tml", "dqn")
    config = make_config(
        "tml", "dqn", network=network, steps=7, rounds=2, round_steps=5, learning_rate=0.5, device="cpu"
    )
    assert config.network == network
    assert (config.training.steps, config.training.learning_rate, config.execution.device) == (7, 0.5, "cpu")
    assert (config.selection.rounds, config.selection.round_steps) == (2, 5)
    assert config.selection.selector == plain.selection.selector
    assert config.selection.reward == plain.selection.reward


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"method": "tmle"}, "method must be one of .* got 'tmle'. Did you mean 'tml'?"),
        ({"selector": "dnq"}, "selector must be one of .* got 'dnq'. Did you mean 'dqn'?"),
        ({"selector": "oracle"}, "selector must be one of .* got 'oracle'"),
        ({"preset": "papre"}, "preset must be one of qurate, paper, got 'papre'. Did you mean 'paper'?"),
        (
            {"method": "TML_SPL", "selector": "dqn"},
            "'TML_SPL' means selector 'confidence', but selector is 'dqn'",
        ),
        ({"selector": "random", "preset": "paper"}, "preset 'paper' sets up selector 'dqn' or 'confidence', got"),
        ({"steps": 0}, "TrainingConfig.steps must be positive, got 0"),
        ({"rounds": 1.5}, "SelectionConfig.rounds must be an integer, got 1.5"),
        ({"seed": -1}, "RunConfig.seed must be between 0 and 4294967295, got -1"),
        ({"device": "gpu"}, "ExecutionConfig.device must be one of 'auto', 'cpu', 'cuda', 'mps', got 'gpu'"),
    ],
)
def test_a_word_or_number_that_is_not_allowed_says_what_is(arguments: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        make_config(**arguments)  # type: ignore[arg-type]  # wrong on purpose


def test_the_paper_preset_is_the_printed_algorithm() -> None:
    config = make_config("TML_DQNPL", preset="paper")
    selection = config.selection
    reward = selection.reward
    assert (reward.network, reward.center, reward.threshold) == ("trial", "centers", "fixed")
    assert reward.tau == pytest.approx(2 * math.log(0.9))
    assert isinstance(selection.selector, DQNConfig)
    episode, learning = selection.selector.episode, selection.selector.q_learning
    assert (episode.agent, episode.state_network) == ("flat", "trial")
    assert (episode.trial_steps, episode.entropy_samples) == (0, 0)
    assert (episode.keep_rejected, episode.harvest, episode.repeat_episodes) == (True, "none", False)
    assert (learning.optimizer, learning.hidden, learning.discount) == ("sgd", (1024, 512), 0.9)
    assert (config.training.positive_share, config.training.schedule) == (None, "progress")


def test_the_confidence_of_the_paper_draws_from_labels_and_positives_as_one_set() -> None:
    ours, printed = make_config("TML_SPL"), make_config("TML_SPL", preset="paper")
    assert (ours.training.positive_share, printed.training.positive_share) == (0.5, None)
    assert printed.selection == ours.selection


def test_the_presets_are_two_and_ours_is_the_default() -> None:
    assert make_config("TML_DQNPL").selection == agent_selection("qurate") != agent_selection("paper")
    assert make_config(preset="paper").selection == agent_selection("paper")


def test_the_default_rule_measures_quality_as_our_agent_does() -> None:
    assert make_config().selection.reward == agent_selection("qurate").reward
    assert make_config("tml", "balanced").selection.reward == RewardConfig()


def test_a_run_of_no_words_is_tml_alone() -> None:
    assert RunConfig().method == make_config("tml", "none").method
    assert RunConfig().selection == make_config("tml", "none").selection


def test_preset_paper_has_the_agent_unless_told_otherwise() -> None:
    assert make_config(preset="paper") == make_config("tml", "dqn", preset="paper")
    assert make_config("TML_SPL", preset="paper").selection.selector.name == "confidence"
