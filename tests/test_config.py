"""Configs are checked when they are made, name themselves, and can be read back."""

from __future__ import annotations

import dataclasses
import inspect
import itertools
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from qurate.config import (
    EXECUTION_FIELDS,
    DQNConfig,
    EpisodeConfig,
    ExecutionConfig,
    MethodConfig,
    NetworkConfig,
    QLearningConfig,
    RewardConfig,
    RunConfig,
    SelectionConfig,
    SelectorConfig,
    ShareConfig,
    TrainingConfig,
    fingerprint,
    fingerprint_fields,
    to_dict,
)
from qurate.errors import ConfigError
from qurate.methods.tml import TargetMarginConfig
from qurate.presets import PRESETS, make_config
from qurate.registry import METHODS, SELECTORS, goes_with
from qurate.selection.selectors import BalancedConfig, ConfidenceConfig


def test_the_papers_numbers_are_the_defaults() -> None:
    assert NetworkConfig().scale == 30
    assert (TargetMarginConfig().margin, TargetMarginConfig().entropy_weight) == (0.5, 0.1)
    training = TrainingConfig()
    assert (training.batch_source, training.batch_target, training.batch_unlabeled) == (24, 24, 48)
    assert (training.learning_rate, training.backbone_learning_rate) == (0.01, 0.001)
    assert (training.momentum, training.weight_decay) == (0.9, 0.0005)
    assert (training.progress_decay_rate, training.decay_power) == (10, 0.75)


def test_a_fingerprint_names_a_config() -> None:
    assert fingerprint(RunConfig()) == fingerprint(RunConfig())
    names = {fingerprint(RunConfig(seed=seed)) for seed in range(5)}
    names.add(fingerprint(RunConfig(method=MethodConfig.of("tml", margin=0.4))))
    assert len(names) == 6


def test_equal_numbers_of_other_types_are_the_same_config() -> None:
    given: dict[str, Any] = {"features": np.int64(512), "scale": 30}
    seed: Any = np.int32(0)
    numbers = RunConfig(NetworkConfig(**given), seed=seed)
    assert fingerprint(numbers) == fingerprint(RunConfig())
    assert type(numbers.network.scale) is float
    assert fingerprint(TrainingConfig(positive_share=np.float64(0.5))) == fingerprint(
        TrainingConfig(positive_share=0.5)
    )


