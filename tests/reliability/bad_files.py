"""Bad inputs in files that qurate wrote itself: models, settings, checkpoints, comparisons, caches."""

from __future__ import annotations

import json

from tests.reliability.damage import (
    Damage,
    broken_images,
    copied,
    cut,
    every,
    evil_pickle,
    flipped,
    gone,
    kept,
    nothing,
    poisoned,
    put,
    said,
    written,
)
from tests.reliability.rows import BadInput
from tests.reliability.world import ADAPT, NETWORK, PLACES, QUICK

_MODEL, _ABOUT = "run/model.safetensors", "run/model.json"
_VERBS = {
    "predict": "predict run unlabeled --out p.csv",
    "evaluate": "evaluate run --labeled labeled",
    "export": "export run --out m.onnx",
}

_MODELS: dict[str, tuple[tuple[str, ...], Damage]] = {
    "cut": ((_MODEL,), cut(_MODEL)),
    "with another bit": ((_MODEL,), flipped(_MODEL)),
    "with NaN": ((_MODEL,), poisoned(_MODEL)),
    "with infinity": ((_MODEL,), poisoned(_MODEL, float("inf"))),
    "that is another": ((_MODEL,), copied("w.safetensors", _MODEL)),
    "that runs code": ((_MODEL,), evil_pickle(_MODEL)),
    "that is empty": ((_MODEL,), written(_MODEL, "")),
    "that is gone": (("model.safetensors",), gone(_MODEL)),
    "without model.json": (("model.json",), gone(_ABOUT)),
    "with model.json cut": ((_ABOUT,), cut(_ABOUT)),
    "with an empty model.json": ((_ABOUT,), written(_ABOUT, "")),
    "with a list as model.json": ((_ABOUT, "format"), written(_ABOUT, "[]")),
    "with model.json in Latin-1": ((_ABOUT,), written(_ABOUT, b'{"format": "\xe9"}')),
    "with a deeply nested model.json": ((_ABOUT,), written(_ABOUT, "[" * 100_000)),
    "of another format": ((_ABOUT, "other-9"), said(_ABOUT, format="other-9")),
    "with equal class names": ((_ABOUT, "classes"), said(_ABOUT, classes=["a", "a", "a"])),
    "with a word as classes": ((_ABOUT, "classes"), said(_ABOUT, classes="abc")),
    "with numbers as classes": ((_ABOUT, "classes"), said(_ABOUT, classes=[1, 2, 3])),
    "without classes": ((_ABOUT, "classes"), said(_ABOUT, classes=[])),
    "with a class too few": (("model.json", "classifier"), said(_ABOUT, classes=["a", "b"])),
    "with a number as network": ((_ABOUT, "network"), said(_ABOUT, network=5)),
    "of an unknown backbone": ((_ABOUT, "'nope'"), said(_ABOUT, network={"backbone": "timm/nope"})),
    "with an unknown key": ((_ABOUT, "bakbone"), said(_ABOUT, network={"bakbone": "x"})),
    "without a transform": ((_ABOUT, "transform"), said(_ABOUT, transform=None)),
    "with a negative crop": (
        (_ABOUT, "crop"),
        said(_ABOUT, transform={"resize": 32, "crop": -5, "mean": [0, 0, 0], "std": [1, 1, 1]}),
    ),
    "with a crop of a gigapixel": (
        (_ABOUT, "crop"),
        said(_ABOUT, transform={"resize": 32, "crop": 99999, "mean": [0, 0, 0], "std": [1, 1, 1]}),
    ),
    "with words as mean": (
        (_ABOUT, "mean"),
        said(_ABOUT, transform={"resize": 32, "crop": 24, "mean": ["a", "b", "c"], "std": [1, 1, 1]}),
    ),
    "with a std of zero": (
        (_ABOUT, "std"),
        said(_ABOUT, transform={"resize": 32, "crop": 24, "mean": [0, 0, 0], "std": [0, 0, 0]}),
    ),
}


