"""Models are what they were when they were written, or are refused."""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import safetensors.torch
import torch
from PIL import Image
from tests.own_images import BACKBONE, paint

import qurate
from qurate.config import NetworkConfig
from qurate.data.class_statistics import ClassStatistics
from qurate.errors import ConfigError, DataError
from qurate.networks.heads import build_network
from qurate.novelty import HeldOutScores, Novelty
from qurate.run_results import BaselineComparison, Gain
from qurate.runs.model import AdaptedModel
from qurate.runs.model_json import ModelError
from qurate.runtime.tensors import tensor_digest

CLASSES = ("blue", "green", "red")
TRANSFORM = {"resize": 9, "crop": 8, "mean": [0, 0, 0], "std": [1, 1, 1]}
CALIBRATION = {"temperature": 1, "by": "nothing", "images": 0, "baseline_temperature": None}
NETWORK = {"backbone": BACKBONE, "bottleneck": "normalized", "features": 8}


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    config = NetworkConfig(BACKBONE, "none", "normalized", features=8)
    network = build_network(config, n_classes=3, input_width=None, seed=0)
    AdaptedModel(network.eval(), config, CLASSES, {"trained": "head"}).save(tmp_path / "model")
    return tmp_path / "model"


def change(folder: Path, **values: Any) -> None:
    about = json.loads((folder / "model.json").read_text()) | values
    (folder / "model.json").write_text(json.dumps(about))


def test_a_flipped_bit_is_found_anywhere(saved: Path) -> None:
    path = saved / "model.safetensors"
    whole = path.read_bytes()
    for place in range(-1, -len(whole) + 600, -4999):
        flipped = bytearray(whole)
        flipped[place] ^= 1
        path.write_bytes(bytes(flipped))
        with pytest.raises(ModelError, match=r"model.safetensors"):
            qurate.load(saved)
    path.write_bytes(whole)
    assert qurate.load(saved).classes == CLASSES


def test_numbers_that_are_not_finite_are_found(saved: Path) -> None:
    tensors = safetensors.torch.load_file(saved / "model.safetensors")
    tensors["classifier.weight"][0, 0] = torch.nan
    safetensors.torch.save_file(tensors, saved / "model.safetensors")
    change(saved, sha256=tensor_digest(tensors))
    with pytest.raises(ModelError, match=r"damaged \(NaN in classifier.weight\)"):
        qurate.load(saved)


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"classes": ["a"] * 3}, "two or more names that differ"),
        ({"classes": "abc"}, "must be a list of names, got 'abc'"),
        ({"classes": ["a", "b", 3]}, "must be a list of names"),
        ({"classes": ["a", "b", ""]}, "must be a list of names"),
        ({"classes": ["a", "b"]}, "of another shape: 'classifier.weight'"),
        ({"classes": ["a", "b", "\udc80"]}, "must be valid text"),
        ({"classes": []}, "two or more names"),
        ({"classes": None}, "got None"),
        ({"network": 5}, "network must be a table, got 5"),
        ({"network": {"bakbone": "timm/test_resnet"}}, "no 'bakbone'"),
        ({"transform": None}, "transform must be a table"),
        ({"transform": {"resize": 9.5, "crop": 8, "mean": [0, 0, 0], "std": [1, 1, 1]}}, "resize must be an integer"),
        ({"network": {"backbone": "digits"}}, "takes no image files"),
        ({"network": {"backbone": "timm/nothing"}}, "does not describe a model"),
        ({"transform": {"resize": 9}}, "does not describe a model"),
        (
            {"transform": {"resize": 9, "crop": 8, "mean": [0, 0], "std": [1, 1, 1]}},
            "mean must be three numbers between -1000 and 1000, got",
        ),
        ({"transform": TRANSFORM | {"std": [0, 1, 1]}}, "std must be three numbers between 0.001 and 1000"),
        ({"transform": TRANSFORM | {"std": [1e-300] * 3}}, "std must be three numbers between 0.001 and 1000"),
        ({"transform": TRANSFORM | {"mean": [1e308] * 3}}, "mean must be three numbers between -1000 and 1000"),
        ({"transform": TRANSFORM | {"mean": [10**400, 0, 0]}}, "mean must be three numbers between -1000 and 1000"),
        ({"transform": TRANSFORM | {"resize": 20000}}, "resize must be an integer between 1 and 4681, got 20000"),
        ({"transform": TRANSFORM | {"resize": 2**40}}, "resize must be an integer between 1 and 4681"),
        ({"transform": TRANSFORM | {"resize": 10**400}}, "resize must be an integer between 1 and 4681"),
        ({"transform": TRANSFORM | {"crop": 10**400}}, "crop must be an integer between 1 and 4681"),
        ({"network": NETWORK | {"scale": 1e308}}, "scale must be between 0.01 and 10000"),
        ({"network": NETWORK | {"scale": 10**400}}, "scale must be"),
        ({"network": NETWORK | {"features": 65536}}, "must hold the [0-9]+ bytes of the network"),
        ({"network": {"backbone": "timm/vit_7b_patch16_dinov3"}}, "must hold the [0-9]+ bytes of the network"),
        ({"network": {"backbone": "timm/test_vit@4096"}}, "must hold the [0-9]+ bytes of the network"),
        (
            {
                "transform": {
                    "resize": 9,
                    "crop": 8,
                    "mean": [0, 0, 0],
                    "std": [1, 1, 1],
                    "interpolation": "nearest",
                }
            },
            "interpolation must be one of bilinear, bicubic, got 'nearest'",
        ),
        ({"calibration": 5}, "calibration must be a table of temperature, by, images"),
        ({"calibration": CALIBRATION | {"temperature": 0}}, "temperature must be a number from"),
        ({"sha256": 5}, "not those that"),
    ],
)
def test_a_description_of_no_model_is_refused(saved: Path, values: dict[str, Any], said: str) -> None:
    change(saved, **values)
    with pytest.raises(ModelError, match=said):
        qurate.load(saved)