@pytest.mark.parametrize(
    ("kind", "numbers", "message"),
    [
        (
            TargetMarginConfig,
            {"margin": 2.0},
            "TargetMarginConfig.margin must be an angle in [0, pi / 2], got 2.0.",
        ),
        (NetworkConfig, {"scale": 0.0}, "NetworkConfig.scale must be between 0.01 and 10000, got 0.0."),
        (NetworkConfig, {"scale": float("nan")}, "NetworkConfig.scale must be a finite number, got nan."),
        (NetworkConfig, {"features": True}, "NetworkConfig.features must be an integer, got True."),
        (NetworkConfig, {"backbone": None}, "NetworkConfig.backbone must be text, got None."),
        (TrainingConfig, {"steps": 10**7}, "TrainingConfig.steps must be at most 1000000, got 10000000."),
        (NetworkConfig, {"features": 10**9}, "NetworkConfig.features must be at most 65536, got 1000000000."),
        (
            TrainingConfig,
            {"momentum": 10**400},
            f"TrainingConfig.momentum must be a finite number, got 1{'0' * 199}....",
        ),
        (RunConfig, {"seed": 10**5000}, "RunConfig.seed must be between 0 and 4294967295, got a very large number."),
        (TrainingConfig, {"steps": 0}, "TrainingConfig.steps must be positive, got 0."),
        (TrainingConfig, {"steps": "many"}, "TrainingConfig.steps must be an integer, got 'many'."),
        (TrainingConfig, {"steps": 1.5}, "TrainingConfig.steps must be an integer, got 1.5."),
        (TrainingConfig, {"momentum": 1.0}, "TrainingConfig.momentum must be in [0, 1), got 1.0."),
        (ExecutionConfig, {"workers": -1}, "ExecutionConfig.workers must be 0 or more, got -1."),
        (
            TrainingConfig,
            {"positive_share": 0.0},
            "TrainingConfig.positive_share must be in (0, 1) or nothing, got 0.0.",
        ),
        (
            TrainingConfig,
            {"batch_target": 1, "positive_share": 0.5},
            "TrainingConfig.batch_target must be 2 or more, or positive_share None, got 1.",
        ),
        (
            RewardConfig,
            {"network": "round", "center": "neighbours"},
            "RewardConfig.center must be one of 'centers', 'neighbors', got 'neighbours'.",
        ),
        (
            RewardConfig,
            {"center": "neighbors"},
            "RewardConfig.network must be 'round' when center is 'neighbors', got 'trial'.",
        ),
        (
            NetworkConfig,
            {"bottleneck": "Linear"},
            "NetworkConfig.bottleneck must be one of 'none', 'linear', 'normalized', got 'Linear'.",
        ),
        (EpisodeConfig, {"harvest": 1}, "EpisodeConfig.harvest must be one of 'none', 'equal', 'adaptive', got 1."),
        (QLearningConfig, {"hidden": ()}, "QLearningConfig.hidden must be one or more positive widths, got ()."),
        (
            QLearningConfig,
            {"hidden": (8, 0)},
            "QLearningConfig.hidden must be a tuple in which each is positive, got (8, 0).",
        ),
        (QLearningConfig, {"hidden": 8}, "QLearningConfig.hidden must be a tuple, got 8."),
        (
            BalancedConfig,
            {"share_start": 0.9, "share_end": 0.1},
            "BalancedConfig.share_start, share_end must be start <= end, got (0.9, 0.1).",
        ),
        (
            DQNConfig,
            {"episode": EpisodeConfig(harvest="equal")},
            "EpisodeConfig.agent must be 'relational' when harvest is on (a flat agent cannot score all of D_u), "
            "got 'flat'.",
        ),
        (RunConfig, {"network": "digits"}, "RunConfig.network must be NetworkConfig, got 'digits'."),
        (SelectionConfig, {"selector": "dqn"}, "SelectionConfig.selector must be SelectorConfig, got 'dqn'."),
        (RunConfig, {"seed": 2**32}, "RunConfig.seed must be between 0 and 4294967295, got 4294967296."),
        (
            MethodConfig,
            {},
            "MethodConfig is abstract. Use MethodConfig.of('tml') or a subclass.",
        ),
        (
            SelectorConfig,
            {},
            "SelectorConfig is abstract. Use SelectorConfig.of('dqn') or a subclass.",
        ),
    ],
)
def test_a_wrong_value_says_whose_what_is_allowed_and_what_came(
    kind: Any, numbers: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        kind(**numbers)
    assert str(caught.value) == message


def test_every_number_says_where_it_comes_from() -> None:
    """The docstring below each field names the paper, the reference code, a method's authors, or us."""
    for kind in (
        NetworkConfig,
        TrainingConfig,
        RewardConfig,
        EpisodeConfig,
        QLearningConfig,
        ShareConfig,
        SelectionConfig,
    ):
        source = inspect.getsource(kind)
        for field in dataclasses.fields(kind):
            if isinstance(field.default, float | int) and not isinstance(field.default, bool):
                after = source.split(f"\n    {field.name}: ")[1].split('"""')[1]
                assert any(word in after for word in ("Paper", "paper", "ur choice", "authors", "0 chooses", "See ")), (
                    field.name
                )


@pytest.mark.parametrize(
    ("field", "whose", "not_whose"),
    [("decay_rate", "MME reference code", "Ganin"), ("progress_decay_rate", "Ganin 2016", "MME")],
)
def test_each_learning_rate_schedule_is_named_after_whose_it_is(field: str, whose: str, not_whose: str) -> None:
    said = inspect.getsource(TrainingConfig).split(f"\n    {field}: ")[1].split('"""')[1]
    assert whose in said
    assert not_whose not in said


@pytest.mark.parametrize(
    ("method", "selector"), [pair for pair in itertools.product(METHODS, SELECTORS) if goes_with(*pair)]
)
def test_every_run_can_be_read_back(method: str, selector: str) -> None:
    for preset in PRESETS if selector == "dqn" else PRESETS[:1]:
        config = make_config(method, selector, preset=preset, seed=5)
        assert RunConfig.from_dict(to_dict(config)) == config
        again = RunConfig.from_dict(json.loads(json.dumps(to_dict(config))))
        assert again == config
        assert fingerprint(again) == fingerprint(config)


@given(
    margin=st.floats(0, 1.57),
    share=st.none() | st.floats(0.01, 0.99),
    hidden=st.lists(st.integers(1, 999), min_size=1, max_size=3),
    seed=st.integers(0, 2**32 - 1),
)
def test_any_numbers_can_be_read_back(margin: float, share: float | None, hidden: list[int], seed: int) -> None:
    config = RunConfig(
        method=MethodConfig.of("tml", margin=margin),
        training=TrainingConfig(positive_share=share),
        selection=SelectionConfig(selector=DQNConfig(q_learning=QLearningConfig(hidden=tuple(hidden)))),
        seed=seed,
    )
    assert RunConfig.from_dict(json.loads(json.dumps(to_dict(config)))) == config


def test_what_is_left_out_has_its_default() -> None:
    assert RunConfig.from_dict({}) == RunConfig()
    chosen = {"selector": {"name": "confidence"}, "rounds": 3}
    assert RunConfig.from_dict({"selection": chosen}).selection == SelectionConfig(ConfidenceConfig(), rounds=3)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ({"netwrok": {}}, "RunConfig has no 'netwrok'. Did you mean 'network'? Known: network, method, training"),
        ({"training": {"step": 3}}, "TrainingConfig has no 'step'. Did you mean 'steps'?"),
        ({"training": {"colour": 3}}, "TrainingConfig has no 'colour'. Known: steps"),
        ({"training": [3]}, "TrainingConfig must be a table of steps, .*, got \\[3\\]"),
        ({"method": {"name": "tml", "margn": 0.3}}, "TargetMarginConfig has no 'margn'. Did you mean 'margin'?"),
        ({"method": {"name": "mme", "margin": 0.3}}, "MinimaxEntropyConfig has no 'margin'"),
        ({"method": {"name": "tlm"}}, "method must be one of .*, got 'tlm'. Did you mean 'tml'?"),
        ({"method": "tml"}, "MethodConfig must be a table with a name .*, got 'tml'"),
        ({"method": {"margin": 0.3}}, "MethodConfig must be a table with a name .*, got {'margin': 0.3}"),
        ({"selection": {"selector": {"name": "dnq"}}}, "selector must be one of .*, got 'dnq'. Did you mean 'dqn'?"),
        (
            {"selection": {"selector": {"name": "dqn"}, "roundz": 3}},
            "SelectionConfig has no 'roundz'. Did you mean 'rounds'?",
        ),
        (
            {"method": {"name": "tml", "margn": 1}, "selection": {"selector": {"name": "dqn"}}},
            "TargetMarginConfig has no 'margn'. Did you mean 'margin'?",
        ),
    ],
)
def test_a_wrong_key_names_the_nearest_known_one(data: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message.replace("?", "\\?")):
        RunConfig.from_dict(data)


