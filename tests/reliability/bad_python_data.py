"""Bad inputs to the Python API: domains, splits and `fit`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from tests.own_images import BACKBONE
from tests.reliability.damage import Damage, every, nothing, written
from tests.reliability.rows import BadInput

_Cases = dict[str, tuple[Callable[[], object], tuple[str, ...]]]


def _rows(cases: _Cases, damage: Damage = nothing) -> list[BadInput]:
    return [BadInput(name, call, says, damage) for name, (call, says) in cases.items()]


def _reader_rows() -> list[BadInput]:
    import qurate

    table = every(
        written("t.csv", "path,label\nsource/blue/0.png,blue\n"), written("l.txt", "source/blue/0.png blue\n")
    )

    def read(function: Callable[..., Any], *given: Any, **more: Any) -> Callable[[], object]:
        return lambda: function(*given, **more)

    folder, lists, tables, mme = qurate.read_folder, qurate.read_list, qurate.read_table, qurate.read_mme_split
    return _rows(
        {
            "read_folder: None": (read(folder, None), ("path",)),
            "read_folder: a number": (read(folder, 5), ("path",)),
            "read_folder: nothing there": (read(folder, "nope"), ("nope",)),
            "read_folder: a file": (read(folder, "note.txt"), ("note.txt",)),
            "read_folder: the empty word": (read(folder, ""), ("path",)),
            "read_folder: NUL": (read(folder, "a\0b"), ("path",)),
            "read_list: None": (read(lists, None, "."), ("path",)),
            "read_list: root None": (read(lists, "l.txt", None), ("root",)),
            "read_list: nothing there": (read(lists, "nope.txt", "."), ("nope.txt",)),
            "read_list: a folder": (read(lists, "source", "."), ("source",)),
            "read_list: another root": (read(tables, "source.csv", "source"), ("source.csv", "relative to")),
            "read_table: None": (read(tables, None, "."), ("path",)),
            "read_table: a missing column": (
                read(tables, "t.csv", ".", label_column="class"),
                ("t.csv", "'class'"),
            ),
            "read_table: a missing path column": (read(tables, "t.csv", ".", path_column="x"), ("t.csv", "'x'")),
            "read_table: a number as column": (read(tables, "t.csv", ".", path_column=5), ("t.csv", "5")),
            "read_table: a folder": (read(tables, "source", "."), ("source",)),
            "read_mme_split: nothing there": (read(mme, "nope", "a", "b", 3), ("nope",)),
            "read_mme_split: one domain": (read(mme, ".", "a", "a", 3), ("differ",)),
            "read_mme_split: protocol": (read(mme, ".", "a", "b", 3, "drawn"), ("protocol", "drawn")),
            "read_mme_split: None": (read(mme, None, "a", "b", 3), ("root",)),
            "read_mme_split: words as shots": (read(mme, ".", "a", "b", "x"), ("shots",)),
        },
        table,
    )


def _array_rows() -> list[BadInput]:
    import qurate

    inputs = np.zeros((4, 2))

    def make(*given: Any, **more: Any) -> Callable[[], object]:
        return lambda: qurate.from_arrays(*given, **more)

    return _rows(
        {
            "from_arrays: None": (make(None, [0, 1]), ("inputs",)),
            "from_arrays: a number": (make(5.0, [0]), ("inputs",)),
            "from_arrays: words": (make(["a", "b"], [0, 1]), ("inputs",)),
            "from_arrays: ragged": (make([[1], [1, 2]], [0, 1]), ("inputs",)),
            "from_arrays: NaN": (make(inputs * np.nan, [0] * 4), ("inputs", "finite")),
            "from_arrays: objects": (make(np.array([object()] * 4), [0] * 4), ("inputs",)),
            "from_arrays: too few labels": (make(inputs, [0, 1]), ("labels", "(4,)")),
            "from_arrays: labels in two dimensions": (make(inputs, np.zeros((4, 1), int)), ("labels", "(4,)")),
            "from_arrays: fractions as labels": (make(inputs, [0.5] * 4), ("labels",)),
            "from_arrays: None as a label": (make(inputs, [None, "a", "b", "c"]), ("labels",)),
            "from_arrays: a label of -2": (make(inputs, [-2, 0, 1, 1]), ("-2",)),
            "from_arrays: a label beyond the classes": (make(inputs, [0, 1, 2, 3], classes=["a", "b"]), ("3",)),
            "from_arrays: a name beyond the classes": (make(inputs, list("abcd"), classes=["a", "b"]), ("c",)),
            "from_arrays: equal classes": (make(inputs, [0, 1, 0, 1], classes=["a", "a"]), ("differ",)),
            "from_arrays: a number as classes": (make(inputs, [0, 1, 0, 1], classes=5), ("classes",)),
            "from_arrays: ragged labels": (make(inputs, [[0], [0, 1], 0, 1]), ("labels",)),
        }
    )


def _split_rows() -> list[BadInput]:
    import qurate

    def digits(**given: Any) -> Callable[[], object]:
        return lambda: qurate.digits_split(**{"seed": 0, "source_per_class": 2, **given})

    numbers: dict[str, tuple[Any, ...]] = {
        "seed": (-1, 1.5, "x", None, True),
        "shots": (0, -1, 1000, "3", 1.5),
        "source_per_class": (0, "x", 1.5),
        "validation_shots": (-1, 1000, "x"),
    }
    rows = [
        BadInput(f"digits_split: {argument}={value!r}", digits(**{argument: value}), (argument,))
        for argument, values in numbers.items()
        for value in values
    ]

    def target(**given: Any) -> Callable[[], object]:
        def call() -> object:
            domain = qurate.read_folder("source")
            return qurate.split_target(**{"source": domain, "target": domain, "shots": 1, "seed": 0, **given})

        return call

    for argument, values in {"seed": (-1, "x", 1.5), "shots": (0, "x", None), "validation_shots": (-1, 0.5)}.items():
        for value in values:
            call = target(**{argument: value})
            rows.append(BadInput(f"split_target: {argument}={value!r}", call, (argument,)))
    for argument in ("source", "target"):
        for value in (None, "source", 5):
            call = target(**{argument: value})
            rows.append(BadInput(f"split_target: {argument}={value!r}", call, (argument,)))
    more: _Cases = {
        "split_parts: None": (lambda: qurate.split_parts(None, None, None), ("source",)),  # type: ignore[arg-type]
        "split_parts: arrays and files": (lambda: _parts_of(arrays=True), ("alike",)),
        "split_parts: unlabelled source": (lambda: _parts_of(labels=None), ("source", "two classes")),
        "Labeled: lengths": (lambda: qurate.Labeled(torch.zeros(3, 2), torch.zeros(2, dtype=torch.int64)), ("3", "2")),
        "Labeled: fractions": (lambda: qurate.Labeled(torch.zeros(3, 2), torch.zeros(3)), ("int64",)),
        "Labeled: lists": (lambda: qurate.Labeled([[1.0]], [0]), ("inputs",)),  # type: ignore[arg-type]
        "Labeled: a label of -1": (lambda: qurate.Labeled(torch.zeros(1, 2), torch.tensor([-1])), ("negative",)),
        "Unlabeled: a list": (lambda: qurate.Unlabeled([[1.0]]), ("inputs",)),  # type: ignore[arg-type]
        "Domain: a list": (lambda: qurate.Domain("d", [[1.0]], [0], ("a",)), ("inputs",)),  # type: ignore[arg-type]
        "SealedLabels: a list": (lambda: qurate.SealedLabels([0]), ("labels",)),  # type: ignore[arg-type]
        "Split: a label beyond the classes": (lambda: _split(label=7), ("7",)),
        "embed_split: None": (lambda: qurate.embed_split(None, BACKBONE), ("split",)),  # type: ignore[arg-type]
        "embed_split: no such backbone": (lambda: qurate.embed_split(_files(), "nope"), ("nope",)),
        "embed_split: no such weights": (lambda: qurate.embed_split(_files(), BACKBONE, "nope.pth"), ("nope.pth",)),
        "embed_split: no images a batch": (
            lambda: qurate.embed_split(_files(), BACKBONE, "w.safetensors", batch_size=0),
            ("batch_size",),
        ),
    }
    return [*rows, *_rows(more)]


def _parts_of(arrays: bool = False, labels: Any = (0, 1)) -> object:
    import qurate

    of_arrays = qurate.from_arrays(np.zeros((2, 3)), labels)
    files = qurate.read_folder("source")
    unlabeled = qurate.from_arrays(np.zeros((2, 3)), None)
    return qurate.split_parts(files if arrays else of_arrays, files if arrays else of_arrays, unlabeled)


def _files() -> Any:
    import qurate

    files = qurate.read_folder("source")
    return qurate.split_parts(files, files, files)


def _split(*, unlabeled: int = 6, width: int = 3, value: float = 0.0, label: int = 1, classes: Any = ("a", "b")) -> Any:
    import qurate

    labels = torch.tensor([0, label, 0, 1])
    source = torch.full((4, 3), value) + torch.arange(4.0).unsqueeze(1)
    rest = torch.arange(unlabeled * width, dtype=torch.float32).view(unlabeled, width)
    target = qurate.Labeled(torch.ones(4, 3), torch.tensor([0, 1, 0, 1]))
    return qurate.Split(classes, qurate.Labeled(source, labels), target, qurate.Unlabeled(rest))


def _fit_rows() -> list[BadInput]:
    import qurate

    def fit(split: Any = None, config: Any = None, selector: str = "none", **more: Any) -> Callable[[], object]:
        def call() -> object:
            run = qurate.make_config("tml", selector, steps=2, rounds=1, device="cpu") if config is None else config
            return qurate.fit(_split() if split is None else split() if callable(split) else split, run, **more)

        return call

    digits = qurate.make_config("ent", "none", steps=2, network=qurate.NetworkConfig(backbone="digits"), device="cpu")
    return _rows(
        {
            "fit: a number as split": (fit(split=5), ("split",)),
            "fit: a folder as split": (fit(split="source"), ("split",)),
            "fit: a word as config": (fit(config="tml"), ("config",)),
            "fit: a table as config": (fit(config={"seed": 0}), ("config",)),
            "fit: a word as selector": (fit(selector="none", **{"callbacks": (), "pretrained": 5}), ("pretrained",)),
            "fit: a function as callback": (fit(callbacks=(print,)), ("callbacks", "Callback")),
            "fit: None as callbacks": (fit(callbacks=None), ("callbacks",)),
            "fit: a word as checkpoint": (fit(checkpoint="run"), ("checkpoint",)),
            "fit: no unlabelled row": (fit(split=lambda: _split(unlabeled=0)), ("unlabeled is empty",)),
            "fit: another width in the target": (fit(split=lambda: _split(width=5)), ("target_unlabeled", "(6, 5)")),
            "fit: NaN in the source": (fit(split=lambda: _split(value=float("nan"))), ("finite",)),
            "fit: vectors for a network of images": (fit(config=digits), ("source", "(4, 3)")),
            "fit: image files without a backbone": (fit(split=_files), ("backbone",)),
            "evaluate: None": (lambda: qurate.evaluate(None, None), ("part",)),  # type: ignore[arg-type]
            "predict_probabilities: None": (lambda: qurate.predict_probabilities(None, None), ("method",)),  # type: ignore[arg-type]
        }
    )


PYTHON_DATA_ROWS = (*_reader_rows(), *_array_rows(), *_split_rows(), *_fit_rows())
