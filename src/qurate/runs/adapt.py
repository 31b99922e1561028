"""Your own images: from three folders to a model, its predictions, and whether adaptation helped."""

from __future__ import annotations

import dataclasses
import os
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Unpack

from qurate.active.answers import AnswersFile, read_answers
from qurate.config import EXECUTION_FIELDS, TRAINING_FIELDS, NetworkConfig, RunConfig, TrainingConfig, read_settings
from qurate.data.own_images import count_images
from qurate.distributed import check_world_size, external_world_size, init_process_group
from qurate.embedding.backbone import choose_device
from qurate.errors import ConfigError, DataError, RunError
from qurate.networks.backbone_names import check_trainable, find_backbone
from qurate.presets import make_config
from qurate.runs.budget import describe_choice
from qurate.runs.continue_from import PreviousRun, read_previous, read_source_weights
from qurate.runs.files import PROGRESS_FILE
from qurate.runs.folder import RunFolder
from qurate.runs.full_training import FULL_STEPS, full_training
from qurate.runs.image_sources import Places, start_folder
from qurate.runs.model import AdaptedModel, load
from qurate.runs.options import (
    BACKBONE,
    AdaptOptions,
    check_has_network,
    check_options,
    check_source_model,
    check_source_weights,
    find_places,
)
from qurate.runs.pipeline import outcome_lines, run_pipeline
from qurate.runs.setup import Clock, RunOutcome, RunSetup, TimeLimit
from qurate.runtime.machine import available_cores
from qurate.runtime.options import Train
from qurate.runtime.paths import StrPath, is_file, is_folder
from qurate.runtime.progress import ProgressFile, Reporter, follow
from qurate.selection.algorithm import follow_rank_zero


def adapt(
    source: StrPath | Sequence[StrPath] | None = None,
    labeled: StrPath | None = None,
    unlabeled: StrPath | None = None,
    **options: Unpack[AdaptOptions],
) -> AdaptedModel:
    """Adapt an image classifier from labelled source images to a target with few labels.

    Args:
        source: Labelled source images: class folders, a list file or a CSV table; or a list of several, each a domain
            with a weight (`source_weights`).
        labeled: Labelled target images, likewise, of the same classes.
        unlabeled: Unlabelled target images: any folder, nested or flat, a list or a table. All three may be left out
            beside `previous` or the config.json of a run, whose images are then taken; `source` also beside
            `from_model`, a saved model whose class statistics stand for it.
        **options: See `qurate.AdaptOptions`, and `qurate adapt --help`, which shows the same with their defaults. The
            most used: `out`, the run folder (nothing is written without it), `method`, `selector`, `backbone`,
            `steps`, `rounds`, `seed`, `compare`, `resume`, `force`, `previous`, `labels`, `config`.

    Raises:
        ConfigError: If an option is not allowed.
        DataError: If the images or the answers cannot be used as given.
        BackboneError: If the backbone or its weights cannot be obtained.
        RunError: If `out` cannot be written or holds another run.

    Example:
        >>> model = qurate.adapt("studio", "phone-labelled", "phone", out="run")  # needs images  # doctest: +SKIP
        >>> model.predict("new-photos")  # needs images  # doctest: +SKIP
        >>> model = qurate.adapt(previous="run", out="better")  # after `qurate open run`  # doctest: +SKIP
    """
    return run_adaptation({"source": source, "labeled": labeled, "unlabeled": unlabeled, **options}).model


