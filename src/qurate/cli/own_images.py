"""The verbs for one's own images: adapt, predict, evaluate, export, embed, check."""

from __future__ import annotations

import functools
import sys
from pathlib import Path
from typing import Annotated, Literal

import pandas as pd
import torch
import tyro
from rich.console import Console

from qurate.config import SelectionConfig, TrainingConfig
from qurate.data.domains import Domain, verify_images
from qurate.data.embedding.embed import fill_cache
from qurate.data.images import ImageFiles
from qurate.data.parts import find_images
from qurate.report.run.record import Comparison
from qurate.runs.adaptation import adapt as run_adaptation
from qurate.runs.folder import REPORT_FILE, RunError, as_csv
from qurate.runs.model import load_model
from qurate.runs.settings import BACKBONE, SettingError, Train, find_weights, make_config
from qurate.runtime.display import make_table
from qurate.runtime.files import write_atomically
from qurate.runtime.progress import PhaseBars

Folder = Annotated[Path, tyro.conf.arg(metavar="DIR")]
Run = Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="RUN")]


def adapt(
    source: Folder,
    labeled: Folder,
    unlabeled: Folder,
    out: Annotated[Path, tyro.conf.arg(metavar="RUN")],
    method: str = "tml",
    selector: str = "dqn",
    backbone: Annotated[str, tyro.conf.arg(metavar="NAME")] = BACKBONE,
    weights: Annotated[str, tyro.conf.arg(metavar="FILE")] = "auto",
    train: Train = "head",
    seed: int = 0,
    steps: int = TrainingConfig.steps,
    rounds: int = SelectionConfig.rounds,
    compare: bool = True,
    missing: Literal["error", "drop"] = "error",
    device: str = "auto",
    resume: bool = False,
    force: bool = False,
) -> None:
    """Adapt an image classifier to your own images, and see whether it helped.

    Args:
        source: Labelled source images: class folders, a list file ('path class' a line) or a CSV table.
        labeled: The few labelled target images, likewise.
        unlabeled: Unlabelled target images: any folder, nested or flat, a list or a table.
        out: Run folder for the model, predictions.csv, positives.csv, metrics.csv and report.html.
        method: source_target, dann, adr, cdan, ent, mme, tml or cml.
        selector: Which pseudo-labels to trust: none, confidence, quality, balanced, random or dqn.
        backbone: timm/NAME.TAG, torchvision/vgg16 or torchvision/resnet34.
        weights: 'pretrained' (download), 'offline' (of the extra qurate[offline]), a weight file, or 'auto'.
        train: 'head' trains on embeddings of the frozen backbone; 'full' trains all layers, slowly.
        seed: Decides everything random; the same seed gives the same result on CPU.
        steps: Training steps before selection.
        rounds: Most rounds of selection.
        compare: Also train without adaptation and compare on held-out labelled target images.
        missing: What to do with a class that source or labelled target lacks.
        device: auto, cpu, cuda or mps.
        resume: Go on with an interrupted run.
        force: Overwrite a run in RUN.
    """
    console, weights = Console(), find_weights(backbone, weights)
    config = make_config(
        method=method,
        selector=selector,
        backbone=backbone,
        weights=weights,
        train=train,
        seed=seed,
        steps=steps,
        rounds=rounds,
        device=device,
    )
    try:
        with PhaseBars(console) as bars:
            model = run_adaptation(
                source,
                labeled,
                unlabeled,
                backbone=backbone,
                weights=weights,
                train=train,
                out=out,
                resume=resume,
                force=force,
                check_helping=compare,
                missing=missing,
                config=config,
                device=device,
                audience=bars,
            )
    except KeyboardInterrupt:
        _say(Console(stderr=True), "qurate: stopped. Go on with the same command and --resume.")
        sys.exit(130)
    if model.record is not None and model.record.comparison is not None:
        _say(console, helping(model.record.comparison))
    _say(console, f"Model, predictions and page: {out} (look at {out / REPORT_FILE}).")


