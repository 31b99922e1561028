"""Each method on the embedded pair, from random weights."""

from __future__ import annotations

import dataclasses

import pytest

from qurate.benchmark.grid import DIGITS
from qurate.config import MethodConfig, NetworkConfig
from qurate.data.digits import digits_split
from qurate.data.samples import Split
from qurate.evaluation import evaluate
from qurate.methods import METHODS
from qurate.presets import make_config
from qurate.selection.algorithm import fit


@pytest.fixture(scope="module")
def split() -> Split:
    return digits_split(shots=3, seed=0)


@pytest.mark.parametrize("name", METHODS)
def test_every_method_beats_chance_clearly(name: str, split: Split) -> None:
    method = fit(split, make_config(name, "none", network=DIGITS, steps=120)).method
    metrics = evaluate(method, split.target_unlabeled)
    assert metrics.accuracy > 0.65  # chance is 0.1
    assert metrics.per_class.min() > 0.1


@pytest.mark.parametrize(("monotone", "low", "high"), [(True, 0.7, 1.0), (False, 0.0, 0.45)])
def test_tml_collapses_from_random_weights_without_the_monotone_continuation(
    split: Split, monotone: bool, low: float, high: float
) -> None:
    """Decision 11: as printed, features end opposite their class weight, where the slope has the wrong sign."""
    config = make_config("tml", "none", steps=250)
    config = dataclasses.replace(
        config,
        network=NetworkConfig(backbone="digits", bottleneck="linear", features=64),
        method=MethodConfig.of("tml", monotone=monotone),
        training=dataclasses.replace(config.training, learning_rate=0.006),
    )
    assert low <= evaluate(fit(split, config).method, split.target_unlabeled).accuracy <= high
