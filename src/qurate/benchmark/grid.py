"""The grid: scenario x shots x method x selector x seed, generated from a few words and never stored."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from qurate.benchmark.cells import Cell
from qurate.benchmark.demo import digits_config
from qurate.config import MethodConfig, NetworkConfig, RunConfig, TrainingConfig
from qurate.data.catalog import Protocol, Suite, check_scenario
from qurate.errors import QurateError
from qurate.methods import METHODS
from qurate.model_selection import RULES
from qurate.presets import POSITIVE_SHARE, with_preset
from qurate.report.benchmark.titles import SELECTORS

PRESETS = {"dqn": "qurate", "dqn_paper": "paper"}
"""Selectors of the grid that are the agent, and the preset each stands for."""


class BenchmarkError(QurateError, ValueError):
    """A benchmark that cannot be run as asked; the message says what is allowed."""


@dataclass(frozen=True)
class Grid:
    """What a benchmark compares.

    Args:
        suite: Domains and scenarios.
        data: Folder of its images; None for a generated suite.
        scenarios: Pairs 'source:target'; all of the suite if empty.
        methods: Names in the registry, or 'all', each with every selector; 'tml+dqn' is that pair alone.
        selectors: Names of `titles.SELECTORS`.
        shots: Labelled target samples of each class.
        seeds: Of the runs.
        backbone: That embeds the images (train='head') or is trained; the suite's if empty.
        weights: Its weights: 'pretrained', 'offline' or a file.
        train: 'head' on embeddings of the frozen backbone, or 'full'.
        protocol: How the target is split.
        rules: Rules of model selection.
        steps: Training steps before selection; 0 for the suite's. Rounds become shorter in proportion.
        device: Where to train.

    Raises:
        BenchmarkError: If a name is none of those allowed.
    """

    suite: Suite
    data: Path | None = None
    scenarios: tuple[str, ...] = ()
    methods: tuple[str, ...] = ("all",)
    selectors: tuple[str, ...] = ("none",)
    shots: tuple[int, ...] = (3,)
    seeds: tuple[int, ...] = (0,)
    backbone: str = ""
    weights: str = "pretrained"
    train: Literal["head", "full"] = "head"
    protocol: Protocol = "mme"
    rules: tuple[str, ...] = ("last",)
    steps: int = 0
    device: str = "auto"

    def __post_init__(self) -> None:
        suite = self.suite
        for argument, values, allowed in (
            ("selectors", [*self.selectors, *(selector for _, selector in self.pairs())], SELECTORS),
            ("methods", [method for method, _ in self.pairs()], tuple(METHODS)),
            ("model-selection", self.rules, RULES),
            ("train", (self.train,), ("head", "full")),
            ("protocol", (self.protocol,), suite.protocols),
        ):
            _check_names(argument, values, allowed)
        for scenario in self.scenarios:
            check_scenario(suite, scenario)
        if self.data is None and not suite.generated:
            raise BenchmarkError(f"data must be the folder of {suite.title}, got none. Pass --data DIR.")
        for argument, numbers, least in (("shots", self.shots, 1), ("seeds", self.seeds, 0)):
            if not numbers or min(numbers) < least:
                raise BenchmarkError(f"{argument} must be integers of at least {least}, got {list(numbers)}.")
        if self.protocol != "drawn" and (other := set(self.shots) - {1, 3}):
            raise BenchmarkError(
                f"shots must be 1 or 3 under protocol '{self.protocol}', for which lists were published; got "
                f"{sorted(other)}. Use --protocol drawn."
            )

    def pairs(self) -> list[tuple[str, str]]:
        """Methods and selectors that go together, each pair once, in the order of the registries."""
        found = []
        for word in self.methods:
            method, plus, selector = word.partition("+")
            methods = tuple(METHODS) if method == "all" else (method,)
            found += [(name, one) for name in methods for one in ([selector] if plus else self.selectors)]
        names, selectors = [method for method, _ in found], [selector for _, selector in found]
        return [
            (method, selector)
            for method in _ordered(names, tuple(METHODS))
            for selector in _ordered(selectors, SELECTORS)
            if (method, selector) in found
        ]

    def cells(self) -> list[Cell]:
        """All cells, in the order of the suite's scenarios and of the registries, however they were named."""
        weights = "none" if self.suite.generated else describe_weights(self.weights)
        backbone = self.backbone or self.suite.backbone
        return [
            Cell(
                suite=self.suite.name,
                scenario=scenario,
                shots=shots,
                protocol=self.protocol,
                selector=selector,
                rules=tuple(rule for rule in RULES if rule in self.rules),
                backbone=backbone,
                weights=weights,
                config=self.run_config(method, selector, seed, backbone, weights),
            )
            for scenario in _ordered(self.scenarios, self.suite.scenarios)
            for shots in sorted(set(self.shots))
            for method in dict.fromkeys(method for method, _ in self.pairs())
            for seed in sorted(set(self.seeds))
            for selector in (selector for of, selector in self.pairs() if of == method)
        ]

    def run_config(self, method: str, selector: str, seed: int, backbone: str, weights: str) -> RunConfig:
        """The run of one cell: the suite's defaults, the preset of the selector, as many steps as asked for."""
        steps = self.steps or self.suite.steps or TrainingConfig.steps
        if self.suite.generated:
            config = digits_config(method, seed=seed, steps=steps)
            rounds, shorter = config.selection.rounds, 1.0
        else:
            network = NetworkConfig(bottleneck="normalized")
            if self.train == "full":
                own = backbone == self.suite.backbone
                bottleneck = self.suite.bottleneck if own else "linear"
                network = NetworkConfig(backbone=backbone, weights=weights, bottleneck=bottleneck)
            config = RunConfig(network, MethodConfig(name=method), TrainingConfig(steps=steps), seed=seed)
            rounds, shorter = 0, steps / TrainingConfig.steps
        config = replace(config, training=replace(config.training, device=self.device))
        if selector in PRESETS:
            round_steps = config.selection.round_steps
            config = with_preset(config, PRESETS[selector])
            if self.suite.generated:
                config = replace(config, selection=replace(config.selection, rounds=rounds, round_steps=round_steps))
        else:
            config = replace(config, selection=replace(config.selection, selector=selector))
        if selector not in ("none", "dqn_paper"):  # what selectors are compared on is the choice, not the batches
            config = replace(config, training=replace(config.training, positive_share=POSITIVE_SHARE))
        round_steps = max(1, round(config.selection.round_steps * shorter))
        return replace(config, selection=replace(config.selection, round_steps=round_steps))


def describe_weights(weights: str) -> str:
    """What weights are, wherever the file lies: its name and the beginning of its hash."""
    path = Path(weights)
    if not path.is_file():
        return weights
    with path.open("rb") as file:
        return f"{path.name} sha256:{hashlib.file_digest(file, 'sha256').hexdigest()[:12]}"


def _check_names(argument: str, values: Sequence[str], allowed: Sequence[str]) -> None:
    strange = [value for value in values if value not in allowed]
    if strange or not values:
        got = f"'{strange[0]}'" if strange else "none"
        raise BenchmarkError(f"{argument} must be of {', '.join(allowed)}; got {got}.")


def _ordered(chosen: Sequence[str], order: Sequence[str]) -> list[str]:
    """The chosen ones, each once, in a given order; all if none is chosen, and what is not in the order at the end."""
    names = list(dict.fromkeys(chosen or order))
    return sorted(names, key=lambda name: order.index(name) if name in order else len(order))
