"""The embedded example: four methods from typeset to handwritten digits."""

from __future__ import annotations

import time
from collections.abc import Iterator

from qurate.benchmark.results import Row
from qurate.config import MethodConfig, NetworkConfig, RunConfig, TrainingConfig
from qurate.data.digits import digits_split
from qurate.data.samples import Split
from qurate.evaluation import evaluate
from qurate.training import OnStep, fit

SCENARIO = "typeset to handwritten"
SHOTS = 3
METHODS = ("source_target", "ent", "mme", "tml")


def digits_config(method: str, *, seed: int, steps: int = 400) -> RunConfig:
    """A run on the digits pair: the small CNN from random weights with the normalized bottleneck."""
    return RunConfig(
        network=NetworkConfig(backbone="digits", bottleneck="normalized", features=64),
        method=MethodConfig(name=method),
        training=TrainingConfig(steps=steps),
        seed=seed,
    )


def run_demo(*, seed: int, on_step: OnStep | None = None) -> Iterator[Row]:
    """Train each method on the same split and yield its row as it is done."""
    split = digits_split(shots=SHOTS, seed=seed)
    for method in METHODS:
        yield run_method(split, digits_config(method, seed=seed), on_step=on_step)


def run_method(split: Split, config: RunConfig, *, on_step: OnStep | None = None) -> Row:
    """Train one method and measure it on the sealed labels of D_u."""
    start = time.perf_counter()
    method = fit(split, config, on_step=on_step)
    seconds = time.perf_counter() - start
    metrics = evaluate(method, split.target_unlabeled)
    return Row(
        scenario=SCENARIO,
        method=config.method.name,
        selector="none",
        shots=SHOTS,
        seed=config.seed,
        accuracy=metrics.accuracy,
        balanced_accuracy=metrics.balanced_accuracy,
        positives=None,
        positives_accuracy=None,
        seconds=seconds,
    )
