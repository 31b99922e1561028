"""Bad inputs on the command line: unknown verbs and options, words, numbers, and places to write."""

from __future__ import annotations

from tests.own_images import BACKBONE
from tests.reliability.damage import (
    Damage,
    copied,
    every,
    evil_pickle,
    flipped,
    linked,
    moved,
    nothing,
    poisoned,
    said,
    written,
)
from tests.reliability.rows import BadInput
from tests.reliability.world import ADAPT, GRID, NETWORK, PLACES, QUICK

_HUGE = "99999999999999999999"
_LONG = "x" * 300


def _parser_rows() -> list[BadInput]:
    given = {
        "unknown verb": ("adopt", "adopt"),
        "unknown option": (f"{ADAPT} --sorce source", "--sorce"),
        "nothing given to adapt": ("adapt", "--out"),
        "nothing given to predict": ("predict", "RUN"),
        "nothing given to evaluate": ("evaluate run", "--labeled"),
        "nothing given to export": ("export", "RUN"),
        "nothing given to benchmark": ("benchmark", "--suite"),
        "nothing given to report": ("report", "DIR"),
        "option without a value": (f"{ADAPT} --steps", "--steps"),
        "unknown device": (f"{ADAPT} --device tpu", "tpu"),
        "unknown preset": (f"{ADAPT} --preset mine", "mine"),
        "unknown train": (f"{ADAPT} --train half", "half"),
        "unknown missing": (f"{ADAPT} --missing ignore", "ignore"),
        "steps in words": (f"{ADAPT} --steps ten", "ten"),
        "steps with a fraction": (f"{ADAPT} --steps 1.5", "1.5"),
        "minutes in words": (f"{ADAPT} --minutes twenty", "twenty"),
        "seed in words": (f"{ADAPT} --seed none", "none"),
        "rounds as inf": (f"{ADAPT} --rounds inf", "inf"),
        "unknown format of export": ("export run --format tflite", "tflite"),
        "unknown protocol": (f"{GRID} --out new --protocol ours", "ours"),
        "image size in words": (f"{ADAPT} --image-size small", "small"),
        "unknown pooling": (f"{ADAPT} --pooling max", "max"),
        "unknown precision": (f"{ADAPT} --precision 8", "8"),
        "source weights in words": (f"{ADAPT} --source source labeled --source-weights best", "best"),
        "unknown strategy": (f"{ADAPT} --strategy fsdp", "fsdp"),
        "a word after backbones": ("backbones all", "all"),
        "processes in words": (f"{GRID} --out new --processes all", "all"),
        "demo with a seed in words": ("demo --seed x --out new", "--seed"),
        "words after version": ("--version please", "please"),
    }
    return [BadInput(f"parser: {name}", line, (says,), parser=True) for name, (line, says) in given.items()]


def _number_rows() -> list[BadInput]:
    bad = {
        "--seed": ("-1", _HUGE, "4294967296"),
        "--steps": ("0", "-5", _HUGE),
        "--rounds": ("0", "-1", _HUGE),
        "--image-size": ("0", "-1", _HUGE),
        "--devices": ("0", "-1", _HUGE),
        "--num-nodes": ("0", "-1"),
        "--workers": ("-1", _HUGE),
        "--micro-batch": ("0", "-1"),
        "--checkpoint-steps": ("0", _HUGE),
        "--checkpoint-minutes": ("-1", "nan", "inf"),
        "--minutes": ("0", "-1", "nan", "inf", "1000000"),
    }
    rows = [
        BadInput(f"adapt: {option} {value}", f"{ADAPT} {option} {value}", (option, value))
        for option, values in bad.items()
        for value in values
    ]
    rows += [
        BadInput(f"adapt: {line}", f"{ADAPT} {line}", says)
        for line, says in (
            ("--source-weights 1 2", ("--source-weights", "one is given")),
            ("--source", ("--source", "got none")),
            ("--source source source", ("--source", "given twice")),
            ("--source source nowhere", ("--source", "nowhere", "does not exist")),
            ("--source source labeled --source-weights 1", ("--source-weights", "each of the 2 sources")),
            ("--source source labeled --source-weights 1 0", ("--source-weights", "positive", "0.0")),
            ("--source source labeled --source-weights 1 nan", ("--source-weights", "finite")),
            ("--source source labeled --source-weights -1 1", ("--source-weights", "positive", "-1")),
            ("--source source source.csv", ("--source", "two of the sources")),
        )
    ]
    rows += [
        BadInput(f"adapt: --prepare {what}", f"{ADAPT} {line}", says)
        for what, line, says in (
            ("with the head", "--prepare arrays", ("--prepare", "--train full")),
            ("that is a file", "--train full --prepare note.txt", ("--prepare", "note.txt")),
        )
    ]
    rows += [
        BadInput(f"adapt: --minutes beside {line}", f"{ADAPT} --minutes 5 {line}", ("--minutes", says))
        for line, says in (
            ("--train full", "--train full"),
            ("--preset paper", "--preset paper"),
            ("--devices 2", "--devices"),
        )
    ]
    rows.append(BadInput("adapt: --num-nodes 2 alone", f"{ADAPT} --num-nodes 2", ("--num-nodes", "torchrun")))
    rows += [
        BadInput(f"benchmark: {line}", f"{GRID} --out new {line}", says)
        for line, says in (
            ("--devices 0", ("--devices", "0")),
            ("--workers -1", ("--workers", "-1")),
            ("--cell-gpus 1", ("--cell-gpus", "--ray")),
            ("--devices 2 --cell-gpus 1 --ray local", ("--cell-gpus", "--devices")),
        )
    ]
    rows += [BadInput(f"demo: --seed {n}", f"demo --out new --seed {n}", ("--seed", n)) for n in ("-1", _HUGE)]
    return rows


