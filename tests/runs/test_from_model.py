"""A run without source images: from the class statistics that a saved model has of its source."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.own_images import BACKBONE, COLORS, make_folders, paint, save_weights, small_config
from tests.runs.test_continue_from import KilledError, Watcher

import qurate
from qurate.config import NetworkConfig
from qurate.data.class_statistics import class_statistics
from qurate.data.own_images import read_labeled
from qurate.data.samples import Labeled
from qurate.embedding.embed import embed_files
from qurate.errors import ConfigError, DataError, RunError
from qurate.runs.adapt import run_adaptation
from qurate.runs.files import CONFIG_FILE, EXAMPLES_FILE, ISSUES_FILE, REPORT_FILE
from qurate.runs.setup import RunOutcome
from qurate.runtime.tables import read_csv

PLAIN, WHOLE = small_config("none"), NetworkConfig(BACKBONE, "none", "normalized")


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run, its target, and another target; the source and the weights of the backbone are gone."""
    root = tmp_path_factory.mktemp("world")
    places, weights = make_folders(root), save_weights(root / "w.safetensors")
    given: dict[str, Any] = {**places, "cache": root / "cache", "progress": False, "config": small_config("balanced")}
    run_adaptation({**given, "backbone": BACKBONE, "weights": weights, "out": root / "model", "compare": False})
    by_hand = read_labeled(places["source"], "source")
    frozen = qurate.load(root / "model").frozen
    embedded = embed_files(list(by_hand.inputs.paths), frozen, cache=root / "cache")  # type: ignore[union-attr]
    torch.save(embedded.of(by_hand.inputs), root / "embeddings.pt")  # type: ignore[arg-type]
    torch.save(by_hand.labels, root / "labels.pt")
    shutil.rmtree(places["source"])
    shutil.rmtree(root / "cache")
    Path(weights).unlink()
    return root


@pytest.fixture
def place(world: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(world, tmp_path / "world"))


def _adapt(place: Path, reporter: Any = None, **options: Any) -> RunOutcome:
    given: dict[str, Any] = {"cache": place / "cache", "compare": False, "progress": False}
    if "previous" not in options and not isinstance(options.get("config"), Path):
        given |= {"labeled": place / "labeled", "unlabeled": place / "unlabeled", "config": small_config("balanced")}
        given["from_model"] = place / "model"
    return run_adaptation({**given, **options}, reporter)


def test_a_model_stores_the_statistics_of_its_source(world: Path) -> None:
    embeddings, labels = torch.load(world / "embeddings.pt"), torch.load(world / "labels.pt")
    wanted = class_statistics(Labeled(embeddings, labels), 3)
    found = qurate.load(world / "model").source_statistics
    assert wanted is not None
    assert found is not None
    assert found.counts.tolist() == [6, 6, 6]
    for name, values in wanted.tensors.items():
        torch.testing.assert_close(found.tensors[name], values)
    assert json.loads((world / "model" / "model.json").read_text())["source_statistics"] == {"images": 18}


def test_no_source_image_is_needed_and_page_and_config_say_so(place: Path) -> None:
    run, watcher = place / "next", Watcher()
    done = _adapt(place, watcher, out=run, compare=True)
    record = done.record
    assert record is not None
    said = (
        f"No source images were used: 18 embeddings were drawn from the class statistics of the model in {place}/model."
    )
    assert said in watcher.lines
    assert not any(line.startswith("Source:") for line in watcher.lines)
    assert (len(record.source), record.drawn, len(record.predictions)) == (0, 18, 15)
    assert record.comparison is not None
    page = (run / REPORT_FILE).read_text()
    assert "No source images were used: in their place the classifier learns from 18 embeddings" in page
    assert said in page
    assert "in the source" not in page
    kept = json.loads((run / CONFIG_FILE).read_text())
    assert kept["source_statistics"].items() >= {"source_images": 0, "drawn": 18}.items()
    assert kept["places"].keys() == {"from_model", "labeled", "unlabeled", "missing"}
    assert kept["backbone"] == BACKBONE
    for name in (EXAMPLES_FILE, ISSUES_FILE):
        assert set(read_csv(run / name)["part"]) <= {"labeled"}
    assert "class statistics of one domain" in (run / "README.md").read_text()
    before, after = qurate.load(place / "model").source_statistics, qurate.load(run).source_statistics
    plain = qurate.load(run / "baseline").source_statistics
    assert before is not None
    assert after is not None
    assert plain is not None
    for name, values in before.tensors.items():
        assert torch.equal(after.tensors[name], values)
        assert torch.equal(plain.tensors[name], values)
    assert qurate.load(run).predict(place / "unlabeled")["label"].tolist() == record.predictions["label"].tolist()


