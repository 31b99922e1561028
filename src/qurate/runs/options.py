"""The options of `qurate.adapt` and of `qurate adapt`, stated once: names, types, help and checks. Loads no torch.

Each group is a `TypedDict`, which mypy reads as the keywords of `qurate.adapt` and tyro as flags of the command line. A
key that is absent was not given, so no default is needed to tell the two apart.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Annotated, Any, Literal, Protocol, TypedDict, get_type_hints

from qurate.active.label_studio import is_export, read_export
from qurate.config import Device, Pooling, Precision, RunConfig, TrainingConfig, read_settings
from qurate.errors import ConfigError, DataError, RunError
from qurate.presets import Preset
from qurate.registry import DEFAULT_SELECTOR, FITTED, SELECTORS, TRAINED, nearest, resolve_pair
from qurate.runs.image_sources import Places, choose_places, is_without_source, read_settings_of
from qurate.runs.model_json import read_about
from qurate.runtime.files import why_not_writable
from qurate.runtime.options import Count, Flag, Switch, Train, between, option
from qurate.runtime.paths import (
    LABELED,
    UNLABELED,
    StrPath,
    as_path,
    each_source,
    existing,
    is_file,
    is_folder,
    shorten,
)
from qurate.runtime.tables import TableError, decode_text, read_head, split_header
from qurate.runtime.validation import LARGEST_SEED, MOST_STEPS, find_problem, show

BACKBONE = "timm/tf_efficientnet_lite0.in1k"
"""Default backbone: 4.7 million weights, about 120 images per second on two idle cores. Our choice."""

DEFAULT_QUERY_STRATEGY = "density"
"""How images to label are chosen. Our choice: as good as the best on Office-31, and its list for
few images is the beginning of that for many (docs/asking.md)."""
COLD_START_STRATEGY = "clusters"
"""How the first images to label are chosen, before any run. Our choice (docs/asking.md)."""


class ModelInFolder(Protocol):
    """A model that may have been written as a run, as `AdaptedModel` is one."""

    @property
    def folder(self) -> Path | None:
        """The run."""
        ...


class ImageOptions(TypedDict, total=False):
    """Where the images are."""

    source: Annotated[StrPath | Sequence[StrPath], option("DIR [DIR ...]")]
    """Labelled source images: class folders, a list file ('path class' per line) or a CSV table; or several of them."""
    labeled: Annotated[StrPath, option("DIR")]
    """The few labelled target images, likewise, of the same classes."""
    unlabeled: Annotated[StrPath, option("DIR")]
    """Unlabelled target images: any folder, nested or flat, a list or a table."""


class ModelOptions(TypedDict, total=False):
    """A saved model in place of the source."""

    from_model: Annotated[StrPath | None, option("MODEL", constructor=Path)]
    """In place of --source: a new run without source images, from the class statistics that a finished run stores with
    its model. Its backbone is taken. (--from learns from answers instead.)"""


class AnswerOptions(TypedDict, total=False):
    """Learning from what people answered about a finished run."""

    previous: Annotated[StrPath | ModelInFolder | None, option("RUN", name="from", constructor=Path)]
    """A finished run whose answers to learn from, with its images and settings, in a third of its steps; it is left as
    it is. (--from-model begins a new run.)"""
    labels: Annotated[StrPath | None, option("FILE")]
    """Answers: labels.csv of qurate open, a filled-in table of qurate suggest, or Label Studio's export as JSON;
    beside those in the earlier run."""


class BackboneOptions(TypedDict, total=False):
    """The pretrained network."""

    backbone: Annotated[str, option("NAME", f"fast, {BACKBONE}")]
    """timm/NAME.TAG, torchvision/vgg16, torchvision/resnet34, several as A+B; or fast, good, best, auto: see `qurate
    backbones`."""
    weights: Annotated[str, option("FILE", "auto")]
    """'pretrained' (download), 'offline' (from the extra qurate[offline]), a weight file, or 'auto'."""
    image_size: Annotated[int | None, option("PIXELS", "the model's own")]
    """Side in pixels of the images that a backbone of timm sees."""
    pooling: Annotated[Pooling | None, option("{class,mean,both}", "the model's own")]
    """What becomes of the tokens of a transformer: class token, mean of the patches, or both."""


_METHODS = (
    f"How the network learns: {', '.join(TRAINED)}; or a row of the paper's tables such as TML_SPL. mme+sla adapts the "
    "labels of the source."
)
_SELECTORS = f"Which pseudo-labels to trust: {', '.join(SELECTORS)}."


class TrainingOptions(TypedDict, total=False):
    """What is trained, and how."""

    method: Annotated[str, option("NAME", "tml", help=_METHODS)]
    """How the network learns: one of `qurate.METHODS` that trains one, or a row of the paper's tables such as
    TML_SPL."""
    selector: Annotated[str | None, option("NAME", DEFAULT_SELECTOR, help=_SELECTORS)]
    """Which pseudo-labels to trust: one of `qurate.SELECTORS`."""
    preset: Annotated[Preset, option("{qurate,paper}", "qurate")]
    """Settings of selector dqn: 'qurate', our own, or 'paper', the published algorithm as printed."""
    config: Annotated[RunConfig | StrPath | None, option("FILE", constructor=Path)]
    """JSON or TOML file with all settings; the config.json of a run repeats it, on the same images unless given."""
    train: Annotated[Train, option("{head,full}", "head")]
    """'head' trains on embeddings of the frozen backbone, in minutes; 'full' then trains all layers, slowly, and keeps
    the better model."""
    full_steps: Annotated[int | None, option("INT", "60"), between(1, MOST_STEPS)]
    """Training steps of all layers, after those of the head."""
    steps: Annotated[int | None, option("INT", str(TrainingConfig.steps)), between(1, MOST_STEPS)]
    """Training steps before selection."""
    rounds: Annotated[int | None, option("INT", "that of the preset"), between(1, MOST_STEPS)]
    """Most rounds of selection."""
    seed: Annotated[int, option("INT", "0"), between(0, LARGEST_SEED)]
    """Decides everything random; the same seed gives the same result on CPU."""
    missing: Annotated[Literal["error", "drop"], option("{error,drop}", "error")]
    """What to do with a class that source or labelled target lacks."""
    source_weights: Annotated[
        Literal["learned", "images"] | tuple[float, ...] | None, option("{images,learned}|FLOAT ...", "images")
    ]
    """How much each of several sources counts: 'images' as if all were in one folder, 'learned' from the labelled
    target images, or a number for each."""
    compare: Switch
    """Also train without adaptation and compare on held-out labelled target images."""
    frozen_norms: Flag
    """Batch norms of the backbone keep their statistics, where all layers are trained."""


class HardwareOptions(TypedDict, total=False):
    """Where and how it is computed."""

    device: Annotated[Device, option("{auto,cpu,cuda,mps}", "auto")]
    """Where to train."""
    devices: Count
    """Devices of each machine that train together, or processes on CPUs; 1 unless given."""
    num_nodes: Count
    """Machines that train together; start the command on each by torchrun. 1 unless given."""
    strategy: Annotated[
        Literal["auto", "ddp", "ddp_find_unused_parameters_true"] | None,
        option("{auto,ddp,ddp_find_unused_parameters_true}", "auto"),
    ]
    """How they work together, as Lightning Fabric names it."""
    precision: Annotated[Precision | None, option("{32-true,16-mixed,bf16-mixed}", "32-true")]
    """Precision of floating-point numbers, as Lightning Fabric names it."""
    workers: Annotated[int | None, option("INT"), between(0, 1024)]
    """Processes that decode images beside the training; none unless given, a few where a GPU trains."""
    prepare: Annotated[StrPath | None, option("DIR")]
    """Store the images here at training size, once, where all layers are trained."""
    micro_batch: Count
    """Rows of a batch that pass through the network at a time, to save memory; all unless given."""
    activation_checkpointing: Flag
    """Recompute activations in the backward pass, to save memory, where the backbone can."""
    checkpoint_steps: Count
    """Training steps between two checkpoints."""
    checkpoint_minutes: Annotated[float | None, option("FLOAT"), between(0, 1_000_000)]
    """Minutes between two checkpoints; 10 unless given. SIGTERM and Ctrl-C write one in any case."""


class OutputOptions(TypedDict, total=False):
    """What is written."""

    out: Annotated[StrPath | None, option("RUN", "required")]
    """Run folder for the model, predictions.csv, positives.csv, metrics.csv and report.html."""
    resume: Flag
    """Continue an interrupted run in the run folder; a finished one is loaded."""
    force: Flag
    """Replace a run in the run folder, when the new one is finished."""


class AdaptOptions(
    ModelOptions, AnswerOptions, BackboneOptions, TrainingOptions, HardwareOptions, OutputOptions, total=False
):
    """Keywords of `qurate.adapt` beside the images; each has the name of a flag of `qurate adapt`."""

    cache: StrPath | None
    """Folder of the embedding cache; QURATE_CACHE or the user's cache folder unless given."""
    time_limit: Annotated[float | None, between(1, 10_000_000)]
    """Seconds that the run may take: backbone, comparison, steps and rounds are chosen so that it fits, as far as they
    are not given. `qurate adapt --minutes` is the same in minutes."""
    progress: bool
    """Show progress: bars in a terminal and in a notebook, elsewhere a line for each phase. Yes unless given."""


