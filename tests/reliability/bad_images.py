"""Bad inputs in place of images: paths, folders, lists and tables, given to every verb that reads them."""

from __future__ import annotations

import dataclasses

from tests.own_images import BACKBONE
from tests.reliability.damage import (
    Damage,
    bomb,
    broken_images,
    copied,
    cut,
    every,
    gone,
    kept,
    linked,
    nothing,
    piped,
    put,
    written,
)
from tests.reliability.rows import BadInput
from tests.reliability.world import ADAPT, NETWORK, PLACES

_ONE_IMAGE = every(gone("unlabeled/deep"), kept("unlabeled", "0-0.png"))
_FLAT = "flat/0.png"
_TWICE = "path,label\nsource/blue/0.png,blue\n{},green tea\nsource/été/0.png,été\nsource/green tea/0.png,green tea\n"
_TWICE_SAME = "path\nunlabeled/0-0.png\n./unlabeled/0-0.png\nunlabeled/../unlabeled/0-0.png\n"

_Bad = dict[str, tuple[str, tuple[str, ...], Damage]]

_LABELED: _Bad = {
    # what, the words of the place, what must be said, the damage
    "that is not there": ("nope", ("nope",), nothing),
    "that is an empty folder": ("empty", ("empty",), nothing),
    "without class folders": ("flat", ("flat", "class"), copied("source/blue/0.png", _FLAT)),
    "that is an image": ("source/blue/0.png", ("0.png", "image"), nothing),
    "that is JSON": ("run/config.json", ("run/config.json",), nothing),
    "that is binary": ("w.safetensors", ("w.safetensors",), nothing),
    "that is no file": ("/dev/null", ("/dev/null",), nothing),
    "that is a pipe": ("pipe", ("pipe",), piped("pipe")),
    "that is a link to itself": ("loop", ("loop",), linked("loop", "loop")),
    "that is an empty list": ("bad.txt", ("bad.txt",), written("bad.txt", "\n\n")),
    "that is a list without classes": ("unlabeled.txt", ("unlabeled.txt", "line 1"), nothing),
    "that is a list of missing files": ("bad.txt", ("bad.txt", "nope.png"), written("bad.txt", "nope.png blue\n")),
    "that is a list of folders": ("bad.txt", ("bad.txt", "source/blue"), written("bad.txt", "source/blue blue\n")),
    "that is a list in Latin-1": (
        "bad.txt",
        ("bad.txt", "UTF-8"),
        written("bad.txt", "x.png \xe9t\xe9\n".encode("latin-1")),
    ),
    "that is a list with a class -2": ("bad.txt", ("bad.txt", "-2"), written("bad.txt", "source/blue/0.png -2\n")),
    "that is an empty table": ("bad.csv", ("bad.csv",), written("bad.csv", "")),
    "that is a table of a header": ("bad.csv", ("bad.csv",), written("bad.csv", "path,label\n")),
    "that is a table without path": ("bad.csv", ("bad.csv", "path"), written("bad.csv", "image,label\na.png,blue\n")),
    "that is a table without label": ("bad.csv", ("bad.csv", "label"), written("bad.csv", "path\na.png\n")),
    "that is a table with a long row": (
        "source.csv",
        ("source.csv",),
        put("source.csv", "0.png,blue", "0.png,blue,x,y"),
    ),
    "that is a table with an empty path": (
        "source.csv",
        ("source.csv", "row"),
        put("source.csv", "source/blue/0.png", ""),
    ),
    "that is a table in UTF-16": ("bad.csv", ("bad.csv", "UTF-8"), written("bad.csv", "path,label\n".encode("utf-16"))),
    "that is a table with tabs": ("bad.tsv", ("bad.tsv", "tabs"), written("bad.tsv", "path\tlabel\na.png\tblue\n")),
    "that is an archive": ("bad.zip", ("bad.zip", "archive"), written("bad.zip", "PK\3\4\0")),
    "that is a table with NUL": ("bad.csv", ("bad.csv",), written("bad.csv", "path,label\na\0b.png,blue\n")),
    "that is a table with an open quote": ("bad.csv", ("bad.csv",), written("bad.csv", 'path,label\n"a.png,blue\n')),
    "that is a table with a column twice": (
        "bad.csv",
        ("bad.csv", "path"),
        written("bad.csv", "path,path,label\na,b,c\n"),
    ),
    "that has a file under two classes": (
        *("bad.csv", ("bad.csv", "one class", "0.png")),
        written("bad.csv", _TWICE.format("source/blue/0.png")),
    ),
    "that has a file under two classes by two spellings": (
        *("bad.csv", ("bad.csv", "one class", "0.png")),
        written("bad.csv", _TWICE.format("source/../source/blue/0.png")),
    ),
    "with a very long path": ("bad.csv", ("bad.csv",), written("bad.csv", f"path,label\n{'x' * 5000}.png,blue\n")),
    "of broken images": ("source", ("source",), broken_images("source")),
}
"""Bad labelled images."""