def resolve(given: Mapping[str, Any], clock: Clock = time.monotonic) -> RunSetup:
    """What options mean that `check_options` has judged."""
    given, kept = recall_choice(given)
    limit = None
    if "time_limit" in given:
        given = {name: value for name, value in given.items() if (name, value) != ("backbone", "auto")}
        named = {"backbone" if name in _OF_BACKBONE else name for name in given}
        limit = TimeLimit(given["time_limit"], named & {"backbone", "compare", "steps", "rounds"}, clock)
    places = find_places(given)
    model: AdaptedModel | None = None
    if "previous" in given:
        previous = read_previous(given["previous"])
        setup = RunSetup(**previous.understand(given), places=places, previous=previous)
        model = None if places.from_model is None else previous.model
    elif "config" in given:
        model = _read_source_model(places)
        setup = _from_config(given, places, model)
    else:
        names = ("method", "selector", "preset", "steps", "rounds", "seed")
        model = _read_source_model(places)
        backbone, weights, message = _find_backbone(given, {}, places, "auto", model)
        train = given.get("train", "head")
        as_printed = given.get("preset") == "paper"
        network = trained_network(train if as_printed else "head", backbone, weights)
        config = make_config(network=network, **_pick(given, *names))
        full = None
        if train == "full" and not as_printed:
            check_trainable(backbone)
            full = full_training(config.training, FULL_STEPS)
        setup = RunSetup(config, backbone, weights, places, message=message, full=full)
    training = dataclasses.replace(setup.config.training, **_pick(given, *TRAINING_FIELDS))
    execution = dataclasses.replace(setup.config.execution, **_pick(given, *EXECUTION_FIELDS))
    full = setup.full
    if full is not None:
        full = dataclasses.replace(full, **_pick(given, "micro_batch", "precision"))
        full = dataclasses.replace(full, steps=given.get("full_steps", full.steps))
    elif "full_steps" in given:
        raise ConfigError("`full_steps` is for `train='full'`, unless `preset='paper'`, which trains as it is printed.")
    if "workers" not in given and not execution.workers and choose_device(execution.device).type == "cuda":
        execution = dataclasses.replace(execution, workers=max(1, min(8, available_cores() // execution.devices)))
    of_sources = given.get("source_weights", setup.source_weights)
    if isinstance(of_sources, tuple) and len(places.sources) > 1:
        check_source_weights(of_sources, len(places.sources))  # those of an earlier run, whose sources were others
    folder = RunFolder(given["out"]) if "out" in given else None
    if setup.previous is not None and folder is not None and folder.path.resolve() == setup.previous.folder.resolve():
        raise RunError(f"`out` must be another folder than `previous`: {setup.previous.folder} stays as it is.")
    return dataclasses.replace(
        setup,
        config=dataclasses.replace(setup.config, training=training, execution=execution),
        full=full,
        compare=given.get("compare", setup.compare),
        answers=find_answers(given.get("labels"), setup.previous),
        cache=Path(given["cache"]) if "cache" in given else None,
        prepare=Path(given["prepare"]) if "prepare" in given else None,
        folder=folder,
        message=kept or setup.message,
        limit=limit,
        cut_short=_was_cut_short(given, setup),
        source_weights=of_sources,
        source_model=model,
    )


def _read_source_model(places: Places) -> AdaptedModel | None:
    """The saved model that stands for the source, if any."""
    if places.from_model is None:
        return None
    check_source_model(places.from_model)
    return load(places.from_model)


def _was_cut_short(given: Mapping[str, Any], setup: RunSetup) -> bool:
    """Whether a run is without comparison because of a time limit: its own, if it is resumed, or an earlier run's."""
    kept = RunFolder(given["out"]).kept_settings() if given.get("resume") and "out" in given else None
    return setup.cut_short and "compare" not in given if kept is None else kept.get("cut_short") is True


_OF_BACKBONE = ("backbone", "weights", "image_size", "pooling")


def recall_choice(given: Mapping[str, Any]) -> tuple[dict[str, Any], str]:
    """The options of a resumed run with what was chosen for its time limit, in place of the limit; and what that is.

    Nothing changes where there is no limit, or no interrupted run.
    """
    settings = None
    if "time_limit" in given and given.get("resume") and "out" in given:
        settings = RunFolder(given["out"]).kept_settings()
    if settings is None or not {"run", "backbone", "weights", "check_helping"} <= settings.keys():
        return dict(given), ""  # what is no config.json of a run is refused later
    config = RunConfig.from_dict(settings["run"])
    steps, rounds = config.training.steps, config.selection.rounds
    backbone, compare = settings["backbone"], settings["check_helping"]
    chosen = {"compare": compare, "steps": steps, "rounds": rounds}
    said = describe_choice(backbone, steps, 0 if config.selection.selector.name == "none" else rounds, compare)
    message = f"The run goes on with what was chosen when it began, and is not limited again: {said}."
    rest = {name: value for name, value in given.items() if name not in ("time_limit", "image_size", "pooling")}
    return {**chosen, **rest, "backbone": backbone, "weights": settings["weights"]}, message


def _from_config(given: Mapping[str, Any], places: Places, model: AdaptedModel | None) -> RunSetup:
    """The run of a config, or of a file, whose numbers options may change.

    The config.json of a run also says its backbone and whether it was compared.
    """
    source: RunConfig | StrPath = given["config"]
    stored = {} if isinstance(source, RunConfig) else read_settings(source)
    config = source if isinstance(source, RunConfig) else RunConfig.from_file(source)
    check_has_network(config.method.name)
    trains_backbone = config.network.backbone != "none"
    if model is not None and (trains_backbone or isinstance(stored.get("full"), dict)):
        raise ConfigError(
            "`from_model` cannot be given beside a `config` that trains all layers: these are trained on images, and "
            "of the source there are none. Give `source`, or another config."
        )
    known = {"backbone": config.network.backbone, "weights": config.network.weights} if trains_backbone else stored
    backbone, weights, message = _find_backbone(given, known, places, config.execution.device, model)
    network = config.network
    if trains_backbone:
        network = dataclasses.replace(network, backbone=backbone, weights=weights)
    config = dataclasses.replace(
        config,
        network=network,
        selection=dataclasses.replace(config.selection, **_pick(given, "rounds")),
        **_pick(given, "seed"),
    )
    compare = stored.get("check_helping", True) is not False
    full = TrainingConfig.from_dict(stored["full"]) if isinstance(stored.get("full"), dict) else None
    cut_short, of_sources = stored.get("cut_short") is True, read_source_weights(stored)
    return RunSetup(
        config,
        backbone,
        weights,
        places,
        compare,
        message=message,
        full=full,
        cut_short=cut_short,
        source_weights=of_sources,
    )


def _find_backbone(
    given: Mapping[str, Any], known: Mapping[str, Any], places: Places, device: str, model: AdaptedModel | None
) -> tuple[str, str, str]:
    """Name and weights as given, else as known, and what was chosen and why; those of a saved model are its own."""
    if model is not None:
        return model.config.backbone, str(model.origin.get("weights", "none")), ""
    network = {"backbone": BACKBONE, "weights": "auto", **_pick({**known, **given}, "backbone", "weights")}
    folders = (*places.sources, places.labeled, places.unlabeled)
    return find_backbone(
        **network,
        **_pick(given, "image_size", "pooling"),
        look=lambda: (
            count_images(*folders),
            choose_device(given.get("device", device)),
        ),
    )


def _pick(values: Mapping[str, Any], *names: str) -> dict[str, Any]:
    return {name: values[name] for name in names if name in values}


def trained_network(train: Train, backbone: str, weights: str) -> NetworkConfig:
    """What is trained: the layers after a frozen backbone, on its embeddings, or the backbone as well."""
    if train == "head":
        return NetworkConfig(bottleneck="normalized")
    check_trainable(backbone)
    return NetworkConfig(backbone, weights, "normalized")


def run_adaptation(
    options: Mapping[str, Any], reporter: Reporter | None = None, clock: Clock = time.monotonic
) -> RunOutcome:
    """`adapt` with the record of the run beside its model; a `reporter` is used in place of bars.

    Where torchrun or a cluster has started several processes, the first does all that this says, and the others help it
    to train.
    """
    given = check_options(options)
    setup = resolve(given, clock)
    execution, folder = setup.config.execution, setup.folder
    setup.config.check_shares()
    check_world_size(execution)  # else several would write to one folder
    group = init_process_group(execution, follow_rank_zero) if external_world_size() > 1 else None
    if group is not None and not group.is_rank_zero:
        return RunOutcome(follow_rank_zero(group), None)
    choose_device(execution.device)  # before any work
    with ExitStack() as stack:
        if reporter is None:
            reporter = stack.enter_context(follow(given.get("progress", True)))
        if folder is not None:
            folder.claim(resume=given.get("resume", False), force=given.get("force", False))
            reporter = stack.enter_context(ProgressFile(reporter, folder.path / PROGRESS_FILE))
        if folder is not None and given.get("resume") and folder.finished and not folder.pending:
            folder.forget()  # a kill may have come just before that
            reporter.say(f"{folder.path} is already finished.")
            done = RunOutcome(load(folder.path), None)
        else:
            done = run_pipeline(setup, reporter)
        if group is not None:
            group.broadcast(done.model)
        for line in outcome_lines(done.record, None if folder is None else folder.path):
            reporter.say(line)
        return done


def find_answers(labels: StrPath | None, previous: PreviousRun | None) -> AnswersFile | None:
    """The answers to learn from: those that were given, and those about the previous run."""
    given = None if labels is None else read_answers(labels)
    if previous is None:
        return given
    base, is_there = start_folder(previous.settings), is_file(previous.labels)
    if not is_there and os.path.lexists(previous.labels):
        what = "a folder" if is_folder(previous.labels) else "no regular file"
        raise DataError(f"{previous.labels}: must be a file of answers, and is {what}. Move it elsewhere.")
    if given is not None:
        before = read_answers(previous.labels, allow_empty=True) if is_there else None
        return (given if before is None else given.after(before)).start_from(base)
    if not is_there:
        raise DataError(
            f"{previous.labels}: there is no such file, so there are no answers to learn from. Answer on the page of "
            f"'qurate open {previous.folder}', or pass `labels=FILE`."
        )
    return read_answers(previous.labels).start_from(base)
