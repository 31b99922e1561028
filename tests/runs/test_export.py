from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from qurate.calibration import Calibration
from qurate.config import NetworkConfig
from qurate.data.images import Transform
from qurate.networks.heads import Network, build_network
from qurate.novelty import Novelty
from qurate.runs import export
from qurate.runs.export import ExportError, check_possible, describe, export_onnx
from qurate.runs.model import AdaptedModel, load

onnxruntime = pytest.importorskip("onnxruntime", reason="needs the extra: pip install 'qurate[onnx]'")
pytest.importorskip("onnxscript", reason="needs the extra: pip install 'qurate[onnx]'")

CLASSES = ("apfel", "größe m", "日本")
CONFIG = NetworkConfig("timm/test_efficientnet", bottleneck="normalized", features=8)


def _network(config: NetworkConfig = CONFIG) -> Network:
    return build_network(config, n_classes=3, input_width=None, seed=0)


def _export(network: Network, path: Path, classes: tuple[str, ...] = CLASSES, *, force: bool = False) -> Path:
    return export_onnx(AdaptedModel(network, CONFIG, classes), path, force=force)


def _session(path: Path) -> Any:
    return onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> tuple[Network, Path]:
    network = _network()
    return network, _export(network, tmp_path_factory.mktemp("export") / "model.onnx")


def test_an_image_gets_the_models_probabilities_by_the_written_recipe(exported: tuple[Network, Path]) -> None:
    network, path = exported
    session = _session(path)
    recipe = session.get_modelmeta().custom_metadata_map
    image = Image.fromarray(np.random.default_rng(0).integers(0, 256, (50, 70, 3), dtype=np.uint8))

    side, crop = json.loads(recipe["resize"]), json.loads(recipe["crop"])
    offset = (side - crop) // 2
    by = Image.Resampling[recipe["interpolation"].upper()]
    window = image.resize((side, side), by).crop((offset, offset, offset + crop, offset + crop))
    pixels = (np.asarray(window) / 255 - json.loads(recipe["mean"])) / json.loads(recipe["std"])
    batch = pixels.transpose(2, 0, 1)[None].astype(np.float32)
    (got,) = session.run([recipe["output"]], {recipe["input"]: batch})

    assert network.transform is not None
    with torch.no_grad():
        expected = network.eval()(network.transform.for_testing(image)[None]).softmax(dim=1)
    assert np.allclose(got, expected.numpy(), atol=1e-5)
    assert json.loads(recipe["classes"]) == list(CLASSES)