MODEL = "the folder of a finished run or of a saved model"
"""What --from-model may be."""
_PATHS = {
    "source": LABELED,
    "labeled": LABELED,
    "unlabeled": UNLABELED,
    "labels": "a file of answers",
    "prepare": "a folder",
    "from_model": MODEL,
    "out": "a run folder",
    "cache": "a folder",
}
_BESIDE_FILE = ("method", "selector", "preset", "train")
_BESIDE_CONFIG = (*_BESIDE_FILE, "steps", "rounds", "seed", "device")
_BESIDE_PREVIOUS = (
    *("method", "selector", "preset", "config", "train", "steps", "rounds", "seed"),
    *("backbone", "image_size", "pooling", "source_weights"),
)
_BESIDE_MODEL = ("source", "backbone", "weights", "image_size", "pooling", "source_weights")
_BESIDE_TIME_LIMIT = ("from_model", "config", "previous", "devices", "num_nodes", "full_steps", "prepare")


def check_has_network(method: str) -> None:
    """Check that a method leaves a network, which a run saves.

    Raises:
        ConfigError: If it does not.
    """
    if method in FITTED:
        raise ConfigError(
            f"method '{method}' is fitted to embeddings and leaves no network to save. For a model of your images use "
            f"one of {', '.join(TRAINED)}; compare it with them by `qurate benchmark`, or fit it by `qurate.fit`."
        )


