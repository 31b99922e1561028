"""The options of `qurate benchmark`, stated once: names, types, help and checks. Nothing here loads torch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, get_type_hints

import tyro

from qurate.config import Device, Pooling, Precision, Protocol
from qurate.errors import ConfigError
from qurate.presets import check_preset
from qurate.registry import FITTED, GROUPS, LONG, METHODS, ORACLE, PRINTED, QUERY_STRATEGIES, SELECTORS, resolve_pair
from qurate.runtime.files import why_not_writable
from qurate.runtime.options import Count, Flag, Train, between, option
from qurate.runtime.paths import is_folder, shorten
from qurate.runtime.validation import LARGEST_SEED, MOST, MOST_STEPS, find_problem, show

_LEAST = {"shots": 1, "seeds": 0, "imbalance": 1, "unknown": 0, "missing_classes": 0}
"""The least that the numbers of a list may be."""
NOBODY = "none"
"""The control of query strategies: a short run without answers, the same in every round."""
QUERY_STRATEGY_ORDER = (NOBODY, *QUERY_STRATEGIES)
"""Query strategies in the order of the tables."""


def _split(words: list[str]) -> tuple[str, ...]:
    return tuple(word.strip() for word in words[0].split(",") if word.strip())


def _split_numbers(words: list[str]) -> tuple[int | str, ...]:
    try:
        return tuple(int(word) for word in _split(words))
    except ValueError:  # `GridOptions.check` says what is wrong
        return _split(words)


def _comma_separated(split: Callable[[list[str]], Any]) -> Any:
    return tyro.constructors.PrimitiveConstructorSpec(
        nargs=1,
        metavar="A,B,...",
        instance_from_str=split,
        is_instance=lambda value: isinstance(value, tuple),
        str_from_instance=lambda value: [",".join(map(str, value))],
    )


Names = Annotated[tuple[str, ...], _comma_separated(_split)]
Numbers = Annotated[tuple[int, ...], _comma_separated(_split_numbers)]
_METHODS = (
    f"Each with every selector: {', '.join(METHODS)}. 'fitted' for the last {len(FITTED)}, 'all' for the others; "
    "mme+sla adapts source labels. Alone: tml+dqn, or a row of the paper such as TML_SPL."
)
_SELECTORS = f"Which pseudo-labels to trust: {', '.join([*SELECTORS, ORACLE, LONG])}."
_QUERY_STRATEGIES = f"Which images to label next: {', '.join(QUERY_STRATEGIES)}, or none, the control without answers."


@dataclass(frozen=True)
class GridOptions:
    """What is compared: all that decides a result.

    Args:
        suite: digits, office31, office_home, domainnet126, or the path of a TOML file of your own.
        data: Folder of the suite's images; digits needs none.
        scenarios: Pairs source:target.
        methods: How the network learns: names or titles of `qurate.METHODS`, 'all' that train a network, or those that
            are 'fitted' to embeddings, each with every selector; 'mme+sla' adapts its source labels; 'tml+dqn' or
            'TML_DQNPL' is that pair alone.
        selectors: Which pseudo-labels to trust: names of `qurate.SELECTORS`, 'oracle', or 'long': none, but as many
            steps as with the agent.
        presets: Settings of selectors dqn and confidence: qurate, paper, or both.
        shots: Labelled target images per class: 1 and 3 have public lists, others need --protocol drawn.
        seeds: Seeds of the runs.
        backbone: timm/NAME.TAG, torchvision/vgg16 or torchvision/resnet34; several side by side as A+B; or
            fast, good, best, auto. The suite's (the paper's) unless given.
        weights: 'pretrained' (download), 'offline' (from the extra qurate[offline]), a weight file, or 'auto'.
        image_size: Side in pixels of the images that a backbone of timm sees.
        pooling: What becomes of the tokens of a transformer: class token, mean of the patches, or both.
        train: 'head' trains on embeddings of the frozen backbone, in minutes; 'full' trains all layers, slowly.
        protocol: mme (public lists), clean (the same, made disjoint) or drawn (at random by seed).
        model_selection: Rules: last, validation, entropy, snd, information_maximization, oracle.
        imbalance: Thin the unlabelled target to a long tail: 20 makes its largest class 20 times the smallest.
        unknown: Hide this many classes, drawn by the seed; their images stay in the unlabelled target alone.
        missing_classes: Remove the images of this many known classes from the unlabelled target.
        calibrate: Measure what `adapt` gives: the network combined with S+T and calibrated on held-out labelled images,
            without images that fit no class (three folds: about six times the work).
        ask: Ask for this many labels after each run, and learn from the answers, which come from the hidden labels.
        query_strategy: Which images to label next: names of `qurate.QUERY_STRATEGIES`, or 'none' for the control.
        ask_rounds: Ask in this many rounds of equal size; 1 unless given.
        steps: Training steps before selection; the suite's own unless given. Rounds become shorter in proportion.
        precision: Of floating-point numbers, as Lightning Fabric names it.
        frozen_norms: Batch norms of the backbone keep the statistics that they came with, where all layers are trained.
    """

    suite: Annotated[str, tyro.conf.arg(metavar="NAME")]
    data: Annotated[Path | None, option("DIR")] = None
    scenarios: Names = ("all",)
    methods: Annotated[Names, tyro.conf.arg(help=_METHODS)] = ("all",)
    selectors: Annotated[Names, tyro.conf.arg(help=_SELECTORS)] = tuple(SELECTORS)
    presets: Names = ("qurate",)
    shots: Numbers = (3,)
    seeds: Numbers = (0, 1, 2)
    backbone: Annotated[str | None, option("NAME")] = None
    weights: Annotated[str, option("FILE", "auto")] = "auto"
    image_size: Annotated[int | None, option("PIXELS", "the model's own")] = None
    pooling: Annotated[Pooling | None, option("{class,mean,both}", "the model's own")] = None
    train: Annotated[Train, option("{head,full}", "head")] = "head"
    protocol: Annotated[Protocol | None, option("{mme,clean,drawn}", "the suite's first")] = None
    model_selection: Names = ("last",)
    imbalance: Numbers = (1,)
    unknown: Numbers = (0,)
    missing_classes: Numbers = (0,)
    calibrate: Flag = False
    ask: Count = None
    query_strategy: Annotated[Names, option(default="all", help=_QUERY_STRATEGIES)] = ()
    ask_rounds: Count = None
    steps: Annotated[int | None, option("INT"), between(1, MOST_STEPS)] = None
    precision: Annotated[Precision, option("{32-true,16-mixed,bf16-mixed}", "32-true")] = "32-true"
    frozen_norms: Flag = False

    def check(self) -> None:
        """Judge every option by itself. It is no `__post_init__`, whose errors tyro would print in its own way.

        Raises:
            ConfigError: If one is not allowed.
        """
        for name in ("scenarios", "methods", "selectors", "presets", "model_selection"):
            _check_list(name, getattr(self, name))
        for name, least in _LEAST.items():
            _check_list(name, numbers := getattr(self, name))
            got = show(",".join(map(str, numbers)))
            if not all(type(number) is int for number in numbers):
                raise ConfigError(f"`{name}` must be integers with commas between them, got {got}.")
            if not all(least <= number <= LARGEST_SEED for number in numbers):
                raise ConfigError(f"`{name}` must be between {least} and {LARGEST_SEED}, got {got}.")
        _check_fields(self, ("train", "protocol", "steps", "ask", "ask_rounds"))
        for word in self.methods:
            first, plus, rest = word.partition("+")
            if word not in GROUPS:
                _named("methods", resolve_pair, GROUPS[first][0] + plus + rest if first in GROUPS else word)
        printed = {row: name for name, row in PRINTED.items()}
        for word in self.selectors:
            if word in printed:
                raise ConfigError(f"'{word}' is chosen by `selectors='{printed[word]}'` and `presets='paper'`.")
            if word not in (ORACLE, LONG):
                _named("selectors", SELECTORS.find, word)
        for word in self.presets:
            _named("presets", check_preset, word)
        if self.ask is None and (self.query_strategy or self.ask_rounds is not None):
            name = "query_strategy" if self.query_strategy else "ask_rounds"
            raise ConfigError(f"`{name}` needs `ask`, the number of labels.")
        for word in self.query_strategy:
            if word != NOBODY:
                _named("query_strategy", QUERY_STRATEGIES.find, word)
        if self.data is not None and not is_folder(self.data):
            raise ConfigError(f"`data` must be a folder, got {shorten(self.data)}, where there is none.")

    @property
    def query_strategies(self) -> tuple[str, ...]:
        """Names in the order of the tables; all of them where labels are asked for and none is named."""
        if self.ask is None:
            return ()
        chosen = {word if word == NOBODY else QUERY_STRATEGIES.find(word).name for word in self.query_strategy}
        return tuple(name for name in QUERY_STRATEGY_ORDER if name in chosen or not chosen)


@dataclass(frozen=True)
class ExecutionOptions:
    """Where and how cells are run; it does not name them.

    Args:
        out: Folder for results.csv, rounds.csv and the cells, which are the single runs.
        device: Where to train.
        devices: Devices that train a cell together, or processes on CPUs.
        workers: Processes that decode images for each cell that trains all layers.
        cell_gpus: GPUs that Ray keeps for each cell; as many as --devices unless given.
        processes: How many cells run at once; one for as many cores as a cell has devices, or for as many GPUs.
        ray: Run on Ray: 'local', or the address of a cluster.
        dry_run: Say what would run and how long it would take, and stop.
    """

    out: Annotated[Path, tyro.conf.arg(metavar="DIR")]
    device: Annotated[Device, option("{auto,cpu,cuda,mps}", "auto")] = "auto"
    devices: Annotated[int, between(1, MOST)] = 1
    workers: Annotated[int, between(0, 1024)] = 0
    cell_gpus: Count = None
    processes: Count = None
    ray: Annotated[str | None, option("local|ADDRESS")] = None
    dry_run: Flag = False

    def check(self) -> None:
        """Judge every option by itself; see `GridOptions.check`.

        Raises:
            ConfigError: If one is not allowed.
        """
        _check_fields(self, ("processes", "devices", "cell_gpus", "workers"))
        if self.cell_gpus is not None and (self.ray is None or self.cell_gpus < self.devices):
            raise ConfigError(
                f"`cell_gpus` needs `ray`, and must be at least `devices` ({self.devices}), got {self.cell_gpus}."
            )
        if reason := why_not_writable(self.out):
            raise ConfigError(
                f"`out` must be a folder, got {shorten(self.out)}, where nothing can be written: {reason}. Choose "
                "another."
            )


def _check_fields(options: object, names: Sequence[str]) -> None:
    kinds = get_type_hints(type(options), include_extras=True)
    for name in names:
        if problem := find_problem(value := getattr(options, name), kinds[name]):
            raise ConfigError(f"`{name}` must be {problem}, got {show(value)}.")


def _check_list(name: str, values: Any) -> None:
    if not isinstance(values, tuple):
        raise ConfigError(f"`{name}` must be a tuple, got {show(values)}.")
    if not values:
        raise ConfigError(f"`{name}` must be a comma-separated list of at least one, got none.")


def _named(option: str, find: Callable[[str], object], word: str) -> None:
    """Look up a word; an error names the option."""
    try:
        find(word)
    except ConfigError as error:
        raise ConfigError(f"`{option}`: {error}") from None
