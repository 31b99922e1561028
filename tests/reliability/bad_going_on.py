"""Bad inputs of runs that learn from answers: `adapt --from` and `--labels`, and their Python calls."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.reliability.damage import every, flipped, gone, said, written
from tests.reliability.rows import BadInput
from tests.reliability.world import ADAPT

import qurate

_HEAD = "id,time,file,answer,label,predicted,asked\n"
_GO_ON = "adapt --from run --out new"


def _row(file: str, label: str = "blue", answer: str = "label") -> str:
    return f"1,t,{file},{answer},{label},blue,random\n"


ANSWERED = written("run/labels.csv", _HEAD + _row("unlabeled/0-0.png") + _row("unlabeled/1-0.png", "green tea"))
"""Two sound answers about the run."""


def _all_answered() -> None:
    files = sorted(Path("unlabeled").rglob("*.png"))
    Path("run/labels.csv").write_text(_HEAD + "".join(_row(str(file)) for file in files))


def _option_rows() -> list[BadInput]:
    given = {
        "--steps": "7",
        "--rounds": "1",
        "--seed": "3",
        "--method": "ent",
        "--selector": "none",
        "--preset": "paper",
        "--train": "full",
        "--backbone": "timm/test_vit",
        "--config": "small.json",
    }
    return [
        BadInput(f"adapt --from: {option} beside it", f"{_GO_ON} {option} {value}", (option, "--from"), ANSWERED)
        for option, value in given.items()
    ]


def _command_rows() -> list[BadInput]:
    given: dict[str, tuple[str, Any, tuple[str, ...]]] = {
        "no run": ("adapt --from nowhere --out new", ANSWERED, ("nowhere", "finished run")),
        "a run that is not finished": ("adapt --from begun --out new", ANSWERED, ("begun", "finished run")),
        "a file as run": ("adapt --from note.txt --out new", ANSWERED, ("note.txt", "finished run")),
        "no answers": (_GO_ON, lambda: None, ("labels.csv", "no answers", "--labels")),
        "itself as out": ("adapt --from run --out run --force", ANSWERED, ("--out", "--from", "stays as it is")),
        "another run as out": ("adapt --from run --out half", ANSWERED, ("half", "--resume", "--force")),
        "labels that are nowhere": (f"{_GO_ON} --labels l.csv", ANSWERED, ("--labels", "l.csv")),
        "a folder as labels": (f"{_GO_ON} --labels source", ANSWERED, ("--labels", "source", "which is a folder")),
        "a text as labels": (
            f"{_GO_ON} --labels note.txt",
            ANSWERED,
            ("labels", "the columns of", "note.txt", "Name them file and label"),
        ),
        "bytes as labels": (f"{_GO_ON} --labels w.safetensors", ANSWERED, ("labels", "w.safetensors")),
        "an empty file as labels": (
            f"{_GO_ON} --labels l.csv",
            every(ANSWERED, written("l.csv", "")),
            ("l.csv has none", "Fill in"),
        ),
        "a broken table as labels": (
            f"{_GO_ON} --labels l.csv",
            every(ANSWERED, written("l.csv", "file,label\na\n")),
            ("l.csv", "row 1"),
        ),
        "answers about other images": (
            _GO_ON,
            written("run/labels.csv", _HEAD + _row("other.png")),
            ("labels.csv", "none of the 1 answer"),
        ),
        "everything answered": (_GO_ON, _all_answered, ("15 of the 15", "at least 2")),
        "images that have moved": (_GO_ON, every(ANSWERED, gone("source")), ("--source", "must be given")),
        "another backbone": (
            _GO_ON,
            every(ANSWERED, said("run/config.json", backbone_sha256="0")),
            ("backbone", "test_resnet"),
        ),
        "settings without a backbone": (
            _GO_ON,
            every(ANSWERED, said("run/config.json", backbone=None)),
            ("config.json", "damaged"),
        ),
        "settings that are no table": (_GO_ON, every(ANSWERED, written("run/config.json", "[]")), ("config.json",)),
        "no settings": (_GO_ON, every(ANSWERED, gone("run/config.json")), ("config.json",)),
        "places that are none": (
            _GO_ON,
            every(ANSWERED, said("run/config.json", places=[1])),
            ("--source", "must be given"),
        ),
        "no predictions": (_GO_ON, every(ANSWERED, gone("run/predictions.csv")), ("predictions.csv",)),
        "no positives": (_GO_ON, every(ANSWERED, gone("run/positives.csv")), ("positives.csv",)),
        "positives of no class": (
            _GO_ON,
            every(
                ANSWERED,
                written(
                    "run/positives.csv",
                    "file,label,round,reward,phi,classifier_prob,center_prob,entropy_drop\na,pig,0,,0,1,1,0\n",
                ),
            ),
            ("positives.csv", "damaged"),
        ),
        "a damaged model": (_GO_ON, every(ANSWERED, flipped("run/model.safetensors")), ("damaged",)),
        "other classes": (
            f"{_GO_ON} --source unlabeled.csv",
            every(ANSWERED, written("unlabeled.csv", "path,label\nsource/blue/0.png,blue\nsource/blue/1.png,pig\n")),
            ("classes",),
        ),
    }
    return [BadInput(f"adapt --from: {name}", line, says, damage) for name, (line, damage, says) in given.items()]


def _labels_rows() -> list[BadInput]:
    given: dict[str, tuple[str, tuple[str, ...]]] = {
        "no places": ("adapt --out new", ("--source", "--labeled", "--unlabeled", "must be given")),
        "labels alone": ("adapt --out new --labels run/labels.csv", ("--source", "must be given")),
        "labels that are nowhere": (f"{ADAPT} --labels nowhere.csv", ("--labels", "nowhere.csv")),
        "labels of another program": (f"{_GO_ON} --labels run/model.json", ("--labels", "list of tasks")),
        "one place of three": ("adapt --out new --source source", ("--labeled", "--unlabeled")),
    }
    return [BadInput(f"adapt --labels: {name}", line, says, ANSWERED) for name, (line, says) in given.items()]


def _python_rows() -> list[BadInput]:
    def call(**arguments: Any) -> Callable[[], object]:
        return lambda: qurate.adapt(**{"out": "new", "progress": False, **arguments})

    given: dict[str, tuple[Callable[[], object], tuple[str, ...]]] = {
        "nothing at all": (lambda: qurate.adapt(), ("must be given",)),
        "a number as previous": (call(previous=3), ("path of a folder", "3")),
        "an empty previous": (call(previous=""), ("path of a folder",)),
        "a number as labels": (call(previous="run", labels=3), ("labels", "int")),
        "empty labels": (call(previous="run", labels=""), ("labels", "empty")),
        "a seed beside previous": (call(previous="run", seed=1), ("`seed`", "`previous`")),
        "places of nothing": (call(previous="run", source="nowhere"), ("source", "nowhere")),
    }
    return [BadInput(f"adapt(previous): {name}", do, says, ANSWERED) for name, (do, says) in given.items()]


GOING_ON_ROWS = (*_option_rows(), *_command_rows(), *_labels_rows(), *_python_rows())