def check_options(options: Mapping[str, Any]) -> dict[str, Any]:
    """The options that were given, judged before anything heavy is loaded.

    Args:
        options: Of `ImageOptions` and `AdaptOptions`; None stands for one that was not given, where it may be.

    Raises:
        QurateError: If one is not allowed, contradicts another, or names a place where nothing is or can be written.
        TypeError: If there is no such option.
    """
    kinds = _kinds()
    several = ("source", "source_weights")
    options = {
        name: tuple(value) if name in several and isinstance(value, list) else value for name, value in options.items()
    }
    for name, value in options.items():
        if name not in kinds:
            raise TypeError(f"adapt() got an unexpected keyword argument {name!r}.{nearest(name, kinds)}")
        if name == "source" and isinstance(value, tuple):
            for place in each_source(value):
                as_path(place, "`source`", LABELED)
        elif name in _PATHS and value is not None:
            as_path(value, f"`{name}`", _PATHS[name])
        elif name not in (*_PATHS, "config", "previous") and (problem := find_problem(value, kinds[name])):
            raise ConfigError(f"`{name}` must be {problem}, got {show(value)}.")
    given = {name: value for name, value in options.items() if value is not None}
    _check_combination(given)
    if "method" in given:
        check_has_network(resolve_pair(given["method"])[0])
    if "selector" in given:
        SELECTORS.find(given["selector"])
    for name in ("out", "prepare"):
        if name in given and (reason := why_not_writable(Path(given[name]))):
            raise RunError(
                f"`{name}` must be a folder, got {shorten(given[name])}, where nothing can be written: {reason}. "
                "Choose another."
            )
    places = find_places(given)
    for place in places.sources:
        existing(place, "`source`", LABELED)
    if places.from_model is not None and "previous" not in given:
        check_source_model(places.from_model)
    for name in ("labeled", "unlabeled"):
        existing(getattr(places, name), f"`{name}`", _PATHS[name])
    if "source_weights" in given:
        check_source_weights(given["source_weights"], len(places.sources))
    if "labels" in given:
        labels = Path(given["labels"])
        if not is_file(labels):
            came = "a folder" if is_folder(labels) else "none"
            raise DataError(
                f"`labels` must be a file, got {shorten(labels)}, which is {came}. 'qurate open' writes RUN/labels.csv."
            )
        try:
            if is_export(head := read_head(labels)):
                read_export(labels, decode_text(labels, labels.read_bytes()))
            else:
                split_header(labels, head)
        except (TableError, DataError) as error:
            raise DataError(f"`labels`: {error}") from error
    return given


def check_source_weights(weights: object, sources: int) -> None:
    """Check that weights are for several sources, one for each.

    Raises:
        ConfigError: If they are not.
    """
    if sources < 2:
        raise ConfigError("`source_weights` is for several sources, and one is given. Leave it out.")
    if isinstance(weights, tuple) and (len(weights) != sources or min(weights) <= 0):
        raise ConfigError(
            f"`source_weights` must be a positive number for each of the {sources} sources, got {show(weights)}. "
            "To do without a source, leave it out of `source`."
        )