_UNLABELED: _Bad = {
    "that is not there": ("nope", ("nope",), nothing),
    "that is an empty folder": ("empty", ("empty",), nothing),
    "that is an image": ("source/blue/0.png", ("0.png", "image"), nothing),
    "that is a pipe": ("pipe", ("pipe",), piped("pipe")),
    "of one image": ("unlabeled", ("two", "unlabeled"), _ONE_IMAGE),
    "that is the labelled part": ("labeled", ("labeled", "two"), nothing),
    "of broken images": ("unlabeled", ("unlabeled",), broken_images("unlabeled")),
    "that is an empty list": ("bad.txt", ("bad.txt",), written("bad.txt", "")),
    "that is a list of missing files": ("bad.txt", ("bad.txt", "nope.png"), written("bad.txt", "nope.png\n")),
    "that is a table with a long row": ("bad.csv", ("bad.csv",), written("bad.csv", "path\na.png\nb.png,c,d\n")),
    "that is a table of one image in three spellings": ("bad.csv", ("two",), written("bad.csv", _TWICE_SAME)),
    "that is a table without path": ("bad.csv", ("bad.csv", "path"), written("bad.csv", "image\na.png\n")),
    "that is a list in Latin-1": ("bad.txt", ("bad.txt", "UTF-8"), written("bad.txt", b"\xe9.png\n")),
}
"""Bad unlabelled images."""

_BOTH: dict[str, tuple[tuple[str, ...], Damage]] = {
    "source of one class": (("source", "two classes"), every(kept("source", "blue"), kept("labeled", "blue"))),
    "labelled target without a class": (("blue",), gone("labeled/blue")),
    "labelled target with another class": (("red",), copied("labeled/blue", "labeled/red")),
    "classes in another spelling": (
        ("Blue", "blue"),
        every(copied("labeled/blue", "labeled/Blue"), gone("labeled/blue")),
    ),
    "a class of broken images": (("blue",), broken_images("source/blue")),
    "a class without images": (("empty class",), written("source/empty class/note.txt", "no image")),
    "no common class": (
        ("'x'",),
        every(kept("labeled", "blue"), copied("labeled/blue", "labeled/x"), gone("labeled/blue")),
    ),
}
"""Parts that do not fit each other."""


def _place_rows() -> list[BadInput]:
    """Each bad place given to `adapt`, and to `check`, which finds what `adapt` refuses."""
    rows = []
    for part, table in (("source", _LABELED), ("unlabeled", _UNLABELED)):
        for what, (place, says, damage) in table.items():
            rows.append(BadInput(f"adapt: --{part} {what}", f"{ADAPT} --{part} {place}", says, damage))
            checked = f"check {PLACES} --{part} {place}"
            rows.append(BadInput(f"check: --{part} {what}", checked, (*says, "Problem:"), damage, code=1))
    for what, (says, damage) in _BOTH.items():
        rows.append(BadInput(f"adapt: {what}", ADAPT, says, damage))
        rows.append(BadInput(f"check: {what}", f"check {PLACES}", (*says, "Problem:"), damage, code=1))
    some = (
        "that is not there",
        "that is a pipe",
        "that is a table without label",
        "of broken images",
        "that is an image",
    )
    for what in some:
        place, says, damage = _LABELED[what]
        rows.append(BadInput(f"evaluate: --labeled {what}", f"evaluate run --labeled {place}", says, damage))
    return rows


def _empty_word_rows() -> list[BadInput]:
    """A variable that is not set is the empty word: it is no folder, and least of all the current one."""
    rows = [
        BadInput(f"{verb}: --{part} is the empty word", f"{words} --{part} ''", (f"--{part}",))
        for verb, words in (("adapt", ADAPT), ("check", f"check {PLACES}"))
        for part in ("source", "labeled", "unlabeled")
    ]
    return [
        *rows,
        BadInput("adapt: --config is the empty word", f"adapt {PLACES} --out new --config ''", ("--config",)),
        BadInput("evaluate: --labeled is the empty word", "evaluate run --labeled ''", ("--labeled",)),
        BadInput("predict: IMAGES is the empty word", "predict run '' --out p.csv", ("empty",)),
        BadInput("predict: RUN is the empty word", "predict '' unlabeled --out p.csv", ("empty",)),
        BadInput("evaluate: RUN is the empty word", "evaluate '' --labeled labeled", ("empty",)),
        BadInput("export: RUN is the empty word", "export ''", ("empty",)),
        BadInput("embed: IMAGES is the empty word", f"embed '' {NETWORK}", ("empty",)),
        BadInput("embed: --cache is the empty word", f"embed source {NETWORK} --cache ''", ("--cache",)),
        BadInput("check: --data is the empty word", "check --suite suite/ours.toml --data ''", ("--data",)),
        BadInput("report: DIR is the empty word", "report ''", ("empty",)),
    ]


