"""From folders to a model: what is understood, what is said of bad input, what comes out."""

from __future__ import annotations

import dataclasses
import json
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from PIL import Image
from tests.own_images import BACKBONE, COLORS, make_folders, paint, save_weights, small_config

import qurate
from qurate import distributed
from qurate.calibration import Calibration
from qurate.config import RunConfig
from qurate.data import images
from qurate.data.samples import DataError
from qurate.embedding import backbone as frozen
from qurate.errors import ConfigError
from qurate.networks.backbone_names import find_weights
from qurate.networks.backbones import build_backbone
from qurate.runs import comparison, pipeline
from qurate.runs.adapt import find_answers, run_adaptation, trained_network
from qurate.runs.model_json import ModelError
from qurate.runs.options import BACKBONE as DEFAULT_BACKBONE
from qurate.runs.setup import RunOutcome
from qurate.runtime.tables import read_csv

FAST = {"config": small_config("none"), "compare": False}
Adapt = Callable[..., RunOutcome]


class Listener:
    def __init__(self) -> None:
        self.lines: list[str] = []

    def say(self, line: str) -> None:
        self.lines.append(line)

    def show(self, phase: str, done: int, total: int, *, later: float = 0.0) -> None:
        pass


@pytest.fixture(scope="module")
def weights(tmp_path_factory: pytest.TempPathFactory) -> str:
    return save_weights(tmp_path_factory.mktemp("weights") / "w.safetensors")


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cache")


@pytest.fixture
def place(tmp_path: Path) -> dict[str, Path]:
    return make_folders(tmp_path)


@pytest.fixture
def adapt(weights: str, cache: Path) -> Adapt:
    def run(place: dict[str, Any], **arguments: Any) -> RunOutcome:
        given = {"cache": cache, **FAST, **arguments}
        reporter = given.pop("reporter", None)
        return run_adaptation({**place, "backbone": BACKBONE, "weights": weights, **given}, reporter)

    return run


def test_a_run_leaves_all_that_it_should(place: dict[str, Path], adapt: Adapt, tmp_path: Path) -> None:
    record = adapt(place, config=small_config(), compare=True, out=tmp_path / "run").record
    assert record is not None
    assert record.comparison is not None
    assert record.comparison.images == 9
    assert record.title == "source to unlabeled, 3 classes"
    predictions = pd.read_csv(tmp_path / "run" / "predictions.csv")
    assert list(predictions.columns) == ["file", "label", "probability", "known", "problem"]
    assert len(predictions) == 15
    assert set(predictions["label"]) <= set(COLORS)
    assert all(Path(file).is_file() for file in predictions["file"])
    positives = pd.read_csv(tmp_path / "run" / "positives.csv")
    expected = ["file", "label", "round", "reward", "phi", "classifier_prob", "center_prob", "entropy_drop"]
    assert list(positives.columns) == expected
    assert len(positives) > 0
    metrics = pd.read_csv(tmp_path / "run" / "metrics.csv").set_index("what")["value"]
    assert metrics["comparison_images"] == 9
    assert metrics["comparison_low"] <= metrics["comparison_estimate"] <= metrics["comparison_high"]
    beside = tmp_path / "run" / "baseline"
    assert {path.name for path in beside.iterdir()} == {"model.json", "model.safetensors", "predictions.csv"}
    plain = qurate.load(beside)
    assert (plain.calibration.by, plain.calibration.images) == ("held-out images", 9)
    told = plain.predict(place["unlabeled"]).set_index("file")
    kept = pd.read_csv(beside / "predictions.csv").set_index("file").loc[told.index]
    assert list(told["label"]) == list(kept["label"])
    assert told["probability"].to_numpy() == pytest.approx(kept["probability"].to_numpy(), abs=1e-4)
    with pytest.raises(qurate.QurateError, match=r"This is the plain model beside the run .*run; give that run"):
        plain.suggest(1)
    assert set(record.embedding["part"]) == {"source", "labeled", "unlabeled"}
    of_map = record.embedding.query("part == 'unlabeled'").set_index("file")["label"]
    said = record.predictions.set_index("file")["label"]
    assert list(of_map) == list(said.loc[of_map.index])
    page = (tmp_path / "run" / "report.html").read_text()
    assert "été" in page