def flags_off(group: Any) -> Any:
    """The flags of a group as the command line has them where none is given; tyro needs a default for each."""
    return {name: False for name, kind in get_type_hints(group, include_extras=True).items() if kind == Flag}


@cache
def _kinds() -> dict[str, Any]:
    return get_type_hints(ImageOptions, include_extras=True) | get_type_hints(AdaptOptions, include_extras=True)


def _check_combination(given: Mapping[str, Any]) -> None:
    """Options that exclude each other."""
    config = given.get("config")
    if not isinstance(config, RunConfig | str | os.PathLike | None):
        raise ConfigError(
            f"`config` must be a RunConfig or a file of settings, got {type(config).__name__}. `qurate.make_config` "
            "makes one."
        )
    if "from_model" in given:
        _check_beside_model(given)
    if "previous" in given and (other := _listed(given, _BESIDE_PREVIOUS)):
        raise ConfigError(
            f"{other} cannot be given beside `previous`: a run that learns from answers has the settings of the one "
            "that they are about. Leave them out, or give `labels` without `previous`."
        )
    if isinstance(config, RunConfig) and (other := _listed(given, _BESIDE_CONFIG)):
        raise ConfigError(f"{other} cannot be given beside `config`: change the config instead.")
    if config is not None and (other := _listed(given, _BESIDE_FILE)):
        raise ConfigError(
            f"{other} cannot be given beside `config`: edit {shorten(config)} instead, or leave `config` out."
        )
    if "time_limit" in given:
        _check_time_limit(given)
    is_head = given.get("train") == "head" or not {"train", "config", "previous"} & given.keys()
    if "prepare" in given and is_head:
        raise ConfigError("`prepare` is for `train='full'`: the head is trained on embeddings, which are kept anyway.")


def _check_beside_model(given: Mapping[str, Any]) -> None:
    """What has no place beside a saved model that stands for the source."""
    if "previous" in given:
        raise ConfigError(
            "`from_model` cannot be given beside `previous`: that learns from answers about a run, with its images and "
            "its model. Leave one of them out."
        )
    if other := _listed(given, _BESIDE_MODEL):
        raise ConfigError(
            f"{other} cannot be given beside `from_model`: the model takes the place of the source, and its backbone "
            "is taken as it is. Leave one of them out."
        )
    if given.get("train") == "full":
        raise ConfigError(
            "`train='full'` cannot be given beside `from_model`: all layers are trained on images, and of the source "
            "there are none. Leave one of them out."
        )


def check_source_model(model: StrPath) -> None:
    """Check that a saved model can stand for the source, by its model.json.

    Raises:
        ModelError: If there is no saved model.
        ConfigError: If it has no statistics of its source.
    """
    if not isinstance(read_about(model).get("source_statistics"), dict):
        raise ConfigError(
            f"`from_model`: {shorten(model)} was saved without the statistics of its source: on purpose, by an earlier "
            "version of qurate, or after `preset='paper'` with `train='full'`. Ask for a model that has them, adapt it "
            "again from its source images, or give `source`."
        )


def _check_time_limit(given: Mapping[str, Any]) -> None:
    """What has no place beside a time limit, which is for a frozen backbone on one device."""
    others = _listed(given, _BESIDE_TIME_LIMIT)
    others = others or ("`train='full'`" if given.get("train") == "full" else "")
    if others := others or ("`preset='paper'`" if given.get("preset") == "paper" else ""):
        raise ConfigError(
            f"{others} cannot be given beside `time_limit`, which chooses the settings of a new run with a frozen "
            "backbone on one device. Leave one of them out."
        )


def _listed(given: Mapping[str, Any], names: tuple[str, ...]) -> str:
    return ", ".join(f"`{name}`" for name in names if name in given)


def find_places(given: Mapping[str, Any]) -> Places:
    """Where the images are: as given, else where the previous run, or the run of a config.json, had them."""
    settings, config = None, given.get("config")
    if "previous" in given:
        run = run_folder(given["previous"])
        settings = read_settings_of(run)
        if is_without_source(settings) and "source" not in given:
            given = {**given, "from_model": run}  # which has the statistics that it was given
    elif config is not None and not isinstance(config, RunConfig):
        settings = read_settings(config)
    return choose_places(settings, given)


def run_folder(run: StrPath | ModelInFolder) -> StrPath:
    """The folder of a run that is given by it, or by its model.

    Raises:
        ConfigError: If the model was not written as a run.
    """
    folder: Any = getattr(run, "folder", run)  # what is neither a model nor a path is refused when it is read
    if folder is None:
        raise ConfigError("`previous`: this model was not written as a run. Adapt with `out`, or give a run's folder.")
    place: StrPath = folder
    return place