def _model_rows() -> list[BadInput]:
    """Every damage to `predict`; one in four also to the other verbs that load a model."""
    rows = []
    for number, (what, (says, damage)) in enumerate(_MODELS.items()):
        for verb, line in _VERBS.items():
            if verb == "predict" or number % 4 == 0:
                rows.append(BadInput(f"{verb}: a model {what}", line, says, damage))
    rows += [
        BadInput(f"{verb}: RUN that is {what}", line.replace("run", run, 1), (run,))
        for verb, line in _VERBS.items()
        for what, run in {"nothing": "nope", "a file": "note.txt", "a folder of images": "source"}.items()
    ]
    return [
        *rows,
        BadInput(
            "adapt: --resume of a finished run, model cut",
            f"{ADAPT} --out run --resume --no-compare",
            (_MODEL,),
            cut(_MODEL),
        ),
        BadInput(
            "evaluate: a class that the model lacks",
            "evaluate run --labeled labeled",
            ("labeled", "'red'"),
            copied("labeled/blue", "labeled/red"),
        ),
        BadInput(
            "evaluate: images without a class",
            "evaluate run --labeled bad.txt",
            ("bad.txt", "class"),
            written("bad.txt", "labeled/blue/photo 0.jpg -1\n"),
        ),
    ]


def _config_rows() -> list[BadInput]:
    """Files given as --config."""
    files: dict[str, tuple[str, tuple[str, ...], Damage]] = {
        "that is not there": ("nope.json", ("nope.json",), nothing),
        "that is a folder": ("run", ("run",), nothing),
        "that is cut": ("run/config.json", ("run/config.json",), cut("run/config.json")),
        "that is a list": ("c.json", ("c.json", "table"), written("c.json", "[1, 2]")),
        "that is binary": ("w.safetensors", ("w.safetensors",), nothing),
        "that is another JSON file": ("run/model.json", ("run/model.json",), nothing),
        "with an unknown key": ("c.json", ("c.json", "sed", "seed"), written("c.json", '{"sed": 1}')),
        "with a seed below zero": ("c.json", ("c.json", "seed", "-1"), written("c.json", '{"seed": -1}')),
        "with words as steps": ("c.toml", ("c.toml", "steps"), written("c.toml", '[training]\nsteps = "many"\n')),
        "with a number as training": ("c.toml", ("c.toml", "TrainingConfig"), written("c.toml", "training = 5\n")),
        "with an unknown method": ("c.toml", ("c.toml", "tlm"), written("c.toml", '[method]\nname = "tlm"\n')),
        "with NaN as rate": (
            "c.toml",
            ("c.toml", "learning_rate"),
            written("c.toml", "[training]\nlearning_rate = nan\n"),
        ),
        "with a TOML mistake": ("c.toml", ("c.toml",), written("c.toml", "[training\n")),
        "with a deep nest": ("c.json", ("c.json",), written("c.json", '{"a":' * 100_000)),
        "with a number of 5,000 digits": ("c.json", ("c.json",), written("c.json", f'{{"seed": {"9" * 5000}}}')),
        "with a name that is a list": (
            "c.json",
            ("c.json", "name"),
            written("c.json", '{"method": {"name": ["tml"]}}'),
        ),
        "with an unknown backbone": ("c.toml", ("nope",), written("c.toml", '[network]\nbackbone = "nope"\n')),
    }
    rows = [
        BadInput(f"adapt: --config {what}", f"adapt {PLACES} --out new --config {file}", says, damage)
        for what, (file, says, damage) in files.items()
    ]
    beside = f"adapt {PLACES} --out new --config run/config.json --method tml"
    return [*rows, BadInput("adapt: --config beside --method", beside, ("--method", "--config"))]