def helping(found: Comparison) -> str:
    """Whether adaptation helps, in two sentences."""
    verdict = {
        "helps": "Adaptation helps.",
        "unclear": "It is not clear whether adaptation helps.",
        "harms": "Adaptation HARMS here: prefer --method source_target --selector none.",
    }[found.verdict]
    difference = found.adapted - found.baseline
    return (
        f"{verdict} On {found.images} labelled target images that neither model saw ({found.how}): adapted "
        f"{found.adapted:.1%}, S+T {found.baseline:.1%}, difference {100 * difference:+.1f} points "
        f"(95 % interval {100 * found.low:+.1f} to {100 * found.high:+.1f})."
    )


def predict(
    run: Run,
    images: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="IMAGES")],
    out: Annotated[Path, tyro.conf.arg(metavar="FILE")],
    force: bool = False,
) -> None:
    """Predict the class of images with the model of a run.

    Args:
        run: Folder of a finished run.
        images: A folder, a glob (in quotes), a list file or an image.
        out: CSV table to write: file, label, probability, problem.
        force: Overwrite FILE if it is there.
    """
    if out.exists() and not force:
        raise RunError(f"{out} exists. Choose another --out, or pass --force to overwrite it.")
    console = Console()
    with PhaseBars(console) as bars:
        table = load_model(run).predict(images, functools.partial(bars.show, "predicting"))
    _write(out, as_csv(table))
    unreadable = int((table["problem"] != "").sum())
    _say(console, f"{len(table) - unreadable} images predicted, {unreadable} unreadable. Table: {out}")


def evaluate(
    run: Run, labeled: Folder, confusion: Annotated[Path | None, tyro.conf.arg(metavar="FILE")] = None
) -> None:
    """Measure the model of a run on labelled images: accuracy, balanced accuracy, per class, confusion.

    Args:
        run: Folder of a finished run.
        labeled: Class folders, a list file ('path class' a line) or a CSV table.
        confusion: CSV table to write: counts, a row for each true class and a column for each predicted one.
    """
    model, console = load_model(run), Console()
    with PhaseBars(console) as bars:
        found = model.evaluate(labeled, functools.partial(bars.show, "predicting"))
    counts = found.confusion.sum(dim=1).tolist()
    _say(
        console,
        f"Accuracy {found.accuracy:.1%}, balanced accuracy {found.balanced_accuracy:.1%} on {sum(counts)} images.",
    )
    rows = []
    for label, (name, count) in enumerate(zip(model.classes, counts, strict=True)):
        if count:
            row = found.confusion[label].clone()
            right, row[label] = int(row[label]), 0
            taken_for = [f"{model.classes[k]} ({int(row[k])})" for k in row.argsort(descending=True)[:3] if row[k]]
            rows.append((name, str(count), str(right), f"{right / count:.1%}", ", ".join(taken_for)))
    console.print(make_table("By class", ("class", "images", "right", "accuracy", "taken for"), rows))
    if confusion is not None:
        counted = pd.DataFrame(found.confusion.numpy(), columns=list(model.classes))
        counted.insert(0, "true class", model.classes)
        _write(confusion, as_csv(counted))


