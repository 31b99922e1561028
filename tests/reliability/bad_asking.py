"""Bad inputs of the verbs that ask a person, and of their Python calls."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.reliability.damage import flipped, written
from tests.reliability.rows import BadInput

import qurate

_HUGE = "99999999999999999999"
_OUT = "--out t.csv"


def _removed(path: str) -> Callable[[], None]:
    return lambda: Path(path).unlink()


def _suggest_rows() -> list[BadInput]:
    given = {
        "no images": ("suggest run --count 0 --out t.csv", ("--count", "0")),
        "a negative count": ("suggest run --count -3 --out t.csv", ("--count", "-3")),
        "a huge count": (f"suggest run --count {_HUGE} --out t.csv", ("--count",)),
        "an unknown query strategy": (
            f"suggest run --count 2 {_OUT} --query-strategy dense",
            ("--query-strategy", "dense", "density"),
        ),
        "an empty query strategy": (f"suggest run --count 2 {_OUT} --query-strategy ''", ("--query-strategy", "empty")),
        "more than all at random": (f"suggest run --count 2 {_OUT} --random-share 1.1", ("--random-share", "1.1")),
        "less than none at random": (f"suggest run --count 2 {_OUT} --random-share -0.1", ("--random-share", "-0.1")),
        "a share that is no number": (f"suggest run --count 2 {_OUT} --random-share nan", ("--random-share", "nan")),
        "a negative seed": (f"suggest run --count 2 {_OUT} --seed -1", ("--seed", "-1")),
        "no run": (f"suggest nowhere --count 2 {_OUT}", ("nowhere", "finished run")),
        "a run that is not finished": (f"suggest begun --count 2 {_OUT}", ("begun", "finished run")),
        "a file as run": (f"suggest note.txt --count 2 {_OUT}", ("note.txt", "finished run")),
        "neither a run nor images": (f"suggest --count 2 {_OUT}", ("RUN", "--source", "--unlabeled")),
        "a run and images": (f"suggest run --source source --unlabeled unlabeled --count 2 {_OUT}", ("RUN",)),
        "a backbone beside a run": (f"suggest run --backbone fast --count 2 {_OUT}", ("--backbone",)),
        "a table that is there": ("suggest run --count 2 --out note.txt", ("note.txt", "--force")),
        "a folder as table": ("suggest run --count 2 --out source", ("source", "--out")),
        "the file of answers as table": ("suggest run --count 2 --out run/labels.csv --force", ("--out", "answers")),
        "a table below a file": ("suggest run --count 2 --out note.txt/t.csv", ("--out",)),
    }
    rows = [BadInput(f"suggest: {name}", line, says) for name, (line, says) in given.items()]
    damages: dict[str, tuple[Any, tuple[str, ...]]] = {
        "no predictions": (_removed("run/predictions.csv"), ("predictions.csv", "cannot be read")),
        "predictions without their column": (
            written("run/predictions.csv", "file\na\n"),
            ("predictions.csv", "problem"),
        ),
        "predictions that are no table": (written("run/predictions.csv", 'a,b\n"'), ("predictions.csv", "CSV")),
        "no positives": (_removed("run/positives.csv"), ("positives.csv",)),
        "a damaged model": (flipped("run/model.safetensors"), ("model.safetensors", "damaged")),
        "images that are gone": (
            written("run/predictions.csv", "file,label,probability,problem\ngone.png,blue,0.5,\n"),
            ("none of the 1", "gone.png"),
        ),
        "nothing to check": (
            written("run/positives.csv", "file,label\n"),
            ("--query-strategy", "check", "nothing to ask"),
        ),
    }
    for name, (damage, says) in damages.items():
        strategy = (
            " --query-strategy check" if name == "nothing to check" else " --random-share 0.5"
        )  # not the ready list
        rows.append(BadInput(f"suggest: {name}", f"suggest run --count 2 {_OUT}{strategy}", says, damage))
    rows.append(BadInput("parser: nothing given to suggest", "suggest", ("--count",), parser=True))
    rows.append(
        BadInput("parser: suggest with a count in words", f"suggest run --count two {_OUT}", ("two",), parser=True)
    )
    return rows


def _open_rows() -> list[BadInput]:
    given = {
        "no questions": ("open run --count 0", ("--count", "0")),
        "an unknown query strategy": ("open run --query-strategy best", ("--query-strategy", "best")),
        "a share above one": ("open run --random-share 7", ("--random-share", "7")),
        "a negative seed": ("open run --seed -4", ("--seed", "-4")),
        "a port that is none": ("open run --port 70000", ("--port", "70000")),
        "a negative port": ("open run --port -1", ("--port", "-1")),
        "no run": ("open nowhere", ("nowhere", "finished run")),
    }
    rows = [BadInput(f"open: {name}", line, says) for name, (line, says) in given.items()]
    damages: dict[str, tuple[Any, tuple[str, ...]]] = {
        "no predictions": (_removed("run/predictions.csv"), ("predictions.csv", "cannot be read")),
        "examples that are no table": (written("run/examples.csv", '"'), ("examples.csv", "Remove it")),
        "examples without their column": (written("run/examples.csv", "file,label\n"), ("examples.csv", "part")),
        "a damaged model": (flipped("run/model.safetensors"), ("model.safetensors", "damaged")),
    }
    rows += [BadInput(f"open: {name}", "open run", says, damage) for name, (damage, says) in damages.items()]
    return rows


def _python_rows() -> list[BadInput]:
    def call(**changes: Any) -> Callable[[], object]:
        return lambda: qurate.load("run").suggest(**{"count": 2, **changes})

    given: dict[str, tuple[dict[str, Any], tuple[str, ...]]] = {
        "count 0": ({"count": 0}, ("count must be",)),
        "count True": ({"count": True}, ("count must be",)),
        "count None": ({"count": None}, ("count must be",)),
        "a share above one": ({"random_share": 2}, ("random_share must be",)),
        "a share in words": ({"random_share": "half"}, ("random_share must be",)),
        "a query strategy that cannot ask": ({"query_strategy": object()}, ("query strategy must be one of",)),
        "no query strategy": ({"query_strategy": None}, ("query strategy must be one of",)),
        "images that are nowhere": ({"images": "nowhere"}, ("images must be",)),
        "a seed in words": ({"seed": "one"}, ("seed must be",)),
    }
    return [BadInput(f"model.suggest: {name}", call(**changes), says) for name, (changes, says) in given.items()]


ASKING_ROWS = (*_suggest_rows(), *_open_rows(), *_python_rows())