def test_the_same_seed_draws_the_same_source_and_config_json_repeats_the_run(place: Path) -> None:
    first = _adapt(place, out=place / "next")
    again = _adapt(place, config=place / "next" / CONFIG_FILE, out=place / "again")
    other = _adapt(place, config=place / "next" / CONFIG_FILE, seed=1)
    assert first.record is not None
    assert again.record is not None
    assert other.record is not None
    sure = [run.record.predictions["probability"] for run in (first, again, other)]  # type: ignore[union-attr]
    assert np.array_equal(sure[0], sure[1])
    assert not np.array_equal(sure[0], sure[2])
    assert json.loads((place / "again" / CONFIG_FILE).read_text())["places"]["from_model"] == str(place / "model")


def test_a_run_learns_from_answers_without_the_first_model(place: Path) -> None:
    _adapt(place, out=place / "next", compare=True)
    shutil.rmtree(place / "model")
    image = next((place / "unlabeled").rglob("*.png"))
    (place / "answers.csv").write_text(f"file,label\n{image},blue\n")
    done = _adapt(place, previous=place / "next", labels=place / "answers.csv", out=place / "better")
    assert done.record is not None
    assert (done.record.drawn, len(done.record.labeled)) == (18, 10)
    kept = json.loads((place / "better" / CONFIG_FILE).read_text())
    assert kept["places"]["from_model"] == str(place / "next")
    again = _adapt(place, from_model=place / "better")  # which has the statistics too
    assert again.record is not None
    assert again.record.drawn == 18


def test_an_added_class_has_no_statistics_and_answers_go_on_adding_to_it(place: Path) -> None:
    _adapt(place, out=place / "next")
    for i in range(4):
        paint(place / "unlabeled" / f"new {i}.png", (200, 200, 60), seed=i, dark=True)
    rows = "".join(f"{place / 'unlabeled'}/new {i}.png,yellow\n" for i in range(3))
    (place / "answers.csv").write_text(f"file,label\n{rows}")
    _adapt(place, previous=place / "next", labels=place / "answers.csv", out=place / "more")
    model = qurate.load(place / "more")
    assert model.classes == (*sorted(COLORS), "yellow")
    assert model.source_statistics is not None
    assert model.source_statistics.counts.tolist() == [6, 6, 6, 0]
    (place / "answers.csv").write_text(f"file,label\n{place / 'unlabeled'}/new 3.png,yellow\n")
    _adapt(place, previous=place / "more", labels=place / "answers.csv", out=place / "most")
    assert qurate.load(place / "most").classes == model.classes


def test_an_interrupted_run_goes_on_only_with_the_same_statistics(place: Path) -> None:
    whole = _adapt(place, out=place / "whole")
    with pytest.raises(KilledError):
        _adapt(place, Watcher("round 1"), out=place / "next")
    resumed = _adapt(place, out=place / "next", resume=True)
    assert whole.record is not None
    assert resumed.record is not None
    assert np.array_equal(resumed.record.predictions["probability"], whole.record.predictions["probability"])
    with pytest.raises(KilledError):
        _adapt(place, Watcher("round 1"), out=place / "other")
    model = qurate.load(place / "model")
    assert model.source_statistics is not None
    model.source_statistics.counts[0] = 5
    model.save(place / "model")
    with pytest.raises(RunError, match=r"source_statistics\.drawn was 18, is 17"):
        _adapt(place, out=place / "other", resume=True)


def test_classes_must_be_those_of_the_model_unless_they_are_dropped(place: Path) -> None:
    shutil.move(place / "labeled" / "blue", place / "labeled" / "violet")
    with pytest.raises(DataError, match=r"only 'model model' has 'blue'.*; only 'labeled' has 'violet'"):
        _adapt(place)
    done = _adapt(place, missing="drop")
    assert done.record is not None
    assert (done.record.classes, done.record.drawn) == (("green tea", "été"), 12)


def test_a_model_without_statistics_is_refused_in_a_sentence(place: Path) -> None:
    about = json.loads((place / "model" / "model.json").read_text())
    del about["source_statistics"]
    (place / "model" / "model.json").write_text(json.dumps(about))
    with pytest.raises(ConfigError, match=r"saved without the statistics of its source: on purpose, by an earlier"):
        _adapt(place)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"source": "labeled"}, r"`source` cannot be given beside `from_model`"),
        ({"previous": "model"}, r"`from_model` cannot be given beside `previous`"),
        ({"config": None, "train": "full"}, r"`train='full'` cannot be given beside `from_model`"),
        ({"backbone": BACKBONE, "weights": "auto"}, r"`backbone`, `weights` cannot be given beside `from_model`"),
        ({"source_weights": "learned"}, r"`source_weights` cannot be given beside `from_model`"),
        ({"config": None, "time_limit": 60}, r"`from_model` cannot be given beside `time_limit`"),
        ({"config": replace(PLAIN, network=WHOLE)}, r"`from_model` cannot be given beside a `config` that trains all"),
    ],
)
def test_what_a_model_brings_cannot_be_given_beside_it(place: Path, options: dict[str, Any], said: str) -> None:
    options = {name: place / value if name in ("source", "previous") else value for name, value in options.items()}
    with pytest.raises(ConfigError, match=said):
        _adapt(place, **{"from_model": place / "model", **options})