def test_the_temperature_is_part_of_the_graph(exported: tuple[Network, Path], tmp_path: Path) -> None:
    network, plain = exported
    calibration = Calibration(4.0, "held-out images", 62)
    model = AdaptedModel(network, CONFIG, CLASSES, calibration=calibration)
    path = export_onnx(model, tmp_path / "calibrated.onnx")
    inputs = torch.randn(5, 3, 160, 160, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        logits = network.eval()(inputs)
    for file, temperature in ((path, 4.0), (plain, 1.0)):
        (got,) = _session(file).run(["probabilities"], {"images": inputs.numpy()})
        assert np.allclose(got, (logits / temperature).softmax(dim=1).numpy(), atol=1e-5)
    said = [_session(file).get_modelmeta().custom_metadata_map["calibration"] for file in (path, plain)]
    assert "on 62 held-out images (temperature 4.00)" in said[0]
    assert "not calibrated" in said[1]


def test_s_and_t_and_the_score_of_belonging_are_part_of_the_graph(tmp_path: Path) -> None:
    network, draw = _network().eval(), torch.Generator().manual_seed(3)
    head = replace(CONFIG, backbone="none")
    baseline = build_network(head, n_classes=3, input_width=network.width, seed=5).eval()
    center, weight = (torch.randn(network.width, generator=draw) for _ in range(2))
    novelty = Novelty(center / 50, weight, 0.1, torch.linspace(-1, 2, 12), threshold=0.0, share=0.5)
    calibration = Calibration(4.0, "held-out images", 62, 2.0)
    model = AdaptedModel(network, CONFIG, CLASSES, calibration=calibration, baseline=baseline, novelty=novelty)
    session = _session(model.export(tmp_path / "whole.onnx"))
    inputs = torch.randn(5, 3, 160, 160, generator=draw)
    probabilities, known = session.run(["probabilities", "known"], {"images": inputs.numpy()})
    with torch.no_grad():
        vectors = network.backbone(inputs)
    expected = model.combined.predict(vectors)
    assert np.allclose(probabilities, expected.probabilities.numpy(), atol=1e-5)
    assert np.allclose(known, expected.known.numpy(), atol=1e-4)
    about = session.get_modelmeta().custom_metadata_map
    assert about["output"] == "probabilities, known"
    assert (known < json.loads(about["known_threshold"])).tolist() == expected.flagged.tolist()


def test_batches_have_any_size(exported: tuple[Network, Path]) -> None:
    _, path = exported
    session = _session(path)
    (given,), (gives,) = session.get_inputs(), session.get_outputs()
    assert (given.name, given.shape[1:], gives.name, gives.shape[1:]) == ("images", [3, 160, 160], "probabilities", [3])
    for size in (1, 2, 7):
        (got,) = session.run(None, {"images": np.zeros((size, 3, 160, 160), np.float32)})
        assert got.shape == (size, 3)
        assert np.allclose(got.sum(axis=1), 1, atol=1e-5)


@pytest.mark.parametrize("bottleneck", ["none", "linear", "normalized"])
def test_the_network_stays_as_it_was(tmp_path: Path, bottleneck: Any) -> None:
    network = _network(replace(CONFIG, bottleneck=bottleneck)).train()
    before = {name: values.clone() for name, values in network.state_dict().items()}
    session = _session(_export(network, tmp_path / "model.onnx"))
    assert session.get_inputs()[0].name == "images"
    assert network.training
    assert all(torch.equal(before[name], values) for name, values in network.state_dict().items())


def test_a_file_is_not_overwritten_by_chance(tmp_path: Path) -> None:
    network, path = _network(), tmp_path / "model.onnx"
    path.write_text("mine")
    with pytest.raises(ExportError, match=r"exists. Choose another `out`, or pass `force=True`"):
        _export(network, path)
    assert path.read_text() == "mine"
    _export(network, path, force=True)
    assert _session(path).get_outputs()[0].name == "probabilities"
    with pytest.raises(ExportError, match=r"is a folder\. Name a file"):
        _export(network, tmp_path)


def test_a_file_that_disagrees_is_not_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(export, "LARGEST_DIFFERENCE", -1.0)
    with pytest.raises(ExportError, match=r"differ from the model's by .* so nothing was written"):
        _export(_network(), tmp_path / "model.onnx")
    assert list(tmp_path.iterdir()) == []


def test_a_place_that_cannot_be_written_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(path: Path, content: bytes) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(export, "write_atomically", full)
    monkeypatch.setattr(export, "_convert", lambda *_: b"")
    with pytest.raises(ExportError, match=r"model.onnx: cannot be written \(No space left on device\). Make room"):
        _export(_network(), tmp_path / "model.onnx")


def test_without_the_extra_the_message_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(export, "find_spec", lambda name: None)
    with pytest.raises(ExportError, match=r"onnx, onnxscript, onnxruntime, .* pip install 'qurate\[onnx\]'"):
        check_possible(tmp_path / "model.onnx", force=False)


def test_wrong_arguments_are_named(tmp_path: Path) -> None:
    with pytest.raises(ExportError, match="classes must be the network's 3, got 2"):
        _export(_network(), tmp_path / "model.onnx", CLASSES[:2])


def test_the_recipe_names_every_number() -> None:
    said = describe(CLASSES, [Transform(256, 224, (0.5, 0.4, 0.3), (0.1, 0.2, 0.3))], Calibration(), None)
    assert "resize to 256 x 256" in said["preprocessing"]
    assert "centre 224 x 224" in said["preprocessing"]
    assert (said["mean"], said["std"]) == ("[0.5, 0.4, 0.3]", "[0.1, 0.2, 0.3]")


def test_a_saved_model_is_exported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    network = _network()
    AdaptedModel(network, CONFIG, CLASSES).save(tmp_path)
    path = load(tmp_path).export(tmp_path / "model.onnx")
    assert path == tmp_path / "model.onnx"
    inputs = torch.randn(2, 3, 160, 160, generator=torch.Generator().manual_seed(0))
    (got,) = _session(path).run(None, {"images": inputs.numpy()})
    with torch.no_grad():
        assert np.allclose(got, network.eval()(inputs).softmax(dim=1).numpy(), atol=1e-4)
    with pytest.raises(ExportError, match="exists"):
        AdaptedModel(network, CONFIG, CLASSES).export(path)
    monkeypatch.setattr(export, "_convert", lambda *_: b"content")
    assert AdaptedModel(network, CONFIG, CLASSES).export(path, force=True).read_bytes() == b"content"
