"""Your own images: from three folders to a model, its predictions, and whether adaptation helped."""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Sequence
from contextlib import nullcontext
from typing import Any, get_args

from qurate.active.answers import AnswersFile, read_answers
from qurate.config import Device, NetworkConfig, RunConfig
from qurate.data.own_images import Missing, StrPath, count_images, read_parts
from qurate.distributed import check_world_size, init_process_group
from qurate.embedding.backbone import choose_device, freeze_backbones
from qurate.errors import ConfigError, DataError, RunError
from qurate.networks.backbone_names import Look, Pooling, check_trainable, find_backbone
from qurate.presets import Preset, make_config
from qurate.runs.continue_from import PreviousRun, read_previous
from qurate.runs.folder import RunFolder
from qurate.runs.image_sources import BACKBONE, Train, choose_places
from qurate.runs.model import AdaptedModel, load
from qurate.runs.pipeline import Job, RunOutcome
from qurate.runtime.paths import as_path, check_places, is_file
from qurate.runtime.process_group import external_world_size
from qurate.runtime.progress import Audience, follow
from qurate.selection.algorithm import follow_rank_zero


def adapt(
    source: StrPath | None = None,
    labeled: StrPath | None = None,
    unlabeled: StrPath | None = None,
    *,
    labels: StrPath | None = None,
    previous: StrPath | AdaptedModel | None = None,
    method: str = "tml",
    selector: str | None = None,
    preset: Preset = "qurate",
    backbone: str = BACKBONE,
    weights: str = "auto",
    image_size: int | None = None,
    pooling: Pooling | None = None,
    train: Train = "head",
    steps: int | None = None,
    rounds: int | None = None,
    seed: int = 0,
    out: StrPath | None = None,
    resume: bool = False,
    force: bool = False,
    compare: bool = True,
    missing: Missing = "error",
    config: RunConfig | None = None,
    device: Device = "auto",
    cache: StrPath | None = None,
    prepare: StrPath | None = None,
    progress: bool = True,
) -> AdaptedModel:
    """Adapt an image classifier from labelled source images to a target with few labels.

    Args:
        source: Labelled source images: class folders, a list file or a CSV table.
        labeled: Labelled target images, likewise, of the same classes.
        unlabeled: Unlabelled target images: any folder, nested or flat, a list or a table. All three may be left out
            beside `previous`, whose images are then taken.
        labels: What people said of unlabelled images: labels.csv of `qurate review`, or a table of `model.suggest` with
            its column `label` filled in. Answers in labels.csv of `previous` count too.
        previous: A finished run, or its model, that these answers are about. The new one has its settings and takes a
            third of its steps; neither the comparison nor the calibration is repeated.
        method: How the network learns: one of `qurate.METHODS`.
        selector: Which pseudo-labels to trust: one of `qurate.SELECTORS`; 'adaptive' unless given, or 'dqn' with
            preset 'paper'.
        preset: How the agent of selector 'dqn' is set up: 'qurate', or 'paper' for the printed algorithm.
        backbone: 'timm/NAME.TAG', 'torchvision/vgg16' or 'torchvision/resnet34'; several side by side with '+' between
            them, where only the head is trained; or 'fast', 'good', 'best', 'auto', which `qurate backbones` lists.
        weights: 'pretrained' (download), 'offline' (of the extra `qurate[offline]`), or the path of a weight file;
            'auto' takes the offline ones where they are installed and fit the backbone, else the pretrained ones.
        image_size: Side in pixels of the images that a backbone of timm sees; the model's own unless given.
        pooling: What becomes of the tokens of a transformer: 'class' token, 'mean' of the patches, or 'both' one after
            the other; what the model was made for unless given.
        train: 'head' trains on embeddings of the frozen backbone, in minutes; 'full' trains all layers, slowly.
        steps: Training steps before selection; the preset's unless given.
        rounds: Most rounds of selection; the preset's unless given.
        seed: Decides everything random; the same seed gives the same result on CPU.
        out: Run folder for model, predictions and page; None writes nothing.
        resume: Continue an interrupted run in `out`; a finished one is loaded.
        force: Replace a run in `out`, when the new one is finished.
        compare: Also train S+T and compare, on held-out labelled target images.
        missing: What to do with a class that source or labelled target lacks: 'error', or 'drop' it.
        config: The whole run, in place of method, selector, preset, steps, rounds, seed and device; where its network
            has a backbone, that one is trained.
        device: 'auto', 'cpu', 'cuda', 'mps'.
        cache: Folder of the embedding cache; the user's unless given.
        prepare: Folder to store images in at training size, once, where all layers are trained; None decodes them
            anew in every step.
        progress: Show what the run does: bars in a terminal and in a notebook, elsewhere a line for each phase.

    Raises:
        DataError: If the images or the answers cannot be used as given.
        BackboneError: If the backbone or its weights cannot be obtained.
        RunError: If `out` cannot be written or holds another run.

    Example:
        >>> model = qurate.adapt("studio", "phone-labelled", "phone", out="run")  # needs images  # doctest: +SKIP
        >>> model.predict("new-photos")  # needs images  # doctest: +SKIP
        >>> model = qurate.adapt(previous="run", out="better")  # after `qurate review run`  # doctest: +SKIP
    """
    words: dict[str, Any] = {
        "method": method,
        "selector": selector,
        "preset": preset,
        "steps": steps,
        "rounds": rounds,
        "seed": seed,
    }
    kept, message = None, ""
    if previous is not None:
        kept = read_previous(previous)
        beside = words | {"device": device, "config": config, "backbone": backbone, "weights": weights, "train": train}
        beside |= {"image_size": image_size, "pooling": pooling}
        run, backbone, weights = kept.understand(_given(beside)).values()
    elif config is None:
        look = look_at((source, labeled, unlabeled), device)
        backbone, weights, message = find_backbone(backbone, weights, image_size, pooling, look=look)
        run = make_config(network=trained_network(train, backbone, weights), device=device, **words)
    else:
        run = _alone(config, words | {"device": device})
        look = look_at((source, labeled, unlabeled), run.execution.device)
        backbone, weights, message = find_backbone(backbone, weights, image_size, pooling, look=look)
        if run.network.backbone != "none":  # all layers are trained
            backbone, weights = run.network.backbone, run.network.weights
    return run_adaptation(
        source,
        labeled,
        unlabeled,
        run,
        backbone=backbone,
        weights=weights,
        out=out,
        resume=resume,
        force=force,
        compare=compare,
        missing=missing,
        cache=cache,
        progress=progress,
        labels=labels,
        previous=kept,
        message=message,
        prepare=prepare,
    ).model