_FROM_MODEL = "adapt --from-model run --labeled labeled --unlabeled unlabeled --device cpu --out new"


def _model_rows() -> list[BadInput]:
    """A saved model in place of the source."""
    beside = {
        "--source source": "--source",
        "--from run": "--from",
        "--backbone timm/test_vit": "--backbone",
        "--weights w.safetensors": "--weights",
        "--image-size 64": "--image-size",
        "--pooling mean": "--pooling",
        "--source-weights learned": "--source-weights",
        "--train full": "--train full",
        "--minutes 5": "--minutes",
        "--config whole.json": "--config",
    }
    rows = [
        BadInput(f"adapt: --from-model beside {words}", f"{_FROM_MODEL} {words}", ("--from-model", says))
        for words, says in beside.items()
    ]
    given: dict[str, tuple[str, tuple[str, ...], Damage]] = {
        "nowhere": ("nowhere", ("nowhere", "finished run"), nothing),
        "a file": ("note.txt", ("note.txt", "finished run"), nothing),
        "images": ("source", ("source", "finished run"), nothing),
        "unfinished": ("begun", ("begun", "unfinished run"), nothing),
        "empty": ("''", ("--from-model", "empty"), nothing),
        "of an earlier version": (
            "run",
            ("--from-model", "statistics", "earlier version"),
            said("run/model.json", source_statistics=None),
        ),
        "with statistics of another kind": (
            "run",
            ("run/model.json", "source_statistics"),
            said("run/model.json", source_statistics={"images": "many"}),
        ),
        "damaged": ("run", ("run/model.safetensors", "damaged"), flipped("run/model.safetensors")),
        "of other classes": ("run", ("only 'labeled' has 'violet'",), moved("labeled/blue", "labeled/violet")),
    }
    line = _FROM_MODEL.replace("--from-model run", "--from-model {}")
    rows += [
        BadInput(f"adapt: --from-model is {what}", line.format(to), says, damage)
        for what, (to, says, damage) in given.items()
    ]
    return rows


def _word_rows() -> list[BadInput]:
    given = {
        "unknown method": ("--method tlm", ("must be one of", "tlm", "tml")),
        "empty method": ("--method ''", ("--method", "empty")),
        "unknown selector": ("--selector best", ("must be one of", "best")),
        "oracle with own images": ("--selector oracle", ("must be one of", "oracle")),
        "preset paper with a rule": ("--preset paper --selector balanced", ("preset", "paper", "balanced")),
        "a pair and another selector": ("--method TML_SPL --selector dqn", ("TML_SPL", "selector", "dqn")),
        "a very long method": (f"--method {'x' * 5000}", ("must be one of",)),
        "backbone of no library": ("--backbone resnet", ("backbone", "'resnet'", "timm/NAME.TAG")),
        "backbone that timm lacks": ("--backbone timm/no_such_net", ("no_such_net",)),
        "backbone for embeddings": ("--backbone none", ("ackbone", "'none'", "timm/NAME.TAG")),
        "backbone for digits": ("--backbone digits", ("ackbone", "'digits'", "timm/NAME.TAG")),
        "empty backbone": ("--backbone ''", ("--backbone",)),
        "a timm backbone without name": ("--backbone timm/", ("timm", "model")),
        "weights that are not there": ("--weights nope.safetensors", ("nope.safetensors", "weight")),
        "weights that are a folder": ("--weights source", ("source", "weight")),
        "weights that are text": ("--weights note.txt", ("note.txt",)),
        "empty weights": ("--weights ''", ("--weights",)),
        "weights none for a frozen backbone": ("--weights none", ("--weights", "none")),
        "offline weights of another backbone": ("--weights offline", ("offline", "timm/tf_efficientnet_lite0")),
        "weights of another network": ("--weights run/model.safetensors", ("run/model.safetensors",)),
        "cuda where there is none": ("--device cuda", ("--device", "cuda")),
        "mps where there is none": ("--device mps", ("--device", "mps")),
        "resume and force at once": ("--out begun --resume --force", ("--resume", "--force")),
    }
    rows = [BadInput(f"adapt: {name}", f"{ADAPT} {words}", says) for name, (words, says) in given.items()]
    rows += [
        BadInput("adapt: weights that run code", f"{ADAPT} --weights evil.pth", ("evil.pth",), evil_pickle("evil.pth")),
        BadInput(
            "adapt: weights that are not numbers",
            f"{ADAPT} --weights nan.safetensors",
            ("nan.safetensors", "finite"),
            every(copied("w.safetensors", "nan.safetensors"), poisoned("nan.safetensors")),
        ),
        BadInput(
            "embed: unknown backbone", "embed source --backbone nope --cache c", ("ackbone", "'nope'", "timm/NAME.TAG")
        ),
        BadInput("embed: missing weights", f"embed source --backbone {BACKBONE} --weights nope.pth", ("nope.pth",)),
        BadInput("embed: --ray at no address", f"embed source {NETWORK} --ray nowhere", ("--ray", "nowhere")),
        BadInput("embed: cuda where there is none", f"embed source {NETWORK} --device cuda", ("--device", "cuda")),
    ]
    return rows