def _resume_rows() -> list[BadInput]:
    """An interrupted run that cannot go on as asked; its files stay."""
    resume, again = f"{ADAPT} --out begun --resume", f"{ADAPT} --out half --resume"
    curves = ("begun/tensorboard/",)
    checkpoint, folds = "begun/checkpoint.safetensors", "half/comparison.safetensors"
    rows = [
        BadInput("adapt: --resume with another seed", f"{resume} --seed 1", ("seed", "--force")),
        BadInput("adapt: --resume with other images", resume, ("0.png (gone", "--force"), gone("source/blue/0.png")),
        BadInput("adapt: --resume with config.json cut", resume, ("config.json", "--force"), cut("begun/config.json")),
        BadInput(
            "adapt: --resume with a list as config.json",
            resume,
            ("begun", "--out"),
            written("begun/config.json", "[]"),
        ),
        BadInput("adapt: --resume with a number as run", resume, ("begun",), said("begun/config.json", run=5)),
    ]
    for what, damage in {
        "cut": cut(checkpoint),
        "with another bit": flipped(checkpoint),
        "with NaN": poisoned(checkpoint),
        "that is a model": copied("w.safetensors", checkpoint),
        "that runs code": evil_pickle(checkpoint),
    }.items():
        rows.append(
            BadInput(
                f"adapt: --resume with a checkpoint {what}", resume, (checkpoint, "--force"), damage, may_write=curves
            )
        )
    for what, damage in {
        "cut": cut(folds),
        "with another bit": flipped(folds),
        "with NaN": poisoned(folds),
        "that is a model": copied("w.safetensors", folds),
        "that is text": written(folds, '[{"adapted": [true], "baseline": []}]'),
        "that runs code": evil_pickle(folds),
    }.items():
        line = f"adapt: --resume with a comparison {what}"
        rows.append(BadInput(line, again, ("comparison",), damage, code=0, may_write=("half/",)))
    return rows


def _force_rows() -> list[BadInput]:
    """The old run stays until the new one is whole."""
    again = f"adapt {PLACES} {QUICK} --out run --force"
    given: dict[str, tuple[str, tuple[str, ...], Damage]] = {
        "a wrong --source": ("--source sorce", ("sorce",), nothing),
        "a wrong --labeled": ("--labeled nope", ("nope",), nothing),
        "missing weights": ("--weights nope.pth", ("nope.pth",), nothing),
        "a wrong backbone": ("--backbone timm/nope", ("timm", "nope"), nothing),
        "a bad seed": ("--seed -1", ("--seed",), nothing),
        "broken images": ("", ("unlabeled",), broken_images("unlabeled")),
        "a class too many": ("", ("red",), copied("labeled/blue", "labeled/red")),
        "a missing config": (f"--config {json.dumps('nope.json')}", ("nope.json",), nothing),
    }
    rows = []
    for what, (words, says, damage) in given.items():
        line = again if "--config" not in words else f"adapt {PLACES} --out run --force"
        rows.append(BadInput(f"adapt: --force and {what}", f"{line} {words}", says, every(damage)))
    everything_broken = every(kept("unlabeled", "0-0.png"), put("run/config.json", "qurate", "qurate"))
    rows.append(BadInput("adapt: --force and one unlabelled image", again, ("two",), everything_broken))
    return rows


def _cache_rows() -> list[BadInput]:
    """A cache that cannot be used is said, and the work goes on without it."""
    predict, embed = "predict run unlabeled --out p.csv", f"embed source {NETWORK}"
    out = {"code": 0, "may_write": ("p.csv",)}
    return [
        BadInput("predict: a cache that is a file", predict, ("cache", "note.txt"), cache="note.txt", **out),  # type: ignore[arg-type]
        BadInput("predict: a cache below a file", predict, ("cache",), cache="note.txt/c", **out),  # type: ignore[arg-type]
        BadInput("predict: a cache on no disk", predict, ("cache",), cache="/proc/qurate", **out),  # type: ignore[arg-type]
        BadInput("embed: a cache on no disk", f"{embed} --cache /proc/qurate", ("--cache", "/proc/qurate")),
        BadInput("embed: a cache below a file", f"{embed} --cache note.txt/c", ("--cache",)),
    ]


FILE_ROWS = (*_model_rows(), *_config_rows(), *_resume_rows(), *_force_rows(), *_cache_rows())
