"""Your own images: from three folders to a model, its predictions, and whether adaptation helped."""

from __future__ import annotations

import dataclasses
import inspect
from contextlib import nullcontext
from typing import Any, get_args

from qurate.config import Device, NetworkConfig, RunConfig
from qurate.data.embedding.frozen import choose_device, freeze_backbone
from qurate.data.parts import Missing, Place, read_parts
from qurate.data.places import as_path, check_places
from qurate.errors import ConfigError
from qurate.networks.offline import find_weights
from qurate.presets import Preset, make_config
from qurate.runs.folder import RunFolder
from qurate.runs.job import Job, RunOutcome
from qurate.runs.model import AdaptedModel, load
from qurate.runs.settings import BACKBONE, Train
from qurate.runtime.progress import Audience, follow


def adapt(
    source: Place,
    labeled: Place,
    unlabeled: Place,
    *,
    method: str = "tml",
    selector: str | None = None,
    preset: Preset = "qurate",
    backbone: str = BACKBONE,
    weights: str = "auto",
    train: Train = "head",
    steps: int | None = None,
    rounds: int | None = None,
    seed: int = 0,
    out: Place | None = None,
    resume: bool = False,
    force: bool = False,
    compare: bool = True,
    missing: Missing = "error",
    config: RunConfig | None = None,
    device: Device = "auto",
    cache: Place | None = None,
    progress: bool = True,
) -> AdaptedModel:
    """Adapt an image classifier from labelled source images to a target with few labels.

    Args:
        source: Labelled source images: class folders, a list file or a CSV table.
        labeled: Labelled target images, likewise, of the same classes.
        unlabeled: Unlabelled target images: any folder, nested or flat, a list or a table.
        method: How the network learns: one of `qurate.METHODS`.
        selector: Which pseudo-labels to trust: one of `qurate.SELECTORS`; 'adaptive' unless given, or 'dqn' with
            preset 'paper'.
        preset: How the agent of selector 'dqn' is set up: 'qurate', or 'paper' for the printed algorithm.
        backbone: 'timm/NAME.TAG', 'torchvision/vgg16' or 'torchvision/resnet34'.
        weights: 'pretrained' (download), 'offline' (of the extra `qurate[offline]`), or the path of a weight file;
            'auto' takes the offline ones where they are installed and fit the backbone, else the pretrained ones.
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
        progress: Show what the run does: bars in a terminal and in a notebook, elsewhere a line for each phase.

    Raises:
        DataError: If the images cannot be used as given.
        BackboneError: If the backbone or its weights cannot be obtained.
        RunError: If `out` cannot be written or holds another run.

    Example:
        >>> model = qurate.adapt("studio", "phone-labelled", "phone", out="run")  # needs images  # doctest: +SKIP
        >>> model.predict("new-photos")  # needs images  # doctest: +SKIP
    """
    weights = find_weights(backbone, weights)
    words: dict[str, Any] = {
        "method": method,
        "selector": selector,
        "preset": preset,
        "steps": steps,
        "rounds": rounds,
        "seed": seed,
    }
    if config is None:
        run = make_config(network=trained_network(train, backbone, weights), device=device, **words)
    else:
        run = _alone(config, words | {"device": device})
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
    ).model


def _alone(config: RunConfig, words: dict[str, Any]) -> RunConfig:
    """The config, if no word beside it says otherwise."""
    defaults = inspect.signature(adapt).parameters
    if given := [name for name, value in words.items() if value != defaults[name].default]:
        raise ConfigError(f"{', '.join(given)} cannot be combined with config. Change the config.")
    if not isinstance(config, RunConfig):
        raise ConfigError(f"config must be a RunConfig, got {type(config).__name__}. `qurate.make_config` makes one.")
    return config


def trained_network(train: Train, backbone: str, weights: str) -> NetworkConfig:
    """What is trained: the layers after a frozen backbone, on its embeddings, or the backbone as well."""
    if train not in get_args(Train):
        raise ConfigError(f"train must be one of {', '.join(get_args(Train))}, got {train!r}.")
    network = NetworkConfig(bottleneck="normalized")
    return dataclasses.replace(network, backbone=backbone, weights=weights) if train == "full" else network


def run_adaptation(
    source: Place,
    labeled: Place,
    unlabeled: Place,
    config: RunConfig,
    *,
    backbone: str,
    weights: str,
    out: Place | None = None,
    resume: bool = False,
    force: bool = False,
    compare: bool = True,
    missing: Missing = "error",
    cache: Place | None = None,
    progress: bool = True,
    audience: Audience | None = None,
) -> RunOutcome:
    """`adapt` with its words understood, see there; an `audience` is told in place of bars.

    Returns:
        The model, and the record of its run beside it.
    """
    check_places(source, labeled, unlabeled, missing)
    choose_device(config.training.device)  # before any work
    folder = None if out is None else RunFolder(as_path(out, "out", "a run folder"))
    store = None if cache is None else as_path(cache, "cache", "a folder")
    with follow(progress) if audience is None else nullcontext(audience) as hears:
        if folder is not None:
            folder.claim(resume=resume, force=force)
            if resume and folder.finished and not folder.pending:
                folder.forget()  # a kill may have come just before that
                hears.say(f"{folder.path} is already finished.")
                return RunOutcome(load(folder.path), None)
        hears.say("Reading the images ...")
        parts = read_parts(source, labeled, unlabeled, missing=missing, cache=store)
        for line in parts.lines():
            hears.say(line)
        frozen = freeze_backbone(backbone, weights)
        return Job(config, weights, frozen, compare, store, folder, hears).run(parts)