_WRITES = {
    "adapt": f"adapt {PLACES} {QUICK} --out {{}}",
    "predict": "predict run unlabeled --out {}",
    "evaluate": "evaluate run --labeled labeled --confusion {}",
    "export": "export run --out {}",
    "benchmark": f"{GRID} --out {{}}",
    "report": "report grid --out {}",
    "demo": "demo --out {}",
}
_TO_FOLDER = ("adapt", "benchmark", "report", "demo")


def _out_rows() -> list[BadInput]:
    """Places where nothing can or should be written."""
    rows = []
    for verb, line in _WRITES.items():
        option = "--confusion" if verb == "evaluate" else "--out"
        places = {
            "the empty word": "''",
            "below a file": "note.txt/new",
            "on no disk": "/proc/qurate/new",
            "too long a name": _LONG,
        }
        places["a file" if verb in _TO_FOLDER else "a folder"] = "note.txt" if verb in _TO_FOLDER else "empty"
        rows += [BadInput(f"{verb}: {option} is {what}", line.format(to), (option,)) for what, to in places.items()]
    for verb in ("predict", "evaluate", "export"):
        option = "--confusion" if verb == "evaluate" else "--out"
        rows.append(BadInput(f"{verb}: {option} is there", _WRITES[verb].format("note.txt"), ("note.txt", "--force")))
    for format in ("label-studio", "folders"):
        line = f"export run --format {format}"
        places = {"below a file": "note.txt/new", "a file": "note.txt", "too long a name": _LONG, "full": "source"}
        for what, to in places.items():
            rows.append(BadInput(f"export: {format} to {what}", f"{line} --out {to}", ("--out",)))
        rows.append(BadInput(f"export: {format} to a folder by force", f"{line} --out source --force", ("not empty",)))
        rows.append(BadInput(f"export: {format} without a place", line, ("--out",)))
    rows.append(BadInput("export: --copy of a model", "export run --copy", ("--copy",)))
    return rows


def _claim_rows() -> list[BadInput]:
    """Folders that belong to something else."""
    foreign = written("theirs/config.json", '{"model_type": "bert"}')
    return [
        BadInput("adapt: --out holds a finished run", f"{ADAPT} --out run", ("finished run", "--force")),
        BadInput("adapt: --out holds a begun run", f"{ADAPT} --out begun", ("unfinished run", "--resume")),
        BadInput("adapt: --out holds a run without comparison", f"{ADAPT} --out half", ("not finished", "--resume")),
        BadInput("adapt: --out is the folder of the images", f"{ADAPT} --out source", ("not empty", "--out")),
        BadInput("adapt: --out is here", f"{ADAPT} --out .", ("not empty", "--out")),
        BadInput("adapt: --out holds a benchmark", f"{ADAPT} --out grid", ("not empty", "--out")),
        BadInput("adapt: --out holds a foreign model", f"{ADAPT} --out theirs --force", ("--out",), foreign),
        BadInput("adapt: --out is a link to nothing", f"{ADAPT} --out l", ("--out",), linked("l", "nowhere/at/all")),
        BadInput(
            "benchmark: --out holds someone's results.csv",
            f"{GRID} --out theirs",
            ("results.csv", "--out"),
            written("theirs/results.csv", "a,b\n1,2\n"),
        ),
        BadInput(
            "demo: --out holds results",
            "demo --out theirs",
            ("results.csv", "--force"),
            written("theirs/results.csv", ""),
        ),
        BadInput("demo: --out holds a benchmark", "demo --out grid", ("results.csv", "--force")),
    ]


def _fresh_rows() -> list[BadInput]:
    """As a person types them, in a process of its own."""
    return [
        BadInput("process: adapt --seed -1", f"{ADAPT} --seed -1", ("--seed", "-1"), fresh=True),
        BadInput("process: adapt of nothing", f"{ADAPT} --source nope", ("--source", "nope"), fresh=True),
        BadInput("process: benchmark --processes -1", f"{GRID} --out new --processes -1", ("--processes",), fresh=True),
        BadInput("process: report of nothing", "report nope", ("nope",), fresh=True),
        BadInput("process: check of one word", "check --source source", ("--labeled",), fresh=True),
    ]


WORD_ROWS = (
    *_parser_rows(),
    *_number_rows(),
    *_model_rows(),
    *_word_rows(),
    *_out_rows(),
    *_claim_rows(),
    *_fresh_rows(),
)