def _read_rows() -> list[BadInput]:
    """What `predict` and `embed` are given to look at."""
    bad: _Bad = {
        "that are not there": ("nope", ("nope",), nothing),
        "of an empty folder": ("empty", ("empty",), nothing),
        "of a glob that matches nothing": ("'*.tiff'", ("*.tiff",), nothing),
        "of a glob that matches folders": ("'empt*'", ("empt*",), nothing),
        "in an empty list": ("bad.txt", ("bad.txt",), written("bad.txt", "")),
        "in a table without path": ("bad.csv", ("bad.csv", "path"), written("bad.csv", "image\na.png\n")),
        "that are a very long name": ("x" * 5000, ("images", "xxx"), nothing),
        "in a ragged table": ("bad.csv", ("bad.csv",), written("bad.csv", "path\na.png\nb.png,c,d\n")),
    }
    rows = []
    for what, (place, says, damage) in bad.items():
        rows.append(BadInput(f"predict: images {what}", f"predict run {place} --out p.csv", says, damage))
        rows.append(BadInput(f"embed: images {what}", f"embed {place} {NETWORK}", says, damage))
    return [
        *rows,
        BadInput("embed: no images", "embed", ("IMAGES",)),
        BadInput("embed: broken images only", f"embed source {NETWORK}", ("source", "read"), broken_images("source")),
        BadInput("embed: --cache is a file", f"embed source {NETWORK} --cache note.txt", ("--cache", "note.txt")),
    ]


def _goes_on_rows() -> list[BadInput]:
    """What is left out and said, while the work goes on."""
    predict = "predict run unlabeled --out p.csv"
    row = BadInput(
        "predict: a broken image", predict, ("14 images predicted", "1 unreadable"), code=0, may_write=("p.csv",)
    )
    short, empty = cut("unlabeled/0-0.png"), written("unlabeled/0-0.png", "")
    images = {
        "a cut image": short,
        "an empty image": empty,
        "an image of 60,000 by 60,000 pixels": bomb("unlabeled/0-0.png"),
        "a link to nothing": every(gone("unlabeled/0-0.png"), linked("unlabeled/0-0.png", "nowhere.png")),
        "a pipe among the images": every(gone("unlabeled/0-0.png"), piped("unlabeled/0-0.png")),
    }
    rows = [dataclasses.replace(row, id=f"predict: {what}", damage=damage) for what, damage in images.items()]
    adapt = f"{ADAPT} --no-compare"
    for what, damage in images.items():
        rows.append(BadInput(f"adapt: {what}", adapt, ("0-0.png", "left out"), damage, code=0, may_write=("new/",)))
        rows.append(BadInput(f"check: {what}", f"check {PLACES}", ("0-0.png", "1 file to be left out"), damage, code=0))
    return [
        *rows,
        BadInput("predict: a pipe", "predict run pipe --out p.csv", ("pipe", "not a regular file"), piped("pipe")),
        BadInput("embed: a pipe", f"embed pipe {NETWORK}", ("pipe",), piped("pipe")),
        BadInput(
            "predict: a list with a missing file",
            "predict run bad.txt --out p.csv",
            ("1 images predicted", "1 unreadable"),
            written("bad.txt", "unlabeled/0-0.png\nnope.png\n"),
            code=0,
            may_write=("p.csv",),
        ),
        BadInput(
            "adapt: a cache that is a file",
            adapt,
            ("cache", "note.txt"),
            code=0,
            may_write=("new/",),
            cache="note.txt",
        ),
        BadInput(
            "embed: a broken image among others",
            f"embed source --backbone {BACKBONE} --weights w.safetensors --cache c",
            ("source/blue/0.png", "17 embeddings"),
            cut("source/blue/0.png"),
            code=0,
            may_write=("c/",),
        ),
    ]


IMAGE_ROWS = (*_place_rows(), *_empty_word_rows(), *_read_rows(), *_goes_on_rows())
