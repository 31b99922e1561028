"""The verb adapt: from your own images, or from a run and what people said of it, to a model."""

from __future__ import annotations

import functools
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import tyro

from qurate.cli import options
from qurate.cli.options import check_count, check_folder, check_seed, check_words, understand
from qurate.cli.terminal import begin, helping, on_stop, say
from qurate.config import EXECUTION_FIELDS
from qurate.errors import ConfigError, DataError
from qurate.runs.image_sources import Places, check_beside_previous, choose_places, read_settings_of
from qurate.runtime.paths import check_places, is_file
from qurate.runtime.validation import MOST_STEPS

MOST_MINUTES = 1_000_000

if TYPE_CHECKING:
    from qurate.run_results import RunRecord


def adapt(
    *,
    source: options.AnyFolder = None,
    labeled: options.AnyFolder = None,
    unlabeled: options.AnyFolder = None,
    out: Annotated[Path, tyro.conf.arg(metavar="RUN")],
    previous: options.AnyRun = None,
    labels: options.AnyFile = None,
    method: options.MethodName = None,
    selector: options.SelectorName = None,
    preset: options.Preset = None,
    config: options.AnyFile = None,
    backbone: options.Backbone = None,
    weights: options.Weights = None,
    image_size: options.ImageSize = None,
    pooling: options.Pooling = None,
    train: options.Train = None,
    seed: options.Seed = None,
    steps: options.Steps = None,
    rounds: options.Rounds = None,
    compare: options.Switch = True,
    missing: Literal["error", "drop"] = "error",
    prepare: options.AnyFolder = None,
    workers: options.Count = None,
    device: options.Device = None,
    devices: options.Count = None,
    num_nodes: options.Count = None,
    strategy: options.Strategy = None,
    precision: options.Precision = None,
    frozen_norms: options.Flag = False,
    micro_batch: options.Count = None,
    activation_checkpointing: options.Flag = False,
    checkpoint_steps: options.Count = None,
    checkpoint_minutes: options.Minutes = None,
    resume: options.Flag = False,
    force: options.Flag = False,
) -> None:
    """Adapt an image classifier to your own images, and see whether it helped.

    Args:
        source: Labelled source images: class folders, a list file ('path class' per line) or a CSV table.
        labeled: The few labelled target images, likewise.
        unlabeled: Unlabelled target images: any folder, nested or flat, a list or a table. --from knows all three.
        out: Run folder for the model, predictions.csv, positives.csv, metrics.csv and report.html.
        previous: Learn from what people said of this finished run, by its settings in a third of its steps; it stays.
        labels: What people said: labels.csv of qurate review, or a filled-in table of qurate suggest. That of --from
            counts in any case.
        method: How the network learns; a name of the registry.
        selector: Which pseudo-labels to trust; a name of the registry.
        preset: Settings of selector dqn: 'qurate', our own, or 'paper', the published algorithm as printed.
        config: JSON or TOML file with all settings. The config.json of a run repeats it; answers are given by --labels.
        backbone: timm/NAME.TAG, torchvision/vgg16 or torchvision/resnet34; several side by side as A+B; or fast, good,
            best, auto, which `qurate backbones` lists.
        weights: 'pretrained' (download), 'offline' (from the extra qurate[offline]), a weight file, or 'auto'.
        image_size: Side in pixels of the images that a backbone of timm sees.
        pooling: What becomes of the tokens of a transformer: class token, mean of the patches, or both.
        train: 'head' trains on embeddings of the frozen backbone, in minutes; 'full' trains all layers, slowly.
        seed: Decides everything random; the same seed gives the same result on CPU.
        steps: Training steps before selection.
        rounds: Most rounds of selection.
        compare: Also train without adaptation and compare on held-out labelled target images.
        missing: What to do with a class that source or labelled target lacks.
        prepare: Store the images here at training size, once, where all layers are trained.
        workers: Processes that decode images beside the training; none unless given, a few where a GPU trains.
        device: Where to train.
        devices: Devices of each machine that train together, or processes on CPUs; 1 unless given.
        num_nodes: Machines that train together; start the command on each by torchrun. 1 unless given.
        strategy: How they work together, as Lightning Fabric names it.
        precision: Of floating-point numbers, as Lightning Fabric names it.
        frozen_norms: Batch norms of the backbone keep the statistics that they came with, where all layers are trained.
        micro_batch: Rows of a batch that pass through the network at a time, to save memory; all unless given.
        activation_checkpointing: Make activations again on the way back, to save memory, where the backbone can.
        checkpoint_steps: Training steps after which the run is kept, to be resumed from there.
        checkpoint_minutes: Minutes after which it is; 10 unless given. It is kept on SIGTERM and Ctrl-C in any case.
        resume: Continue an interrupted run.
        force: Replace a run in RUN; it stays until the new one is finished.
    """
    words = {"method": method, "selector": selector, "preset": preset, "train": train}
    given = check_words({name: word for name, word in words.items() if word is not None}, config)
    numbers = {"seed": seed, "steps": steps, "rounds": rounds, "device": device}
    network = {"backbone": backbone, "weights": weights, "image_size": image_size, "pooling": pooling}
    given |= {name: value for name, value in {**numbers, **network}.items() if value is not None}
    check_seed("seed", seed or 0)
    check_count("steps", steps, MOST_STEPS)
    check_count("rounds", rounds, MOST_STEPS)
    check_count("devices", devices)
    check_count("num-nodes", num_nodes)
    check_count("checkpoint-steps", checkpoint_steps)
    check_count("micro-batch", micro_batch)
    check_count("workers", workers, 1024, least=0)
    if checkpoint_minutes is not None and not 0 <= checkpoint_minutes <= MOST_MINUTES:
        raise ConfigError(f"--checkpoint-minutes must be between 0 and {MOST_MINUTES}, got {checkpoint_minutes}.")
    if prepare is not None:
        check_folder("prepare", prepare)
        if train == "head" or (train is None and config is None and previous is None):
            raise ConfigError(
                "--prepare is for --train full: the head is trained on embeddings, which are kept anyway."
            )
    of_machine = {
        **{"devices": devices, "num_nodes": num_nodes, "strategy": strategy, "precision": precision},
        **{"checkpoint_steps": checkpoint_steps, "checkpoint_minutes": checkpoint_minutes},
        **{
            "workers": workers,
            "frozen_norms": frozen_norms or None,
            "micro_batch": micro_batch,
            "activation_checkpointing": activation_checkpointing or None,
        },
    }
    how = {name: value for name, value in of_machine.items() if value is not None}
    check_folder("out", out)
    places = _places(
        previous, given if config is None else {**given, "config": config}, source, labeled, unlabeled, missing
    )
    check_places(*places, prefix="--")
    if labels is not None and not is_file(labels):
        raise DataError(f"--labels must be a file, got {labels}, which is none. `qurate review` writes RUN/labels.csv.")
    on_stop(functools.partial(_standing, out))
    begin()
    from qurate.embedding.backbone import choose_device
    from qurate.runs.adapt import run_adaptation
    from qurate.runs.continue_from import read_previous
    from qurate.runtime.machine import available_cores

    kept = None if previous is None else read_previous(previous)
    run = understand(given, config, places) if kept is None else kept.understand(given)
    run["compare"] = run.get("compare", True) and compare
    training = {name: value for name, value in how.items() if name not in EXECUTION_FIELDS}
    execution = replace(
        run["config"].execution, **{name: value for name, value in how.items() if name in EXECUTION_FIELDS}
    )
    if "workers" not in how and not execution.workers and choose_device(execution.device).type == "cuda":
        execution = replace(execution, workers=max(1, min(8, available_cores() // execution.devices)))
    run["config"] = replace(run["config"], training=replace(run["config"].training, **training), execution=execution)
    done = run_adaptation(
        source,
        labeled,
        unlabeled,
        out=out,
        missing=missing,
        resume=resume,
        force=force,
        labels=labels,
        previous=kept,
        prepare=prepare,
        **run,
    )
    if done.leads:
        _say_outcome(out, done.record)


def _places(
    previous: Path | None,
    given: dict[str, Any],
    source: Path | None,
    labeled: Path | None,
    unlabeled: Path | None,
    missing: Literal["error", "drop"],
) -> Places:
    """Where the images are, by the options or by the run that answers are about, which nothing may contradict."""
    kept = None
    if previous is not None:
        check_beside_previous(given)
        kept = read_settings_of(previous)
    return choose_places(kept, source, labeled, unlabeled, missing)


def _standing(out: Path) -> str:
    """How far a stopped run is; its code may be half loaded."""
    folder = getattr(sys.modules.get("qurate.runs.folder"), "RunFolder", None)
    return "Nothing was started. Re-run the command to start." if folder is None else str(folder(out).standing())


def _say_outcome(out: Path, record: RunRecord | None) -> None:
    from qurate.report.run_text import answers_in_words
    from qurate.runs.files import REPORT_FILE

    if record is not None and record.comparison is not None:
        say(helping(record.comparison, out))
    if record is not None and record.answers is not None:
        for sentence in answers_in_words(record.answers):
            say(sentence)
    say(f"Model, predictions and tables: {out}")
    say(f"Open {out / REPORT_FILE} in a browser to see what was learned.")