def embed(
    images: Annotated[list[str], tyro.conf.Positional, tyro.conf.arg(metavar="IMAGES")],
    backbone: Annotated[str, tyro.conf.arg(metavar="NAME")] = BACKBONE,
    weights: Annotated[str, tyro.conf.arg(metavar="FILE")] = "auto",
    views: int = 1,
    cache: Annotated[Path | None, tyro.conf.arg(metavar="DIR")] = None,
    device: str = "auto",
) -> None:
    """Pass images through a frozen backbone ahead of time; every other verb finds the embeddings by itself.

    Args:
        images: Folders, globs (in quotes), list files or images.
        backbone: timm/NAME.TAG, torchvision/vgg16 or torchvision/resnet34.
        weights: 'pretrained' (download), 'offline' (of the extra qurate[offline]), a weight file, or 'auto'.
        views: Embeddings an image: its test view, then random crops, flipped half of the time.
        cache: Folder of the cache; QURATE_CACHE or the user's cache folder unless given.
        device: auto, cpu, cuda or mps.
    """
    if views < 1:
        raise SettingError(f"views must be 1 or more, got {views}.")
    console = Console()
    with PhaseBars(console) as bars:
        bars.say("Reading the images ...")
        found = [file for place in images for file in find_images(place)]
        labels = torch.full((len(found),), -1)
        readable = verify_images(Domain("images", ImageFiles(tuple(found)), labels, ()), "skip").inputs
        assert isinstance(readable, ImageFiles)
        done = fill_cache(
            readable,
            backbone,
            find_weights(backbone, weights),
            views=views,
            cache=cache,
            device=device,
            on_progress=functools.partial(bars.show, "embedding"),
        )
    rate = f" in {done.seconds:.0f} s ({done.made / done.seconds:.0f} a second)" if done.made else ""
    _say(console, f"{done.rows} embeddings, {done.made} of them new{rate}. Cache: {done.folder}")


def export(
    run: Run,
    out: Annotated[Path | None, tyro.conf.arg(metavar="FILE")] = None,
    format: Literal["onnx"] = "onnx",
    force: bool = False,
) -> None:
    """Write the model of a run for use without qurate, and check the file against the model.

    Args:
        run: Folder of a finished run.
        out: File to write; RUN/model.onnx unless given.
        format: Format of the file.
        force: Overwrite FILE if it is there.
    """
    from qurate.runs.export import export_run  # an extra of its own

    _say(Console(), f"Written and checked: {export_run(run, out, format, force=force)}")


def check(
    source: Annotated[Path | None, tyro.conf.arg(metavar="DIR")] = None,
    labeled: Annotated[Path | None, tyro.conf.arg(metavar="DIR")] = None,
    unlabeled: Annotated[Path | None, tyro.conf.arg(metavar="DIR")] = None,
    suite: Annotated[str | None, tyro.conf.arg(metavar="NAME")] = None,
    data: Annotated[Path | None, tyro.conf.arg(metavar="DIR")] = None,
) -> None:
    """Check images alone: your own (--source, --labeled, --unlabeled), or a benchmark's (--suite, --data).

    Your own: classes, duplicates, unreadable files, imbalance, too few labels. A benchmark's: missing files, counts of
    classes and images, overlaps of its lists.

    Args:
        source: Labelled source images: class folders, a list file or a CSV table.
        labeled: The few labelled target images, likewise.
        unlabeled: Unlabelled target images: any folder, a list or a table.
        suite: digits, office31, office_home, domainnet126, or the path of a TOML file.
        data: Folder of the suite's images.
    """
    from qurate.data.catalog import load_suite
    from qurate.data.checks.images import check_data
    from qurate.data.checks.suite import check_suite

    console = Console()
    if suite is not None and source is None and labeled is None and unlabeled is None:
        report = check_suite(load_suite(suite), data)
    elif suite is None and data is None and source is not None and labeled is not None and unlabeled is not None:
        with PhaseBars(console) as bars:
            report = check_data(
                source, labeled, unlabeled, on_progress=functools.partial(bars.show, "looking at images")
            )
    else:
        raise SettingError("check needs --source, --labeled and --unlabeled together, or --suite with its --data.")
    for line in report.lines():
        _say(console, line)
    if not report.ok:
        sys.exit(1)


def _say(console: Console, line: str) -> None:
    console.print(line, markup=False, highlight=False, soft_wrap=True)


def _write(path: Path, content: bytes) -> None:
    try:
        write_atomically(path, content)
    except OSError as error:
        raise RunError(f"{path}: cannot be written ({error.strerror}). Choose another --out.") from error