def test_outputs_that_are_not_finite_are_an_error_and_no_prediction(saved: Path, tmp_path: Path) -> None:
    paint(tmp_path / "a.png", (60, 60, 200), seed=0)
    tensors = safetensors.torch.load_file(saved / "model.safetensors")
    for name in tensors:
        if name.startswith("backbone") and name.endswith("weight"):
            tensors[name].fill_(1e38)
    safetensors.torch.save_file(tensors, saved / "model.safetensors")
    change(saved, sha256=tensor_digest(tensors))
    model = qurate.load(saved)
    with pytest.raises(ModelError, match="gives NaN or infinity for these images"):
        model.predict(tmp_path / "a.png")


@pytest.mark.parametrize(
    ("highest", "threshold", "is_asked"), [(1.0, -math.inf, False), (0.9, -math.inf, True), (1.0, -1e5, True)]
)
def test_the_score_of_belonging_is_kept_and_asked_where_not_all_images_can_belong(
    saved: Path, tmp_path: Path, highest: float, threshold: float, is_asked: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where none is flagged, a prediction is accepted only if the image belongs to a class too."""
    model = qurate.load(saved)
    width, folds = model.network.width, (HeldOutScores(torch.arange(12), torch.zeros(12)),)
    score = Novelty(
        torch.zeros(width), torch.ones(width), 0.1, torch.linspace(-1, 2, 12), folds, threshold, 0.7, highest
    )
    dataclasses.replace(model, novelty=score).save(saved)
    kept = qurate.load(saved).novelty
    assert kept is not None
    assert (kept.share, kept.highest_share, kept.threshold) == (0.7, highest, threshold)
    paint(tmp_path / "a.png", (60, 60, 200), seed=0)
    monkeypatch.setattr("qurate.runs.model.known_probability", lambda known: torch.zeros(len(known)))
    table = qurate.load(saved).predict(tmp_path / "a.png", precision=0.3)
    assert (table["label"][0] == "") == is_asked
    named = table.assign(label="blue")
    assert qurate.load(saved).expected_precision(named) == pytest.approx(0 if is_asked else table["probability"][0])
    for name, value in (("highest_share", 1.5), ("share", "many")):
        about = json.loads((saved / "model.json").read_text())["novelty"]
        change(saved, novelty=about | {name: value})
        with pytest.raises(ModelError, match=f"novelty.{name} must be a number up to 1"):
            qurate.load(saved)
        change(saved, novelty=about)


@pytest.mark.parametrize(
    "name",
    [
        "timm/hf-hub:someone/anything",
        "timm/test_resnet+timm/hf-hub:someone/anything",
        "timm/local-dir:/etc",
        "timm/hf_hub:someone/anything",
    ],
)
def test_a_model_of_somebody_else_does_not_reach_the_network(
    saved: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*arguments: object, **options: object) -> None:
        raise AssertionError("the network was asked")

    monkeypatch.setattr("socket.socket.connect", refuse)
    monkeypatch.setattr("socket.getaddrinfo", refuse)
    change(saved, network={"backbone": name, "bottleneck": "none"})
    with pytest.raises(ModelError, match="backbone must be a name, not an address, got 'timm/"):
        qurate.load(saved)


def test_weights_are_never_fetched_by_a_model(saved: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    network = json.loads((saved / "model.json").read_text())["network"] | {"weights": "pretrained"}
    change(saved, network=network)
    assert qurate.load(saved).config.weights == "none"


@pytest.mark.parametrize(
    "spoil",
    [
        lambda path: path.write_bytes(b""),
        lambda path: path.write_text("[" * 100_000),
        lambda path: path.write_bytes(b"\xff\xfe"),
        lambda path: path.unlink(),
    ],
)
def test_a_damaged_description_is_a_model_error(saved: Path, spoil: Callable[[Path], None]) -> None:
    spoil(saved / "model.json")
    with pytest.raises(ModelError):
        qurate.load(saved)


@pytest.mark.parametrize("run", [5, None, "", "x" * 5000])
def test_what_is_no_path_is_a_model_error(run: Any) -> None:
    with pytest.raises(ModelError):
        qurate.load(run)


def test_a_model_that_cannot_be_written_says_so(saved: Path, tmp_path: Path) -> None:
    model = qurate.load(saved)
    (tmp_path / "file").touch()
    with pytest.raises(ModelError, match="cannot be written"):
        model.save(tmp_path / "file")
    for nothing in (None, "", "a\0b"):
        with pytest.raises(qurate.DataError, match="folder"):
            model.save(nothing)  # type: ignore[arg-type]


def test_images_without_classes_cannot_be_measured(saved: Path, tmp_path: Path) -> None:
    paint(tmp_path / "a.png", (60, 60, 200), seed=0)
    (tmp_path / "list.txt").write_text("a.png -1\n")
    with pytest.raises(qurate.DataError, match=r"list.txt: no image has a class"):
        qurate.load(saved).evaluate(tmp_path / "list.txt")


def test_probabilities_have_the_names_of_the_classes_and_the_files(saved: Path, tmp_path: Path) -> None:
    files = [tmp_path / "photos" / f"{i}.png" for i in range(3)]
    for number, file in enumerate(files):
        paint(file, (60, 60, 200), seed=number)
    (tmp_path / "photos" / "3.png").write_bytes(b"no image")
    model = qurate.load(saved)
    table, said = model.predict_proba(tmp_path / "photos"), model.predict(tmp_path / "photos")
    assert list(table.columns) == list(CLASSES)
    assert table.index.tolist() == said["file"].tolist()
    assert table.iloc[:3].sum(axis=1).tolist() == pytest.approx([1, 1, 1])
    assert table.iloc[:3].idxmax(axis=1).tolist() == said["label"][:3].tolist()
    assert table.iloc[:3].max(axis=1).tolist() == said["probability"][:3].tolist()
    assert bool(table.iloc[3].isna().all())
    best = model.predict_proba(tmp_path / "photos", top_k=2)
    assert list(best.columns) == ["label_1", "probability_1", "label_2", "probability_2"]
    assert best["label_1"].tolist()[:3] == said["label"].tolist()[:3]
    assert bool((best["probability_1"][:3] >= best["probability_2"][:3]).all())
    assert bool(best.iloc[3].isna().all())
    for wrong in (0, 4, True, "2"):
        with pytest.raises(ConfigError, match="top_k must be an integer between 1 and 3"):
            model.predict_proba(files, top_k=wrong)  # type: ignore[arg-type]


def test_images_in_memory_are_seen_as_their_files_are(saved: Path, tmp_path: Path) -> None:
    files = [tmp_path / f"{i}.png" for i in range(3)]
    for number, file in enumerate(files):
        paint(file, (60, 200, 60), seed=number)
    model = qurate.load(saved)
    wanted = model.predict_proba(files).to_numpy()
    images = [Image.open(file).convert("RGB") for file in files]
    arrays = [np.asarray(image) for image in images]
    for given in (images, arrays, np.stack(arrays), tuple(images)):
        found = model.predict_proba(given)
        assert found.index.tolist() == ["image 0", "image 1", "image 2"]
        assert found.to_numpy() == pytest.approx(wanted, abs=1e-6)
    photo = tmp_path / "photo.jpg"
    exif = Image.Exif()
    exif[0x0112] = 6  # a phone that was held upright
    images[0].resize((64, 32)).rotate(10).save(photo, exif=exif)
    assert model.predict_proba(Image.open(photo)).to_numpy() == pytest.approx(
        model.predict_proba([photo]).to_numpy(), abs=1e-6
    )
    one = model.predict(images[1])
    assert (one["file"].tolist(), len(model.predict(arrays[0]))) == (["image 0"], 1)
    assert one["label"][0] == CLASSES[int(wanted[1].argmax())]
    assert len(model.predict([images[0].convert("CMYK"), arrays[0][:, :, 0]])) == 2
    for strange in (arrays[0] / 255, np.zeros((4, 4, 5), np.uint8), [images[0], str(files[0])]):
        with pytest.raises(DataError, match="in memory"):
            model.predict(strange)  # type: ignore[arg-type]


def test_a_table_in_memory_is_measured_class_by_class(saved: Path, tmp_path: Path) -> None:
    files = [tmp_path / f"{i}.png" for i in range(4)]
    for number, file in enumerate(files):
        paint(file, (200, 60, 60), seed=number)
    model = qurate.load(saved)
    said = model.predict(files)["label"]
    wrong = next(name for name in CLASSES if name != said[3])
    found = model.evaluate(pd.DataFrame({"file": files, "label": [*said[:3], wrong]}))
    assert found.accuracy == 0.75
    table = found.table.set_index("class")
    assert table["images"].sum() == 4
    assert table["right"].sum() == 3
    assert f"{said[3]} (1)" in str(table.loc[wrong, "mistaken_for"])
    assert found.classes == CLASSES
    with pytest.raises(DataError, match=r"must have the columns 'file' .* and 'label', got 'image'"):
        model.evaluate(pd.DataFrame({"image": files}))
    with pytest.raises(DataError, match="labeled"):
        model.evaluate(pd.DataFrame({"file": [tmp_path / "gone.png"], "label": ["blue"]}))


def test_the_comparison_is_kept_with_the_model_or_why_there_is_none(saved: Path) -> None:
    compared = BaselineComparison(
        0.7, 0.6, 9, "k-fold over the labelled images", 0.2, 0.1, Gain(0.02, -0.1, 0.1, math.inf), "unclear", 0.03, 4
    )
    replace(qurate.load(saved), comparison=compared).save(saved)
    assert qurate.load(saved).comparison == compared
    stored = json.loads((saved / "model.json").read_text())["comparison"]
    damages: list[dict[str, Any]] = [{"verdict": "good"}, {"images": -1}, {"adapted": 3}, {"gain": {}}, {"more": 0.5}]
    for damage in damages:
        change(saved, comparison={**stored, **damage})
        with pytest.raises(ModelError, match="comparison"):
            qurate.load(saved)
    change(saved, comparison=None, no_comparison="It was switched off.")
    assert qurate.load(saved).comparison is None
    assert qurate.load(saved).no_comparison == "It was switched off."


def test_the_statistics_of_the_source_are_kept_with_the_model(saved: Path) -> None:
    model = qurate.load(saved)
    assert model.source_statistics is None
    width = model.network.width
    known = ClassStatistics(torch.tensor([4, 0, 2]), torch.arange(3.0 * width).view(3, width), torch.ones(width))
    replace(model, source_statistics=known).save(saved)
    found = qurate.load(saved).source_statistics
    assert found is not None
    for name, values in known.tensors.items():
        assert torch.equal(found.tensors[name], values)
    replace(model, source_statistics=replace(known, variance=-known.variance)).save(saved)
    with pytest.raises(ModelError, match=r"model.safetensors: damaged \(a variance of the source is negative\)"):
        qurate.load(saved)
    for damage in (5, {}, {"images": 1.5}):
        change(saved, source_statistics=damage)
        with pytest.raises(ModelError, match="source_statistics must be a table"):
            qurate.load(saved)
    change(saved, source_statistics=None)
    with pytest.raises(ModelError, match="source_counts"):
        qurate.load(saved)


def test_a_model_of_an_earlier_version_is_refused(saved: Path) -> None:
    about = json.loads((saved / "model.json").read_text())
    del about["sha256"], about["novelty"]
    (saved / "model.json").write_text(json.dumps(about))
    with pytest.raises(ModelError, match=r"lacks novelty, sha256\. Models of earlier versions .* adapt again"):
        qurate.load(saved)
