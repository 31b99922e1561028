from __future__ import annotations

import dataclasses

import pytest

from qurate.config import (
    EpisodeConfig,
    MethodConfig,
    NetworkConfig,
    QLearningConfig,
    RewardConfig,
    RunConfig,
    SelectionConfig,
    TrainingConfig,
    fingerprint,
)


def test_the_papers_numbers_are_the_defaults() -> None:
    assert NetworkConfig().scale == 30
    assert (MethodConfig().margin, MethodConfig().entropy_weight) == (0.5, 0.1)
    training = TrainingConfig()
    assert (training.batch_source, training.batch_target, training.batch_unlabeled) == (24, 24, 48)
    assert (training.learning_rate, training.backbone_learning_rate) == (0.01, 0.001)
    assert (training.momentum, training.weight_decay) == (0.9, 0.0005)
    assert (training.decay_rate, training.decay_power) == (1e-4, 0.75)


def test_a_fingerprint_names_a_config() -> None:
    assert fingerprint(RunConfig()) == fingerprint(RunConfig())
    names = {fingerprint(RunConfig(seed=seed)) for seed in range(5)}
    names.add(fingerprint(RunConfig(method=MethodConfig(margin=0.4))))
    assert len(names) == 6


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: MethodConfig(margin=2.0), r"MethodConfig.margin must be an angle in \[0, pi / 2\], got 2.0"),
        (lambda: NetworkConfig(scale=0.0), "NetworkConfig.scale must be positive, got 0.0"),
        (lambda: TrainingConfig(steps=0), "TrainingConfig.steps must be positive, got 0"),
        (lambda: TrainingConfig(batch_target=1, positive_share=0.5), "TrainingConfig.batch_target must be 2 or more"),
        (lambda: TrainingConfig(workers=-1), "TrainingConfig.workers must be 0 or more, got -1"),
    ],
)
def test_a_wrong_number_says_whose_and_what_is_allowed(build: object, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        build()  # type: ignore[operator]  # a parametrised lambda


def test_every_number_says_where_it_comes_from() -> None:
    """The docstring below each field names the paper, the reference code, a method's authors, or us."""
    import inspect

    for kind in (
        *(NetworkConfig, MethodConfig, TrainingConfig),
        *(RewardConfig, EpisodeConfig, QLearningConfig, SelectionConfig),
    ):
        source = inspect.getsource(kind)
        for field in dataclasses.fields(kind):
            if isinstance(field.default, float | int) and not isinstance(field.default, bool):
                after = source.split(f"\n    {field.name}: ")[1].split('"""')[1]
                assert any(word in after for word in ("Paper", "paper", "ur choice", "authors", "0 chooses", "See ")), (
                    field.name
                )