def test_folds_that_another_process_trains_beside_change_nothing(
    place: dict[str, Path], adapt: Adapt, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun: list[int] = []

    def count(config: RunConfig, trainings: int, most_rows: int) -> int:
        begun.append(trainings)
        return 2

    adapt(place, config=small_config("adaptive"), compare=True, out=tmp_path / "alone")
    monkeypatch.setattr(comparison, "workers_for", count)
    adapt(place, config=small_config("adaptive"), compare=True, out=tmp_path / "beside")
    assert begun == [4, 4], "a network and three folds, of S+T and of the adapted one"
    assert read_csv(tmp_path / "beside" / "predictions.csv").equals(read_csv(tmp_path / "alone" / "predictions.csv"))
    first, second = (read_csv(tmp_path / name / "metrics.csv") for name in ("alone", "beside"))
    assert first[first["what"] != "seconds"].equals(second[second["what"] != "seconds"])


def test_folds_that_were_done_when_the_training_was_stopped_are_not_trained_again(
    place: dict[str, Path], adapt: Adapt, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun: list[comparison.CrossFit] = []
    begin, fit_run = pipeline.begin_comparison, pipeline.fit_run

    def note(*given: Any) -> comparison.CrossFit:
        begun.append(begin(*given))
        return begun[-1]

    def stop(*given: Any) -> None:
        while not any(future.done() for future in begun[0]._running):
            time.sleep(0.05)
        raise KeyboardInterrupt

    monkeypatch.setattr(comparison, "workers_for", lambda config, trainings, most_rows: 2)
    monkeypatch.setattr(pipeline, "begin_comparison", note)
    monkeypatch.setattr(pipeline, "fit_run", stop)
    options = {"config": small_config("adaptive"), "compare": True, "out": tmp_path / "run"}
    with pytest.raises(KeyboardInterrupt):
        adapt(place, **options)
    monkeypatch.setattr(pipeline, "fit_run", fit_run)
    adapt(place, **options, resume=True)
    assert begun[0]._missing == [0, 1, 2]
    assert 0 not in begun[1]._missing


def test_a_saved_model_predicts_as_it_did(place: dict[str, Path], adapt: Adapt, tmp_path: Path) -> None:
    outcome = adapt(place, config=small_config("balanced"))
    model, record = outcome.model, outcome.record
    assert record is not None
    model.save(tmp_path / "saved")
    loaded = qurate.load(tmp_path / "saved")
    assert loaded.classes == model.classes
    told = loaded.predict(place["unlabeled"]).set_index("file")
    kept = record.predictions.set_index("file")
    assert list(told.loc[kept.index, "label"]) == list(kept["label"])
    assert told.loc[kept.index, "probability"].to_numpy() == pytest.approx(kept["probability"].to_numpy(), abs=1e-4)
    for name, values in model.network.state_dict().items():
        assert torch.equal(values, loaded.network.state_dict()[name])


def test_predict_takes_folders_globs_lists_and_images(place: dict[str, Path], adapt: Adapt, tmp_path: Path) -> None:
    model = adapt(place).model
    listed = tmp_path / "list.txt"
    listed.write_text("unlabeled/0-0.png\nlabeled/green tea/photo 1.jpg 1\n", encoding="utf-8")
    counts = {
        "folder": len(model.predict(place["unlabeled"])),
        "glob": len(model.predict(f"{tmp_path}/labeled/*/photo*.jpg")),
        "list": len(model.predict(listed)),
        "image": len(model.predict(place["unlabeled"] / "0-0.png")),
        "paths": len(model.predict(sorted(place["unlabeled"].glob("*.png")))),
    }
    assert counts == {"folder": 15, "glob": 9, "list": 2, "image": 1, "paths": 9}
    assert set(model.predict(listed)["problem"]) == {""}
    with pytest.raises(DataError, match="got none at nowhere"):
        model.predict("nowhere")


def test_unreadable_images_are_rows_with_their_problem(place: dict[str, Path], adapt: Adapt, tmp_path: Path) -> None:
    model = adapt(place).model
    folder = tmp_path / "new"
    paint(folder / "good.png", (60, 60, 200), seed=0)
    (folder / "text.jpg").write_text("no image")
    whole = (place["labeled"] / "blue" / "photo 0.jpg").read_bytes()
    (folder / "truncated.jpg").write_bytes(whole[:-60])
    table = model.predict([*sorted(folder.iterdir()), folder / "absent.png"]).set_index("file")
    assert list(table["problem"] != "") == [False, True, True, True]
    assert table["label"].tolist()[1:] == ["", "", ""]
    assert table["probability"].isna().tolist() == [False, True, True, True]
    assert "no such file" in table["problem"].iloc[-1]


def test_images_of_any_kind_are_taken(place: dict[str, Path], adapt: Adapt) -> None:
    odd = place["unlabeled"] / "ödd ones"
    odd.mkdir()
    Image.new("L", (30, 20), 90).save(odd / "grey.png")
    Image.new("CMYK", (30, 20), (9, 90, 9, 0)).save(odd / "cmyk.jpg")
    Image.fromarray(np.full((20, 20), 40000, dtype=np.uint16)).save(odd / "16 bit.png")
    Image.new("RGB", (1, 1), (60, 60, 200)).save(odd / "one pixel.png")
    record = adapt(place).record
    assert record is not None
    assert sum("ödd ones" in file for file in record.predictions["file"]) == 4


def test_evaluate_measures_by_class_name(place: dict[str, Path], adapt: Adapt, tmp_path: Path) -> None:
    model = adapt(place).model
    found = model.evaluate(place["source"])
    assert found.confusion.sum() == 18
    table = tmp_path / "some.csv"
    table.write_text("file,label\nsource/blue/0.png,blue\nsource/été/1.png,été\n", encoding="utf-8")
    assert model.evaluate(table).confusion.sum() == 2
    paint(tmp_path / "odd" / "purple" / "1.png", (200, 60, 200), seed=0)
    with pytest.raises(DataError, match="got also 'purple'"):
        model.evaluate(tmp_path / "odd")
    assert (found.auroc_unknown, found.unknown) == (None, 0)


def test_images_of_no_class_are_measured_apart(place: dict[str, Path], adapt: Adapt, tmp_path: Path) -> None:
    model = adapt(place).model
    soft = dataclasses.replace(model.calibration, temperature=20.0)  # so that no probability is rounded to 1
    model = dataclasses.replace(model, calibration=soft)
    files = sorted((place["source"]).rglob("*.png"))
    truth = [file.parent.name if number % 3 else "none" for number, file in enumerate(files)]
    lines = [f"{file},{name}\n" for file, name in zip(files, truth, strict=True)]
    (tmp_path / "all.csv").write_text("file,label\n" + "".join(lines), encoding="utf-8")
    (tmp_path / "known.csv").write_text("file,label\n" + "".join(row for row in lines if ",none" not in row))
    (tmp_path / "none.csv").write_text("file,label\n" + "".join(row for row in lines if ",none" in row))
    found, known = model.evaluate(tmp_path / "all.csv"), model.evaluate(tmp_path / "known.csv")
    assert found.unknown == truth.count("none") == 6
    assert dataclasses.replace(found, auroc_unknown=None, unknown=0) == known
    predicted = model.predict(files).set_index("file")["probability"]
    sides: dict[bool, list[float]] = {True: [], False: []}
    for file, name in zip(files, truth, strict=True):
        sides[name == "none"].append(float(predicted[str(file)]))
    wins = sum((high > low) + 0.5 * (high == low) for high in sides[False] for low in sides[True])
    assert found.auroc_unknown == pytest.approx(wins / (len(sides[False]) * len(sides[True])), abs=1e-6)
    with pytest.raises(DataError, match=r"none.csv: no image has a class"):
        model.evaluate(tmp_path / "none.csv")
    named = dataclasses.replace(model, classes=("none", *model.classes[1:]))  # a model that has such a class
    (tmp_path / "named.csv").write_text(f"file,label\n{files[0]},none\n")
    found = named.evaluate(tmp_path / "named.csv")
    assert (found.unknown, int(found.confusion[0].sum())) == (0, 1)


def test_bad_files_are_left_out_and_named(place: dict[str, Path], adapt: Adapt) -> None:
    (place["source"] / "blue" / "notes.txt").write_text("by hand")
    (place["source"] / "blue" / "text.jpg").write_text("no image")
    whole = (place["labeled"] / "blue" / "photo 0.jpg").read_bytes()
    (place["unlabeled"] / "truncated.jpg").write_bytes(whole[:-60])
    (place["unlabeled"] / "again.jpg").write_bytes(whole)
    listener = Listener()
    record = adapt(place, reporter=listener).record
    said = "\n".join(listener.lines)
    assert "3 classes: 'blue', 'green tea', 'été'." in said
    assert "Source: 18 labelled images." in said
    assert "Target: 9 labelled images (3 per class), 15 unlabelled." in said
    assert "source: 1 file left out, not an image file: 'notes.txt'." in said
    assert "'text.jpg'" in said
    assert "unlabeled: 1 file left out, cannot be decoded as an image" in said
    assert "unlabeled: 1 image is also in labeled, by content, and left out of training." in said
    assert record is not None
    assert len(record.notes) == 4
    assert set(record.notes) <= set(listener.lines)
    assert len(record.predictions) == 15


def test_the_backbone_is_built_once_and_every_image_decoded_once(
    place: dict[str, Path], adapt: Adapt, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    built: list[str] = []
    decoded: list[str] = []

    def build(name: str, *arguments: Any, **options: Any) -> Any:
        built.append(name)
        return build_backbone(name, *arguments, **options)

    def read(path: Path, least: int | None = None) -> Image.Image:
        decoded.append(str(path))
        return read_image(path, least)

    read_image = images.read_image
    monkeypatch.setattr(frozen, "build_backbone", build)
    monkeypatch.setattr(images, "read_image", read)
    model = adapt(place, cache=tmp_path / "cache").model
    assert built == [BACKBONE]
    assert len(decoded) == len(set(decoded)) == 18 + 9 + 15
    decoded.clear()
    model.predict(place["unlabeled"])
    model.evaluate(place["source"])
    assert decoded == []  # all in the cache
    paint(tmp_path / "new" / "1.png", (60, 60, 200), seed=0)
    model.predict(tmp_path / "new")
    assert decoded == [str(tmp_path / "new" / "1.png")]


def test_unreadable_images_change_neither_the_digest_nor_the_classes(
    place: dict[str, Path], adapt: Adapt, tmp_path: Path
) -> None:
    adapt(place, out=tmp_path / "before")
    whole = (place["labeled"] / "blue" / "photo 0.jpg").read_bytes()
    (place["labeled"] / "blue" / "cut.jpg").write_bytes(whole[:-60])
    (place["unlabeled"] / "same.jpg").write_bytes(whole[:-60])
    record = adapt(place, out=tmp_path / "after").record
    kept = [json.loads((tmp_path / run / "config.json").read_text())["data"] for run in ("before", "after")]
    assert kept[0] == kept[1]
    assert record is not None
    assert [note.partition(":")[0] for note in record.notes] == ["labeled", "unlabeled"]


def test_a_class_whose_images_are_all_unreadable_is_an_error(place: dict[str, Path], adapt: Adapt) -> None:
    for file in (place["labeled"] / "blue").iterdir():
        file.write_bytes(file.read_bytes()[:-60])
    with pytest.raises(DataError, match="blue"):
        adapt(place)


def test_a_model_says_what_it_is(place: dict[str, Path], adapt: Adapt, tmp_path: Path) -> None:
    model = adapt(place).model
    assert repr(model) == (
        "AdaptedModel(3 classes: 'blue', 'green tea', 'été'; backbone timm/test_resnet, head trained)"
    )


def test_adapt_gives_the_model_and_says_what_it_does(
    place: dict[str, Path], weights: str, cache: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments: dict[str, Any] = {
        **place,
        "backbone": BACKBONE,
        "weights": weights,
        "cache": cache,
        "selector": "none",
        "steps": 3,
        "compare": False,
    }
    model = qurate.adapt(**arguments)
    assert isinstance(model, qurate.AdaptedModel)
    said = capsys.readouterr().out
    assert "Source: 18 labelled images." in said
    assert "pre-training: 0 s" in said
    qurate.adapt(**arguments, progress=False)
    assert capsys.readouterr().out == ""


def test_bad_input_says_what_is_wrong(place: dict[str, Path], adapt: Adapt, tmp_path: Path) -> None:
    empty = tmp_path / "empty"
    empty.mkdir()
    paint(tmp_path / "one" / "blue" / "1.png", (60, 60, 200), seed=0)
    paint(tmp_path / "fewer" / "blue" / "1.png", (60, 60, 200), seed=0)
    paint(tmp_path / "fewer" / "été" / "1.png", (60, 60, 200), seed=0)
    for change, words in (
        ({"source": empty}, "must hold one folder for each class, got none"),
        ({"unlabeled": empty}, "at least one readable image"),
        ({"unlabeled": tmp_path / "nowhere"}, "`unlabeled` must be a folder, .*does not exist"),
        ({"source": tmp_path / "one", "labeled": tmp_path / "one"}, "at least two classes, got 'blue'"),
        ({"labeled": tmp_path / "fewer"}, r"only 'source' has 'green tea' \(1 class, 6 samples\).*`missing='drop'`"),
        ({"unlabeled": place["labeled"]}, "at least two images that labeled .* does not, got 0 among 9"),
    ):
        with pytest.raises(DataError, match=words):
            adapt({**place, **change}, out=tmp_path / "run")
    assert adapt({**place, "labeled": tmp_path / "fewer"}, missing="drop").model.classes == ("blue", "été")
    assert not (tmp_path / "run").exists()


def test_too_few_labels_to_compare_are_said(tmp_path: Path, adapt: Adapt) -> None:
    listener = Listener()
    few = make_folders(tmp_path, shots=1)
    record = adapt(few, compare=True, reporter=listener).record
    assert record is not None
    assert (record.comparison, record.no_comparison) == (None, "")
    assert listener.lines[-2].startswith("No comparison was made. No class has two labelled target images")
    assert "calibrated without labels, by how often it agrees with S+T" in listener.lines[-1]
    assert record.calibration.by == "agreement with S+T"
    switched_off = adapt(few, compare=False).record
    assert switched_off is not None
    assert "was switched off" in switched_off.no_comparison
    assert switched_off.calibration.by == "nothing"


def test_probabilities_are_those_of_the_calibrated_model(place: dict[str, Path], adapt: Adapt, tmp_path: Path) -> None:
    twin = place["labeled"] / "blue" / "photo 0.jpg"
    (place["unlabeled"] / "again.jpg").write_bytes(twin.read_bytes())
    outcome = adapt(place, config=small_config("balanced"), compare=True, out=tmp_path / "run")
    calibration = outcome.model.calibration
    assert (calibration.by, calibration.images) == ("held-out images", 9)
    assert calibration.temperature != 1
    loaded = qurate.load(tmp_path / "run")
    assert loaded.calibration == calibration
    told = loaded.predict(place["unlabeled"]).set_index("file")
    kept = read_csv(tmp_path / "run" / "predictions.csv").set_index("file")
    assert list(kept["label"]) == list(told.loc[kept.index, "label"])
    expected = told.loc[kept.index, "probability"].to_numpy()
    assert kept["probability"].astype(float).to_numpy() == pytest.approx(expected, abs=1e-4)
    plain = dataclasses.replace(loaded, calibration=Calibration())
    without = plain.predict(place["unlabeled"]).set_index("file")
    assert list(without["label"]) == list(told["label"])
    assert abs(without["probability"] - told["probability"]).max() > 1e-3
    metrics = pd.read_csv(tmp_path / "run" / "metrics.csv").set_index("what")["value"]
    assert metrics["calibration_temperature"] == pytest.approx(calibration.temperature)
    assert outcome.record is not None
    assert len(outcome.record.held_out) == 9
    assert "On 9 labelled target images that it was not trained on" in (tmp_path / "run" / "report.html").read_text()
    found, before = loaded.evaluate(place["source"]), plain.evaluate(place["source"])
    assert found.uncalibrated_error == before.uncalibrated_error == before.calibration_error
    assert found.calibration_error != found.uncalibrated_error


def test_a_run_that_is_written_nowhere_draws_no_map(
    place: dict[str, Path], adapt: Adapt, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr("qurate.report.run_page.draw_picture")
    record = adapt(place).record
    assert record is not None
    assert record.embedding.empty


def test_a_row_for_every_image_that_was_given(place: dict[str, Path], adapt: Adapt, tmp_path: Path) -> None:
    twin = place["labeled"] / "blue" / "photo 0.jpg"
    (place["unlabeled"] / "again.jpg").write_bytes(twin.read_bytes())
    (place["unlabeled"] / "cut.jpg").write_bytes(twin.read_bytes()[:-60])
    (place["unlabeled"] / "text.png").write_text("no image")
    (place["unlabeled"] / "notes.txt").write_text("by hand")
    outcome = adapt(place, out=tmp_path / "run")
    table = read_csv(tmp_path / "run" / "predictions.csv").set_index("file")
    assert len(table) == 15 + 3
    assert sum(table["problem"] == "") == 15
    again = table.loc[str(place["unlabeled"] / "again.jpg")]
    assert again["problem"] == f"same image as the labelled {twin}; left out of training"
    told = outcome.model.predict(twin)
    assert again["label"] == told["label"][0]
    assert float(str(again["probability"])) == pytest.approx(told["probability"][0], abs=1e-4)
    for name, why in (("cut.jpg", "cannot be decoded"), ("text.png", "cannot be opened as an image")):
        row = table.loc[str(place["unlabeled"] / name)]
        assert (row["label"], row["probability"]) == ("", "")
        assert why in row["problem"]


def test_lists_and_tables_do_as_well_as_folders(place: dict[str, Path], adapt: Adapt, tmp_path: Path) -> None:
    sources = sorted((tmp_path / "source").rglob("*.png"))
    lines = [f"{file.relative_to(tmp_path)} {sorted(COLORS).index(file.parent.name)}" for file in sources]
    (tmp_path / "s.txt").write_text("\n".join(lines), encoding="utf-8")
    rows = [f"{f.relative_to(tmp_path)},{f.parent.name}" for f in sorted((tmp_path / "labeled").rglob("*.jpg"))]
    (tmp_path / "l.csv").write_text("\n".join(["path,label", *rows]), encoding="utf-8")
    rest = [str(f.relative_to(tmp_path)) for f in sorted((tmp_path / "unlabeled").rglob("*.png"))]
    (tmp_path / "u.txt").write_text("\n".join(rest), encoding="utf-8")
    listed = {"source": tmp_path / "s.txt", "labeled": tmp_path / "l.csv", "unlabeled": tmp_path / "u.txt"}
    first, second = adapt(place).record, adapt(listed).record
    assert first is not None
    assert second is not None
    ours, theirs = (sorted(zip(r.source["file"], r.source["label"], strict=True)) for r in (first, second))
    assert ours == theirs
    assert len(second.predictions) == len(first.predictions)


def test_all_layers_can_be_trained(place: dict[str, Path], adapt: Adapt, weights: str, tmp_path: Path) -> None:
    config = small_config("balanced", network=trained_network("full", BACKBONE, weights))
    whole = (place["labeled"] / "blue" / "photo 0.jpg").read_bytes()
    (place["unlabeled"] / "truncated.jpg").write_bytes(whole[:-60])
    record = adapt(place, config=config, out=tmp_path / "run").record
    (place["unlabeled"] / "truncated.jpg").unlink()
    loaded = qurate.load(tmp_path / "run")
    told = loaded.predict(place["unlabeled"])
    assert record is not None
    assert len(record.notes) == 1
    kept = record.predictions
    assert told["probability"].to_numpy() == pytest.approx(kept["probability"].to_numpy(), abs=1e-3)


def test_a_run_on_stored_images_is_the_same_and_names_the_images_themselves(
    place: dict[str, Path], adapt: Adapt, weights: str, tmp_path: Path
) -> None:
    config = small_config("balanced", network=trained_network("full", BACKBONE, weights))
    plain, stored = (
        adapt(place, config=config, out=tmp_path / name, prepare=folder, compare=False).record
        for name, folder in (("plain", None), ("stored", tmp_path / "arrays"))
    )
    assert plain is not None
    assert stored is not None
    pd.testing.assert_frame_equal(plain.predictions, stored.predictions)
    pd.testing.assert_frame_equal(plain.positives, stored.positives)
    assert len(list((tmp_path / "arrays").rglob("*.npy"))) == len(plain.predictions) + len(plain.source) + len(
        plain.labeled
    )


def test_a_run_by_two_processes(
    place: dict[str, Path], adapt: Adapt, weights: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = small_config("balanced", network=trained_network("full", BACKBONE, weights))
    config = dataclasses.replace(config, execution=dataclasses.replace(config.execution, devices=2))
    try:
        outcome = adapt(place, config=config, out=tmp_path / "run", compare=False)
    finally:
        distributed.shutdown()
    assert outcome.record is not None
    assert len(qurate.load(tmp_path / "run").predict(place["unlabeled"])) == len(outcome.record.predictions)
    monkeypatch.setenv("LOCAL_RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "3")
    with pytest.raises(ConfigError, match="3 processes were started"):
        adapt(place, config=small_config("none"), out=tmp_path / "other")


def test_models_from_elsewhere_are_refused_and_never_unpickled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Evil:
        def __reduce__(self) -> tuple[Any, ...]:
            return (Path.touch, (tmp_path / "executed",))

    torch.save({"weight": Evil()}, tmp_path / "model.pt")
    with pytest.raises(ModelError, match=r"must be the folder of a finished run.*got a file"):
        qurate.load(tmp_path / "model.pt")
    with pytest.raises(ModelError, match="got a path that does not exist"):
        qurate.load(tmp_path / "nowhere")
    places = {
        "images": ("cat/1.JPG", "a folder of images. 'qurate adapt' makes a run"),
        "begun": ("config.json", "an unfinished run. 'qurate open .*begun' shows how far it is, and continues it"),
        "strange": ("x.txt", "a folder. 'qurate adapt' makes a run, in the folder that `out` names"),
    }
    for name, (file, says) in places.items():
        (tmp_path / name / file).parent.mkdir(parents=True)
        (tmp_path / name / file).write_text('{"qurate": "0"}')
        with pytest.raises(ModelError, match=f"got {says}"):
            qurate.load(tmp_path / name)
    (tmp_path / "runs" / "good").mkdir(parents=True)
    for file in ("model.json", "model.safetensors"):
        (tmp_path / "runs" / "good" / file).touch()
    with pytest.raises(ModelError, match=r"got a folder with runs in it: 'good'. Give one of these"):
        qurate.load(tmp_path / "runs")
    with pytest.raises(ModelError, match=r"got a path that does not exist. Runs beside it: 'good'"):
        qurate.load(tmp_path / "runs" / "god")
    with pytest.raises(ModelError, match=r"got a file in a run. Give the run itself: .*good"):
        qurate.load(tmp_path / "runs" / "good" / "model.safetensors")
    (tmp_path / "runs" / "good" / "inside").mkdir()
    monkeypatch.chdir(tmp_path / "runs" / "good" / "inside")
    with pytest.raises(ModelError, match=rf"Give the run itself: {tmp_path / 'runs' / 'good'}$"):
        qurate.load(".")
    (tmp_path / "model.json").write_text('{"format": "onnx"}')
    with pytest.raises(ModelError, match="format must be 'qurate-model-1', got 'onnx'"):
        qurate.load(tmp_path)
    assert not (tmp_path / "executed").exists()


def test_a_model_file_that_is_a_pickle_is_refused(place: dict[str, Path], adapt: Adapt, tmp_path: Path) -> None:
    adapt(place).model.save(tmp_path / "saved")
    (tmp_path / "saved" / "model.safetensors").rename(tmp_path / "kept")
    torch.save({"a": torch.zeros(2)}, tmp_path / "saved" / "model.safetensors")
    with pytest.raises(ModelError, match=r"not a safetensors file|must hold the"):
        qurate.load(tmp_path / "saved")


def test_offline_weights_are_taken_where_they_are_installed(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, weights: str
) -> None:
    for installed, found in ((True, "offline"), (False, "pretrained")):
        monkeypatch.setattr("qurate.networks.backbone_names.find_spec", lambda name, there=installed: there or None)
        assert find_weights(DEFAULT_BACKBONE, "auto") == found
        assert find_weights("timm/resnet34.tv_in1k", "auto") == "pretrained"
    monkeypatch.chdir(Path(weights).parent)
    assert find_weights(BACKBONE, Path(weights).name) == weights


def test_unknown_settings_list_what_is_allowed(place: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=r"`train` must be one of 'head', 'full', got 'best'"):
        qurate.adapt(**place, train="best")  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"'trian'. Did you mean 'train'?"):
        qurate.adapt(**place, trian="full")  # type: ignore[call-arg]


def test_words_beside_a_config_are_refused(place: dict[str, Any], weights: str) -> None:
    with pytest.raises(ConfigError, match="`method`, `seed` cannot be given beside `config`"):
        qurate.adapt(**place, config=small_config("none"), method="mme", seed=3, weights=weights)


def test_a_config_that_trains_a_backbone_trains_that_one(place: dict[str, Any], weights: str, cache: Path) -> None:
    config = small_config("none", network=trained_network("full", BACKBONE, weights))
    model = qurate.adapt(**place, config=config, compare=False, cache=cache, progress=False)
    assert (model.config.backbone, model.origin["trained"]) == (BACKBONE, "full")


@pytest.mark.parametrize("labels", [None, "table.csv"])
def test_a_labels_file_that_is_a_folder_is_not_called_missing(labels: str | None, tmp_path: Path) -> None:
    (tmp_path / "run" / "labels.csv").mkdir(parents=True)
    (tmp_path / "table.csv").write_text("file,label\na.png,cat\n")
    previous: Any = SimpleNamespace(folder=tmp_path / "run", labels=tmp_path / "run" / "labels.csv", settings={})
    with pytest.raises(DataError, match=r"labels.csv: must be a file of answers, and is a folder. Move it elsewhere"):
        find_answers(None if labels is None else tmp_path / labels, previous)