def look_at(places: Sequence[StrPath | None], device: str) -> Look:
    """What backbone 'auto' wants to know of a run."""
    return lambda: (count_images(*(place for place in places if place is not None)), choose_device(device))


def _given(words: dict[str, Any]) -> dict[str, Any]:
    """The words that do not have their default."""
    defaults = inspect.signature(adapt).parameters
    return {name: value for name, value in words.items() if value != defaults[name].default}


def _alone(config: RunConfig, words: dict[str, Any]) -> RunConfig:
    """The config, if no word beside it says otherwise."""
    if given := list(_given(words)):
        raise ConfigError(f"{', '.join(given)} cannot be combined with config. Change the config.")
    if not isinstance(config, RunConfig):
        raise ConfigError(f"config must be a RunConfig, got {type(config).__name__}. `qurate.make_config` makes one.")
    return config


def trained_network(train: Train, backbone: str, weights: str) -> NetworkConfig:
    """What is trained: the layers after a frozen backbone, on its embeddings, or the backbone as well."""
    if train not in get_args(Train):
        raise ConfigError(f"train must be one of {', '.join(get_args(Train))}, got {train!r}.")
    if train == "full":
        check_trainable(backbone)
    network = NetworkConfig(bottleneck="normalized")
    return dataclasses.replace(network, backbone=backbone, weights=weights) if train == "full" else network


def run_adaptation(
    source: StrPath | None,
    labeled: StrPath | None,
    unlabeled: StrPath | None,
    config: RunConfig,
    *,
    backbone: str,
    weights: str,
    out: StrPath | None = None,
    resume: bool = False,
    force: bool = False,
    compare: bool = True,
    missing: Missing = "error",
    cache: StrPath | None = None,
    progress: bool = True,
    labels: StrPath | None = None,
    previous: PreviousRun | None = None,
    prepare: StrPath | None = None,
    audience: Audience | None = None,
    message: str = "",
) -> RunOutcome:
    """`adapt` with its words understood, see there; an `audience` is told in place of bars, first the `message`.

    Where torchrun or a cluster has started several processes, the first does all that this says, and the others help it
    to train.

    Returns:
        The model, and the record of its run beside it.
    """
    check_world_size(config.execution)  # else several would write to one folder
    group = init_process_group(config.execution, follow_rank_zero) if external_world_size() > 1 else None
    if group is not None and not group.is_rank_zero:
        return RunOutcome(follow_rank_zero(group), None, leads=False)
    places = choose_places(None if previous is None else previous.settings, source, labeled, unlabeled, missing)
    check_places(*places)
    choose_device(config.execution.device)  # before any work
    folder = None if out is None else RunFolder(as_path(out, "out", "a run folder"))
    if previous is not None and folder is not None and folder.path.resolve() == previous.folder.resolve():
        raise RunError(f"`out` must be another folder than `previous`: {previous.folder} stays as it is.")
    answers_file = _answers(labels, previous)
    store = None if cache is None else as_path(cache, "cache", "a folder")
    with follow(progress) if audience is None else nullcontext(audience) as hears:
        if folder is not None:
            folder.claim(resume=resume, force=force)
            if resume and folder.finished and not folder.pending:
                folder.forget()  # a kill may have come just before that
                hears.say(f"{folder.path} is already finished.")
                model = load(folder.path)
                if group is not None:
                    group.broadcast(model)
                return RunOutcome(model, None)
        if message:
            hears.say(message)
        hears.say("Reading the images ...")
        parts = read_parts(places.source, places.labeled, places.unlabeled, missing=places.missing, cache=store)
        for line in parts.lines():
            hears.say(line)
        frozen = freeze_backbones(backbone, weights)
        images = None if prepare is None else as_path(prepare, "prepare", "a folder")
        job = Job(config, weights, frozen, compare, store, folder, hears, places, answers_file, previous, images)
        done = job.run(parts)
        if group is not None:
            group.broadcast(done.model)
        return done


def _answers(labels: StrPath | None, previous: PreviousRun | None) -> AnswersFile | None:
    """The answers to learn from: those that were given, and those about the previous run."""
    new = None if labels is None else read_answers(labels)
    if previous is None:
        return new
    if new is not None:
        return new.after(read_answers(previous.labels, allow_empty=True)) if is_file(previous.labels) else new
    if not is_file(previous.labels):
        raise DataError(
            f"{previous.labels}: there is no such file, so there are no answers to learn from. Answer on the page of "
            f"'qurate review {previous.folder}', or pass `labels=FILE`."
        )
    return read_answers(previous.labels)