TOML = """
seed = 4
[network]
bottleneck = "normalized"
scale = 20
[method]
name = "TML"
margin = 0.3
[selection]
rounds = 5
[selection.selector]
name = "dqn"
episode = {candidates = 7}
q_learning = {hidden = [32, 16]}
"""


def test_a_run_is_read_from_toml_and_json_and_from_a_run_folder(tmp_path: Path) -> None:
    expected = RunConfig(
        NetworkConfig(bottleneck="normalized", scale=20.0),
        MethodConfig.of("tml", margin=0.3),
        selection=SelectionConfig(
            DQNConfig(episode=EpisodeConfig(candidates=7), q_learning=QLearningConfig(hidden=(32, 16))), rounds=5
        ),
        seed=4,
    )
    files = {
        "run.toml": TOML,
        "run.json": json.dumps(to_dict(expected)),
        "config.json": json.dumps({"qurate": "0.2.0", "backbone": "timm/x", "run": to_dict(expected)}),
    }
    for name, text in files.items():
        (tmp_path / name).write_text(text)
        assert RunConfig.from_file(tmp_path / name) == expected, name
        assert fingerprint(RunConfig.from_file(str(tmp_path / name))) == fingerprint(expected)


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("a.toml", "seed = ", "a.toml: cannot be read as a JSON or TOML file"),
        ("a.json", "{", "a.json: cannot be read as a JSON or TOML file"),
        ("a.json", "[1]", "a.json: must hold a table of settings, got list"),
        ("a.toml", "sed = 1", "a.toml: RunConfig has no 'sed'. Did you mean 'seed'?"),
        ("a.toml", "seed = -1", "a.toml: RunConfig.seed must be between 0 and 4294967295, got -1"),
    ],
)
def test_a_file_that_is_wrong_is_named(name: str, text: str, message: str, tmp_path: Path) -> None:
    (tmp_path / name).write_text(text)
    with pytest.raises(ConfigError, match=message.replace("?", "\\?")):
        RunConfig.from_file(tmp_path / name)


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"nowhere.toml: cannot be read"):
        RunConfig.from_file(tmp_path / "nowhere.toml")


def test_the_settings_of_a_run_by_another_version_are_refused_with_what_to_do(tmp_path: Path) -> None:
    run = {"selection": {"selector": {"name": "adaptive", "lopsided_from": 0.3}}}
    (tmp_path / "config.json").write_text(json.dumps({"qurate": "0.2", "run": run}))
    with pytest.raises(ConfigError, match=r"has no 'lopsided_from'.*start a new run from the images"):
        RunConfig.from_file(tmp_path / "config.json")


@pytest.mark.parametrize("name", EXECUTION_FIELDS)
def test_a_field_of_execution_in_the_table_of_training_says_where_it_belongs(name: str) -> None:
    message = rf"TrainingConfig has no '{name}'\. It is a field of ExecutionConfig, table \[execution\]\."
    with pytest.raises(ConfigError, match=message):
        RunConfig.from_dict({"training": {name: 1}})


def test_what_affects_execution_alone_is_no_part_of_a_fingerprint() -> None:
    run = make_config("TML_SPL")
    execution = ExecutionConfig(
        "cpu",
        2,
        3,
        "ddp",
        workers=4,
        threads=5,
        activation_checkpointing=True,
        checkpoint_steps=6,
        checkpoint_minutes=7,
    )
    other = dataclasses.replace(run, execution=execution)
    assert all(getattr(other.execution, name) != getattr(run.execution, name) for name in EXECUTION_FIELDS)
    assert fingerprint_fields(other) == fingerprint_fields(run)
    for changed in ({"micro_batch": 8}, {"frozen_norms": True}, {"precision": "bf16-mixed"}, {"steps": 7}):
        trained = dataclasses.replace(run, training=dataclasses.replace(run.training, **changed))
        assert fingerprint_fields(trained) != fingerprint_fields(run)
