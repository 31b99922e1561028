"""A run from several sources: what the page and config.json say of each, and what a run that goes on from it has."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.own_images import BACKBONE, COLORS, make_folders, paint, save_weights, small_config

from qurate.errors import ConfigError, RunError
from qurate.runs.adapt import run_adaptation
from qurate.runs.files import CONFIG_FILE, REPORT_FILE
from qurate.runs.setup import RunOutcome


@pytest.fixture
def place(tmp_path: Path) -> dict[str, Any]:
    found: dict[str, Any] = make_folders(tmp_path)
    for i, (name, color) in enumerate(list(COLORS.items())[:2]):
        for j in range(4):
            paint(tmp_path / "more" / name / f"{j}.png", color, seed=5000 + 100 * i + j)
    return found | {"source": [found["source"], tmp_path / "more"]}


def _adapt(place: dict[str, Any], root: Path, **options: Any) -> RunOutcome:
    fixed: dict[str, Any] = {"cache": root / "cache", "compare": False, "progress": False}
    if not {"previous", "config"} & options.keys():
        fixed |= {"config": small_config("none"), "backbone": BACKBONE, "weights": save_weights(root / "w.safetensors")}
    return run_adaptation({**fixed, **place, **options})


def test_each_source_has_a_weight_that_page_and_config_name(place: dict[str, Any], tmp_path: Path) -> None:
    run = tmp_path / "run"
    record = _adapt(place, tmp_path, out=run, source_weights="learned").record
    assert record is not None
    kept = json.loads((run / CONFIG_FILE).read_text())
    assert kept["source_weights"] == "learned"
    assert [source["name"] for source in kept["sources"]] == ["source", "more"]
    assert kept["sources"][1]["images"] == {"blue": 0, "green tea": 4, "été": 4}
    weights = [source["weight"] for source in kept["sources"]]
    assert sum(weights) == pytest.approx(1)
    page = (run / REPORT_FILE).read_text()
    assert f"none of &#39;blue&#39;. Its weight is {weights[1]:.0%} (learned)" in page
    again = _adapt({}, tmp_path, config=run / CONFIG_FILE, out=tmp_path / "again")
    assert json.loads((tmp_path / "again" / CONFIG_FILE).read_text())["sources"] == kept["sources"]
    assert again.record is not None
    assert np.array_equal(again.record.predictions["label"], record.predictions["label"])


def test_weights_by_images_are_those_of_one_folder_and_given_ones_count(place: dict[str, Any], tmp_path: Path) -> None:
    together = _adapt(place, tmp_path).record
    given = _adapt(place, tmp_path, source_weights=[18, 8]).record
    other = _adapt(place, tmp_path, source_weights=[1, 30]).record
    assert together is not None
    assert given is not None
    assert other is not None
    probabilities = [record.predictions["probability"] for record in (together, given, other)]
    assert np.array_equal(probabilities[0], probabilities[1])
    assert not np.array_equal(probabilities[0], probabilities[2])
    assert any("Its weight is 97% (given)" in note for note in other.notes)


def test_a_run_goes_on_with_its_sources_and_weights(place: dict[str, Any], tmp_path: Path) -> None:
    run = tmp_path / "run"
    _adapt(place, tmp_path, out=run, source_weights=(1.0, 2.0))
    image = next(path for path in place["unlabeled"].rglob("*.png"))
    (tmp_path / "answers.csv").write_text(f"file,label\n{image},blue\n")
    _adapt({}, tmp_path, previous=run, labels=tmp_path / "answers.csv", out=tmp_path / "next")
    kept = json.loads((tmp_path / "next" / CONFIG_FILE).read_text())
    assert kept["source_weights"] == [1.0, 2.0]
    assert len(kept["places"]["source"]) == 2
    assert [source["weight"] for source in kept["sources"]] == pytest.approx([1 / 3, 2 / 3])
    with pytest.raises(ConfigError, match="source_weights"):
        _adapt({}, tmp_path, previous=run, labels=tmp_path / "answers.csv", source_weights=[1, 1])


def test_weights_of_a_run_are_refused_for_another_number_of_sources(place: dict[str, Any], tmp_path: Path) -> None:
    run = tmp_path / "run"
    _adapt(place, tmp_path, out=run, source_weights=[1, 2])
    third = tmp_path / "third"
    paint(third / "blue" / "0.png", (60, 60, 200), seed=7)
    with pytest.raises(ConfigError, match=r"`source_weights` must be a positive number for each of the 3 sources"):
        _adapt({**place, "source": [*place["source"], third]}, tmp_path, config=run / CONFIG_FILE)


def test_an_interrupted_run_keeps_its_weights(
    place: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stop(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("qurate.runs.pipeline.write_results", stop)
        with pytest.raises(KeyboardInterrupt):
            _adapt(place, tmp_path, out=tmp_path / "run", source_weights=[1, 2])
    with pytest.raises(RunError, match="source_weights"):
        _adapt(place, tmp_path, out=tmp_path / "run", source_weights=[2, 1], resume=True)
    assert _adapt(place, tmp_path, out=tmp_path / "run", source_weights=[1, 2], resume=True).record is not None
