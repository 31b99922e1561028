"""The grid: scenario x shots x imbalance x hidden classes x method x selector x query strategy x seed, of few words."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from qurate.benchmark.cell import Cell
from qurate.benchmark.options import GridOptions
from qurate.benchmark.results import BenchmarkError
from qurate.config import ExecutionConfig, NetworkConfig, Protocol, RunConfig, TrainingConfig
from qurate.data.digits import check_shots
from qurate.data.suites import VALIDATION_SHOTS, Suite, check_scenario, too_many_hidden
from qurate.errors import ConfigError
from qurate.model_selection import RULES
from qurate.networks.backbone_names import check_trainable
from qurate.networks.backbones import check_backbone
from qurate.presets import make_config
from qurate.registry import (
    GROUPS,
    LONG,
    METHODS,
    ORACLE,
    PLAIN,
    PRINTED,
    SELECTOR_ORDER,
    SELECTORS,
    SLA,
    goes_with,
    resolve_pair,
)
from qurate.selection.selectors import OracleConfig

DIGITS = NetworkConfig(backbone="digits", bottleneck="normalized", features=64)
"""The network of the digits pair: a small CNN from random weights."""
DIGITS_ROUNDS = 4
"""Rounds on the digits pair, each a quarter of its steps."""


@dataclass(frozen=True)
class Grid:
    """The cells that a benchmark compares.

    Args:
        suite: Domains and scenarios.
        options: What is compared, its backbone and weights by their own names ('auto' and the like resolved).
        execution: Where and how each cell is trained.

    Raises:
        ConfigError: If an option is not allowed.
        BenchmarkError: If options do not go together.
    """

    suite: Suite
    options: GridOptions
    execution: ExecutionConfig = field(default_factory=ExecutionConfig)

    def __post_init__(self) -> None:
        suite, options = self.suite, self.options
        options.check()
        _check_names("`model_selection`", options.model_selection, RULES)
        _check_names("`protocol`", [self.protocol], suite.protocols)
        for scenario in self._scenarios():
            check_scenario(suite, scenario)
        if problem := too_many_hidden(suite.classes, max(options.unknown), max(options.missing_classes)):
            raise BenchmarkError(f"`unknown` and `missing_classes`: {problem}")
        if options.data is None and not suite.generated:
            raise BenchmarkError(f"`data` must be the folder of {suite.title}, got none.")
        if suite.generated:
            for shots in options.shots:
                check_shots(shots, VALIDATION_SHOTS if "validation" in options.model_selection else 0)
        else:
            check_backbone(self.backbone)
            if options.train == "full":
                check_trainable(self.backbone)
        if self.protocol != "drawn" and (other := set(options.shots) - {1, 3}):
            raise BenchmarkError(
                f"`shots` must be 1 or 3 under protocol '{self.protocol}', for which lists were published; got "
                f"{sorted(other)}. Use `protocol='drawn'`."
            )
        if options.ask is not None:
            self._check_asking(options.ask, options.ask_rounds or 1)

    def _check_asking(self, ask: int, rounds: int) -> None:
        if ask % rounds:
            raise BenchmarkError(
                f"`ask` must be a multiple of `ask_rounds`, so that all rounds are of one size; got {ask} labels "
                f"in {rounds} rounds."
            )
        if self.options.model_selection != ("last",):
            raise BenchmarkError(
                f"`ask` needs `model_selection` 'last' alone, since people are asked about the last model; got "
                f"{', '.join(self.options.model_selection)}."
            )
        if self.options.calibrate:
            raise BenchmarkError("`ask` and `calibrate` cannot be combined. Leave one of them out.")
        selectors = {selector for _, selector in self.pairs()}
        if ORACLE in selectors:
            raise BenchmarkError("`ask` and selector 'oracle' cannot be combined: it knows all labels already.")
        if "check" in self.options.query_strategies and selectors & set(PLAIN):
            raise BenchmarkError(
                "query strategy 'check' asks about trusted pseudo-labels, and selectors 'none' and 'long' trust none. "
                "Leave one of them out."
            )

    @property
    def protocol(self) -> Protocol:
        """How the target is split."""
        return self.options.protocol or self.suite.protocols[0]

    @property
    def backbone(self) -> str:
        """That embeds the images (train='head') or is trained."""
        return self.options.backbone or self.suite.backbone

    def _scenarios(self) -> list[str]:
        """Those of the suite first, in its order."""
        order = list(self.suite.scenarios)
        names = order if self.options.scenarios == ("all",) else dict.fromkeys(self.options.scenarios)
        return sorted(names, key=lambda name: order.index(name) if name in order else len(order))

    def pairs(self) -> list[tuple[str, str]]:
        """Methods and selectors that go together, each pair once, in the order of the tables."""
        found: list[tuple[str, str]] = []
        for word in self.options.methods:
            first, plus, rest = word.partition("+")
            group = GROUPS.get(first)
            resolved = [resolve_pair(name + plus + rest) for name in group] if group else [resolve_pair(word)]
            for method, selector in resolved:
                for chosen in self.options.selectors if selector is None else (selector,):
                    rows = self._rows_of(chosen)
                    if selector is not None and group is None and not goes_with(method, chosen):
                        raise ConfigError(f"method '{method}' takes no training steps, and row '{chosen}' needs them.")
                    found += [(method, row) for row in rows if goes_with(method, row)]
        methods = [name for method in METHODS for name in (method, f"{method}+{SLA}")]
        return [(method, row) for method in methods for row in SELECTOR_ORDER if (method, row) in found]

    def _rows_of(self, selector: str) -> list[str]:
        """The rows of a selector: one for each preset, where it has presets."""
        if selector in (ORACLE, LONG):
            return [selector]
        name = SELECTORS.find(selector).name
        if name not in PRINTED:
            return [name]
        return [PRINTED[name] if preset == "paper" else name for preset in self.options.presets]

    def cells(self) -> list[Cell]:
        """All cells, in the order of the suite's scenarios and of the registries, however they were named."""
        options = self.options
        weights = "none" if self.suite.generated else describe_weights(options.weights)
        return [
            Cell(
                suite=self.suite.name,
                scenario=scenario,
                shots=shots,
                protocol=self.protocol,
                selector=selector,
                rules=tuple(rule for rule in RULES if rule in options.model_selection),
                backbone=self.backbone,
                weights=weights,
                config=self.run_config(method, selector, seed, weights),
                imbalance=imbalance,
                unknown=unknown,
                missing_classes=missing,
                calibrate=options.calibrate,
                query_strategy=strategy,
                ask=options.ask or 0,
                ask_rounds=options.ask_rounds or 1 if strategy else 0,
            )
            for scenario in self._scenarios()
            for shots in sorted(set(options.shots))
            for imbalance in sorted(set(options.imbalance))
            for unknown in sorted(set(options.unknown))
            for missing in sorted(set(options.missing_classes))
            for method in dict.fromkeys(method for method, _ in self.pairs())
            for seed in sorted(set(options.seeds))
            for selector in (selector for of, selector in self.pairs() if of == method)
            for strategy in options.query_strategies or ("",)
        ]

    def run_config(self, method: str, selector: str, seed: int, weights: str) -> RunConfig:
        """The run of one cell: the suite's network, the preset of the selector, as many steps as asked for."""
        steps = self.options.steps or self.suite.steps or TrainingConfig.steps
        names = {ORACLE: "none", LONG: "none", **{printed: name for name, printed in PRINTED.items()}}
        config = make_config(
            method,
            names.get(selector, selector),
            preset="paper" if selector in PRINTED.values() else "qurate",
            network=self._network(weights),
            steps=steps,
            seed=seed,
        )
        training = replace(config.training, precision=self.options.precision, frozen_norms=self.options.frozen_norms)
        config, selection = replace(config, training=training, execution=self.execution), config.selection
        if self.suite.generated:
            selection = replace(selection, rounds=DIGITS_ROUNDS, round_steps=max(1, steps // DIGITS_ROUNDS))
        else:
            shorter = steps / TrainingConfig.steps
            selection = replace(selection, round_steps=max(1, round(selection.round_steps * shorter)))
        if selector == ORACLE:
            selection = replace(selection, selector=OracleConfig())
        if selector == LONG:
            longer = self.run_config(method, "dqn", seed, weights).total_steps
            return replace(config, training=replace(config.training, steps=longer))
        return replace(config, selection=selection)

    def _network(self, weights: str) -> NetworkConfig:
        if self.suite.generated:
            return DIGITS
        if self.options.train == "head":
            return NetworkConfig(bottleneck="normalized")
        own = self.backbone == self.suite.backbone
        return NetworkConfig(self.backbone, weights, self.suite.bottleneck if own else "linear")


def describe_weights(weights: str) -> str:
    """The name of a file of weights and the beginning of its hash, wherever it lies; of each, if several."""
    path = Path(weights)
    if not path.is_file():
        return "+".join(map(describe_weights, weights.split("+"))) if "+" in weights else weights
    with path.open("rb") as file:
        return f"{path.name} sha256:{hashlib.file_digest(file, 'sha256').hexdigest()[:12]}"


def _check_names(argument: str, values: Sequence[str], allowed: Sequence[str]) -> None:
    for value in values:
        if value not in allowed:
            raise BenchmarkError(f"{argument} must be one of {', '.join(allowed)}, got '{value}'.")
