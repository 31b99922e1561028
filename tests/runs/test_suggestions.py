"""What to label next, of the images of a run."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from tests.runs.written import CLASSES, write_run
from torch import Tensor

import qurate
from qurate.active.answers import Answer, AnswerLog
from qurate.active.pool import Pool
from qurate.data.class_names import NO_FIT
from qurate.errors import ConfigError, DataError, RunError
from qurate.registry import QUERY_STRATEGIES
from qurate.runs.model import AdaptedModel
from qurate.runs.suggestions import Inquiry, make_inquiry, read_run_images
from qurate.runtime.tables import read_csv, to_csv

COLUMNS = ["file", "label", "predicted", "probability", "runner_up", "query_strategy", "why"]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_run(tmp_path_factory.mktemp("suggest"))


@pytest.fixture(scope="module")
def model(run: Path) -> AdaptedModel:
    return qurate.load(run)


@pytest.mark.parametrize("name", QUERY_STRATEGIES)
def test_every_query_strategy_gives_images_of_the_run_with_words(name: str, run: Path, model: AdaptedModel) -> None:
    table = model.suggest(4, query_strategy=name)
    assert list(table.columns) == COLUMNS
    assert len(table) == table["file"].nunique() == 4
    known = pd.read_csv(run / "predictions.csv").set_index("file")
    assert table["predicted"].tolist() == known.loc[table["file"], "label"].tolist()
    assert table["probability"].tolist() == pytest.approx(known.loc[table["file"], "probability"].tolist())
    assert all(a != b for a, b in zip(table["predicted"], table["runner_up"], strict=True))
    assert set(table["runner_up"]) <= set(CLASSES)
    assert set(table["query_strategy"]) == {name}
    assert all(table["why"].str.endswith("."))
    if name == "check":
        assert set(table["file"]) <= set(pd.read_csv(run / "positives.csv")["file"])


def test_the_random_part_is_marked_spread_and_does_not_depend_on_the_rest(model: AdaptedModel) -> None:
    table = model.suggest(8, random_share=0.5, seed=2)
    assert (table["query_strategy"] == "random").tolist() == [True, False] * 4
    honest = table.loc[table["query_strategy"] == "random", "file"].tolist()
    other = model.suggest(8, query_strategy="margin", random_share=0.5, seed=2)
    assert other.loc[other["query_strategy"] == "random", "file"].tolist() == honest
    assert model.suggest(4, query_strategy="random", seed=2)["file"].tolist() == honest
    assert table["file"].nunique() == 8


def test_images_that_have_an_answer_are_not_asked_again_but_wrong_ones_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = write_run(tmp_path)
    model = qurate.load(run)
    first = model.suggest(18)["file"].tolist()
    kinds = ["label", "none", "wrong"]
    rows = [
        {"file": file, "answer": kind, "label": "blue" * (kind == "label"), "predicted": "blue", "asked": "density"}
        for file, kind in zip(first, kinds, strict=False)
    ]
    AnswerLog(run / "labels.csv").add(rows)
    assert set(model.suggest(18)["file"]) == set(first[2:])


@pytest.mark.parametrize("name", QUERY_STRATEGIES)
def test_images_that_fit_no_class_are_there_and_change_nothing_that_is_asked(name: str, tmp_path: Path) -> None:
    run = write_run(tmp_path)
    table = read_csv(run / "predictions.csv")
    flagged = table["file"].isin([file for file in table["file"][::4] if file not in set(_trusted(run))])
    (run / "predictions.csv").write_bytes(to_csv(table[~flagged]))
    without = make_inquiry(qurate.load(run), read_run_images(run))
    (run / "predictions.csv").write_bytes(to_csv(table.assign(problem=np.where(flagged, NO_FIT, ""))))
    inquiry = make_inquiry(qurate.load(run), read_run_images(run))
    assert inquiry.flagged == flagged.sum() > 0
    assert inquiry.files == (*without.files, *table.loc[flagged, "file"])
    drawn = [one.draw(8, name, random_share=0.3, seed=1) for one in (inquiry, without)]
    assert drawn[0] == drawn[1]


def _trusted(run: Path) -> list[str]:
    return list(read_csv(run / "positives.csv")["file"])


def test_more_than_there_are_gives_all(model: AdaptedModel) -> None:
    assert len(model.suggest(1000, random_share=0.2)) == 18


def test_own_images_and_an_query_strategy_of_ones_own(model: AdaptedModel, run: Path) -> None:
    class Last:
        def ask(self, pool: Pool, count: int, seed: int) -> Tensor:
            return pool.open.flip(0)[:count]

    files = sorted((run.parent / "source").rglob("*.png"))
    table = model.suggest(2, run.parent / "source", query_strategy=Last())
    assert table["file"].tolist() == [str(files[-1]), str(files[-2])]
    assert table["why"].tolist() == ["Chosen by Last."] * 2


def test_a_query_strategy_that_asks_twice_is_refused(model: AdaptedModel) -> None:
    class Twice:
        def ask(self, pool: Pool, count: int, seed: int) -> Tensor:
            return torch.tensor([1, 1])

    with pytest.raises(DataError, match="Twice must ask about different images that are open"):
        model.suggest(2, query_strategy=Twice())


def test_an_answer_is_certain_and_closed() -> None:
    inquiry = Inquiry(("a", "b"), ("x", "y"), Pool(torch.eye(2), torch.full((2, 2), 0.5)), {})
    log = {"id": "1", "time": "t", "predicted": "x", "asked": "random"}
    pool = inquiry.after({"b": Answer(file="b", answer="label", label="y", **log)})
    assert pool.probabilities.tolist() == [[0.5, 0.5], [0.0, 1.0]]
    assert pool.open.tolist() == [0]
    assert inquiry.pool.open.tolist() == [0, 1]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"count": 0}, "count must be an integer between 1 and"),
        ({"count": 2.5}, "got 2.5"),
        ({"random_share": 1.5}, "random_share must be between 0 and 1, got 1.5"),
        ({"query_strategy": "dense"}, "query strategy must be one of random, .*, got 'dense'. Did you mean 'density'"),
        ({"query_strategy": 3}, "query strategy must be one of"),
        ({"seed": -1}, "seed must be an integer between 0 and"),
    ],
)
def test_what_cannot_be_asked_for_is_said_before_anything_is_read(
    change: dict[str, object], words: str, model: AdaptedModel
) -> None:
    with pytest.raises(ConfigError, match=words):
        model.suggest(**{"count": 2, "images": "nowhere", **change})  # type: ignore[arg-type]


def test_a_model_without_a_run_needs_images(model: AdaptedModel) -> None:
    alone = AdaptedModel(model.network, model.config, model.classes, model.origin)
    with pytest.raises(ConfigError, match="`images` must be given"):
        alone.suggest(2)


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("predictions.csv", None, "cannot be read"),
        ("predictions.csv", "file,label\na,b\n", "must have the column 'problem'"),
        ("positives.csv", "file\n", "must have the column 'label'"),
        (
            "predictions.csv",
            "file,label,probability,problem\nnowhere.png,blue,0.5,\n",
            "none of the 1 unlabelled images",
        ),
    ],
)
def test_a_run_whose_tables_are_gone_or_damaged_is_refused(
    name: str, content: str | None, words: str, tmp_path: Path
) -> None:
    run = write_run(tmp_path)
    (run / name).unlink()
    if content is not None:
        (run / name).write_text(content)
    with pytest.raises((RunError, DataError), match=words):
        qurate.load(run).suggest(2)
