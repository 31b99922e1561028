"""The grid: scenario x shots x imbalance x method x selector x query strategy x seed, made of a few words."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from qurate.benchmark.asking import NOBODY
from qurate.benchmark.cell import Cell
from qurate.benchmark.results import BenchmarkError
from qurate.config import Device, NetworkConfig, Precision, RunConfig, TrainingConfig
from qurate.data.digits import check_shots
from qurate.data.suites import VALIDATION_SHOTS, Protocol, Suite, check_scenario
from qurate.model_selection import RULES
from qurate.networks.backbone_names import check_trainable
from qurate.networks.backbones import check_backbone
from qurate.presets import Preset, check_preset, make_config
from qurate.registry import (
    LONG,
    METHODS,
    ORACLE,
    PLAIN,
    PRINTED,
    QUERY_STRATEGIES,
    SELECTOR_ORDER,
    SELECTORS,
    resolve_pair,
)
from qurate.runtime.validation import Checked, Count, Positive, Seed, StepsOrDefault
from qurate.selection.selectors import OracleConfig

DIGITS = NetworkConfig(backbone="digits", bottleneck="normalized", features=64)
"""The network of the digits pair: a small CNN from random weights."""
DIGITS_ROUNDS = 4
"""Rounds on the digits pair, each a quarter of its steps."""
QUERY_STRATEGY_ORDER = (NOBODY, *QUERY_STRATEGIES)
"""Query strategies in the order of the tables."""


@dataclass(frozen=True)
class Grid(Checked):
    """What a benchmark compares.

    Args:
        suite: Domains and scenarios.
        data: Folder of its images; None for a generated suite.
        scenarios: Pairs 'source:target'; all of the suite if empty.
        methods: Names or titles of `qurate.METHODS`, or 'all', each with every selector; 'tml+dqn' or 'TML_DQNPL' is
            that pair alone.
        selectors: Names of `qurate.SELECTORS`, 'oracle', or 'long': none, but as many steps as with the agent.
        presets: Of selectors 'dqn' and 'confidence', each a row of its own.
        shots: Labelled target samples of each class.
        seeds: Of the runs.
        backbone: That embeds the images (train='head') or is trained; the suite's if empty.
        weights: Its weights: 'pretrained', 'offline' or a file.
        train: 'head' on embeddings of the frozen backbone, or 'full'.
        protocol: How the target is split.
        rules: Rules of model selection.
        steps: Training steps before selection; 0 for the suite's. Rounds become shorter in proportion.
        device: Where to train.
        devices: How many train a cell together, or processes on CPUs.
        precision: Of floating-point numbers, as Lightning Fabric names it.
        frozen_norms: Whether batch norms of a backbone that is trained keep the statistics that they came with.
        workers: Processes that decode images for each cell that trains all layers.
        imbalances: Ratios of the largest class to the smallest to thin the unlabelled target to; 1 leaves it as it is.
        calibrate: Find a temperature for each cell by cross-fitting; it then takes three times as long.
        askers: Who says which images to label next: names of `qurate.QUERY_STRATEGIES`, and 'none' for the control
            without answers. Each asks after the run of each cell; if empty, nobody asks.
        ask: Labels to ask for.
        ask_rounds: In as many rounds, after each of which a run learns from the answers.

    Raises:
        ConfigError: If a value is not of its type, or a name none of those allowed.
        BenchmarkError: If values do not go together.
    """

    suite: Suite
    data: Path | None = None
    scenarios: tuple[str, ...] = ()
    methods: tuple[str, ...] = ("all",)
    selectors: tuple[str, ...] = ("none",)
    presets: tuple[Preset, ...] = ("qurate",)
    shots: tuple[Positive, ...] = (3,)
    seeds: tuple[Seed, ...] = (0,)
    backbone: str = ""
    weights: str = "pretrained"
    train: Literal["head", "full"] = "head"
    protocol: Protocol = "mme"
    rules: tuple[str, ...] = ("last",)
    steps: StepsOrDefault = 0
    device: Device = "auto"
    devices: Positive = 1
    precision: Precision = "32-true"
    frozen_norms: bool = False
    workers: Count = 0
    imbalances: tuple[Positive, ...] = (1,)
    calibrate: bool = False
    askers: tuple[str, ...] = ()
    ask: Count = 0
    ask_rounds: Positive = 1

    def __post_init__(self) -> None:
        super().__post_init__()
        suite = self.suite
        for argument in ("methods", "selectors", "presets", "shots", "seeds", "imbalances"):
            if not getattr(self, argument):
                raise BenchmarkError(f"{argument} must name at least one, got none.")
        self.pairs()  # every word is one of those allowed
        for argument, values, allowed in (
            ("`model_selection`", self.rules, RULES),
            ("`protocol`", (self.protocol,), suite.protocols),
        ):
            _check_names(argument, values, allowed)
        for scenario in self.scenarios:
            check_scenario(suite, scenario)
        if self.data is None and not suite.generated:
            raise BenchmarkError(f"`data` must be the folder of {suite.title}, got none.")
        if suite.generated:
            for shots in self.shots:
                check_shots(shots, VALIDATION_SHOTS if "validation" in self.rules else 0)
        else:
            check_backbone(self.backbone or suite.backbone)
            if self.train == "full":
                check_trainable(self.backbone or suite.backbone)
        if self.protocol != "drawn" and (other := set(self.shots) - {1, 3}):
            raise BenchmarkError(
                f"`shots` must be 1 or 3 under protocol '{self.protocol}', for which lists were published; got "
                f"{sorted(other)}. Use `protocol='drawn'`."
            )
        if self.askers or self.ask:
            self._check_asking()

    def _check_asking(self) -> None:
        if not self.askers or not self.ask:
            raise BenchmarkError("`ask` and `askers` go together: how many labels to ask for, and who chooses.")
        _check_names("`asker`", self.askers, QUERY_STRATEGY_ORDER)
        if self.ask % self.ask_rounds:
            raise BenchmarkError(
                f"`ask` must be a multiple of `ask_rounds`, so that all rounds are of one size; got {self.ask} labels "
                f"in {self.ask_rounds} rounds."
            )
        if tuple(self.rules) != ("last",):
            raise BenchmarkError(
                f"`ask` needs `model_selection` 'last' alone, since people are asked about the last model; got "
                f"{', '.join(self.rules)}."
            )
        if self.calibrate:
            raise BenchmarkError("`ask` and `calibrate` cannot be combined. Leave one of them out.")
        selectors = {selector for _, selector in self.pairs()}
        if ORACLE in selectors:
            raise BenchmarkError("`ask` and selector 'oracle' cannot be combined: it knows all labels already.")
        if "check" in self.askers and selectors & set(PLAIN):
            raise BenchmarkError(
                "asker 'check' asks about trusted pseudo-labels, and selectors 'none' and 'long' trust none. Leave one "
                "of them out."
            )

    def pairs(self) -> list[tuple[str, str]]:
        """Methods and selectors that go together, each pair once, in the order of the tables.

        Raises:
            ConfigError: If a word is none of those allowed.
        """
        found: list[tuple[str, str]] = []
        for word in self.methods:
            first, plus, rest = word.partition("+")
            every = first == "all"
            resolved = [resolve_pair(name + plus + rest) for name in METHODS] if every else [resolve_pair(word)]
            for method, selector in resolved:
                for chosen in self.selectors if selector is None else (selector,):
                    found += [(method, row) for row in self._rows_of(chosen)]
        return [(method, row) for method in METHODS for row in SELECTOR_ORDER if (method, row) in found]

    def _rows_of(self, selector: str) -> list[str]:
        """What rows of a selector are called: one for each preset, where it has presets."""
        if selector in (ORACLE, LONG):
            return [selector]
        name = SELECTORS.find(selector).name
        if name not in PRINTED:
            return [name]
        return [PRINTED[name] if check_preset(preset) == "paper" else name for preset in self.presets]

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
                imbalance=imbalance,
                calibrate=self.calibrate,
                asker=asker,
                ask=self.ask,
                ask_rounds=self.ask_rounds if self.askers else 0,
            )
            for scenario in _ordered(self.scenarios, self.suite.scenarios)
            for shots in sorted(set(self.shots))
            for imbalance in sorted(set(self.imbalances))
            for method in dict.fromkeys(method for method, _ in self.pairs())
            for seed in sorted(set(self.seeds))
            for selector in (selector for of, selector in self.pairs() if of == method)
            for asker in [name for name in QUERY_STRATEGY_ORDER if name in self.askers] or [""]
        ]

    def run_config(self, method: str, selector: str, seed: int, backbone: str, weights: str) -> RunConfig:
        """The run of one cell: the suite's network, the preset of the selector, as many steps as asked for."""
        steps = self.steps or self.suite.steps or TrainingConfig.steps
        names = {ORACLE: "none", LONG: "none", **{printed: name for name, printed in PRINTED.items()}}
        config = make_config(
            method,
            names.get(selector, selector),
            preset="paper" if selector in PRINTED.values() else "qurate",
            network=self._network(backbone, weights),
            steps=steps,
            seed=seed,
            device=self.device,
        )
        training = replace(config.training, precision=self.precision, frozen_norms=self.frozen_norms)
        execution = replace(config.execution, devices=self.devices, workers=self.workers)
        config, selection = replace(config, training=training, execution=execution), config.selection
        if self.suite.generated:
            selection = replace(selection, rounds=DIGITS_ROUNDS, round_steps=max(1, steps // DIGITS_ROUNDS))
        else:
            shorter = steps / TrainingConfig.steps
            selection = replace(selection, round_steps=max(1, round(selection.round_steps * shorter)))
        if selector == ORACLE:
            selection = replace(selection, selector=OracleConfig())
        if selector == LONG:
            longer = self.run_config(method, "dqn", seed, backbone, weights).total_steps
            return replace(config, training=replace(config.training, steps=longer))
        return replace(config, selection=selection)

    def _network(self, backbone: str, weights: str) -> NetworkConfig:
        if self.suite.generated:
            return DIGITS
        if self.train == "head":
            return NetworkConfig(bottleneck="normalized")
        own = backbone == self.suite.backbone
        return NetworkConfig(backbone, weights, self.suite.bottleneck if own else "linear")


def describe_weights(weights: str) -> str:
    """What weights are, wherever the file lies: its name and the beginning of its hash; those of each, if several."""
    path = Path(weights)
    if not path.is_file():
        return "+".join(map(describe_weights, weights.split("+"))) if "+" in weights else weights
    with path.open("rb") as file:
        return f"{path.name} sha256:{hashlib.file_digest(file, 'sha256').hexdigest()[:12]}"


def _check_names(argument: str, values: Sequence[str], allowed: Sequence[str]) -> None:
    strange = [value for value in values if value not in allowed]
    if strange or not values:
        got = f"'{strange[0]}'" if strange else "none"
        raise BenchmarkError(f"{argument} must be one of {', '.join(allowed)}, got {got}.")


def _ordered(chosen: Sequence[str], order: Sequence[str]) -> list[str]:
    """The chosen ones, each once, in a given order; all if none is chosen, and what is not in the order at the end."""
    names = list(dict.fromkeys(chosen or order))
    return sorted(names, key=lambda name: order.index(name) if name in order else len(order))
