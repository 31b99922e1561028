"""What answers changed, counted by hand."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import torch
from tests.own_images import small_config

import qurate
from qurate.active.answers import Answer, wilson_interval
from qurate.config import NetworkConfig
from qurate.networks.heads import build_network
from qurate.runs.continue_from import AppliedAnswers, PreviousRun, summarize_answers

CLASSES = ("cat", "dog", "pig")


def row(file: str, said: str, predicted: str = "cat", asked: str = "margin") -> Answer:
    kind = said if said in ("none", "wrong") else "label"
    return Answer(file, "t", file, kind, said if kind == "label" else "", predicted, asked)


def applied_of(*rows: Answer, earlier: int = 0) -> AppliedAnswers:
    labels = [CLASSES.index(one.label) if one.label in CLASSES else -1 for one in rows]
    return AppliedAnswers(torch.arange(len(rows)), rows, torch.tensor(labels), earlier)


def previous_of(predictions: dict[str, str], positives: dict[str, str]) -> PreviousRun:
    config = NetworkConfig("timm/test_resnet", "none", "normalized", features=4)
    model = qurate.AdaptedModel(build_network(config, n_classes=3, input_width=None, seed=0), config, CLASSES)
    tables = [pd.DataFrame({"file": list(table), "label": list(table.values())}) for table in (predictions, positives)]
    return PreviousRun(Path("run"), {}, small_config(), model, *tables)


def test_kinds_of_answers_and_how_often_the_asked_model_was_right() -> None:
    applied = applied_of(
        row("a", "cat"),  # earlier: not counted
        row("b", "cat", asked="random"),
        row("c", "dog", asked="random"),
        row("d", "none", asked="random"),
        row("e", "wrong", asked="random"),
        row("f", "dog"),
        row("g", "giraffe"),  # no class of the run
        row("h", "pig", predicted=""),  # nobody knows what was predicted
        earlier=1,
    )
    found = summarize_answers(applied, ["cat", "cat", "dog", "pig", "pig", "cat", "cat", "pig"], pd.DataFrame(), None)
    assert (found.labeled, found.none, found.wrong, found.earlier, found.total) == (4, 2, 1, 1, 7)
    assert (found.judged, found.right) == (5, 1)
    assert found.right_now == 3
    assert (found.random, found.random_right) == (3, 1)
    assert (found.random_low, found.random_high) == wilson_interval(1, 3)
    assert found.confusions == (("cat", "dog", 2),)
    assert found.corrections is None


def test_who_rejects_a_pseudo_label_has_not_judged_a_model_that_says_something_else() -> None:
    previous = previous_of({"a": "cat", "b": "dog", "c": "cat"}, {"b": "cat"})
    chance = applied_of(
        *(row(file, said, asked="random") for file, said in (("a", "cat"), ("b", "wrong"), ("c", "wrong")))
    )
    found = summarize_answers(chance, ["cat"] * 3, pd.DataFrame({"file": [], "label": []}), previous)
    assert (found.random, found.random_right) == (2, 1)


def test_what_changed_since_the_previous_run() -> None:
    before = {"a": "cat", "b": "cat", "c": "cat", "d": "dog", "e": "pig", "f": "pig"}
    previous = previous_of(before, {"a": "cat", "b": "cat", "c": "cat", "f": "pig"})
    applied = applied_of(row("a", "cat"), row("b", "dog"), row("c", "wrong"))
    now = pd.DataFrame({"file": ["d", "e", "f", "new"], "label": ["dog", "cat", "dog", "cat"]})
    found = summarize_answers(applied, ["cat", "dog", "pig"], now, previous).corrections
    assert found is not None
    assert (found.positives, found.confirmed) == (4, 1)
    assert found.left.to_numpy().tolist() == [["b", "cat", "dog"], ["c", "cat", "wrong"]]
    assert (found.changed, found.open) == (2, 3), "an image that was not there before did not change"
