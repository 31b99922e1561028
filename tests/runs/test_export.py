from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from qurate.config import NetworkConfig
from qurate.data.images import Transform
from qurate.networks.heads import Network, build_network
from qurate.runs import export
from qurate.runs.export import ExportError, describe, export_onnx, export_run
from qurate.runs.model import AdaptedModel, ModelError

onnxruntime = pytest.importorskip("onnxruntime", reason="needs the extra: pip install 'qurate[onnx]'")
pytest.importorskip("onnxscript", reason="needs the extra: pip install 'qurate[onnx]'")

CLASSES = ("apfel", "größe m", "日本")
CONFIG = NetworkConfig("timm/test_efficientnet", bottleneck="normalized", features=8)


def _network(config: NetworkConfig = CONFIG, input_width: int | None = None) -> Network:
    return build_network(config, n_classes=3, input_width=input_width, seed=0)


def _session(path: Path) -> Any:
    return onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> tuple[Network, Path]:
    network = _network()
    return network, export_onnx(network, CLASSES, network.transform, tmp_path_factory.mktemp("export") / "model.onnx")


def test_an_image_gets_the_models_probabilities_by_the_written_recipe(exported: tuple[Network, Path]) -> None:
    network, path = exported
    session = _session(path)
    recipe = session.get_modelmeta().custom_metadata_map
    image = Image.fromarray(np.random.default_rng(0).integers(0, 256, (50, 70, 3), dtype=np.uint8))

    side, crop = json.loads(recipe["resize"]), json.loads(recipe["crop"])
    offset = (side - crop) // 2
    window = image.resize((side, side), Image.Resampling.BILINEAR).crop((offset, offset, offset + crop, offset + crop))
    pixels = (np.asarray(window) / 255 - json.loads(recipe["mean"])) / json.loads(recipe["std"])
    batch = pixels.transpose(2, 0, 1)[None].astype(np.float32)
    (got,) = session.run([recipe["output"]], {recipe["input"]: batch})

    assert network.transform is not None
    with torch.no_grad():
        expected = network.eval()(network.transform.for_testing(image)[None]).softmax(dim=1)
    assert np.allclose(got, expected.numpy(), atol=1e-5)
    assert json.loads(recipe["classes"]) == list(CLASSES)


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
def test_a_head_on_embeddings_is_exported_too(tmp_path: Path, bottleneck: Any) -> None:
    network = _network(NetworkConfig(bottleneck=bottleneck, features=4), input_width=6).train()
    before = {name: values.clone() for name, values in network.state_dict().items()}
    session = _session(export_onnx(network, CLASSES, None, tmp_path / "model.onnx"))
    assert (session.get_inputs()[0].name, session.get_inputs()[0].shape[1:]) == ("embeddings", [6])
    assert session.get_modelmeta().custom_metadata_map["preprocessing"].startswith("None: the inputs are embeddings")
    assert network.training, "the network stays as it was"
    assert all(torch.equal(before[name], values) for name, values in network.state_dict().items())


def test_a_file_is_not_overwritten_by_chance(tmp_path: Path) -> None:
    network, path = _network(NetworkConfig(features=4), input_width=6), tmp_path / "model.onnx"
    path.write_text("mine")
    with pytest.raises(ExportError, match=r"exists. Choose another `out`, or pass `force=True`"):
        export_onnx(network, CLASSES, None, path)
    assert path.read_text() == "mine"
    export_onnx(network, CLASSES, None, path, force=True)
    assert _session(path).get_outputs()[0].name == "probabilities"
    with pytest.raises(ExportError, match=r"is a folder\. Name a file"):
        export_onnx(network, CLASSES, None, tmp_path)


def test_a_file_that_disagrees_is_not_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(export, "LARGEST_DIFFERENCE", -1.0)
    with pytest.raises(ExportError, match=r"differ from the model's by .* so nothing was written"):
        export_onnx(_network(NetworkConfig(features=4), input_width=6), CLASSES, None, tmp_path / "model.onnx")
    assert list(tmp_path.iterdir()) == []


def test_a_place_that_cannot_be_written_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(path: Path, content: bytes) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(export, "write_atomically", full)
    monkeypatch.setattr(export, "_convert", lambda *_: b"")
    with pytest.raises(ExportError, match=r"model.onnx: cannot be written \(No space left on device\). Make room"):
        export_onnx(_network(NetworkConfig(features=4), input_width=6), CLASSES, None, tmp_path / "model.onnx")


def test_without_the_extra_the_message_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(export, "find_spec", lambda name: None)
    with pytest.raises(ExportError, match=r"onnx, onnxscript, onnxruntime, .* pip install 'qurate\[onnx\]'"):
        export_run(tmp_path)


def test_wrong_arguments_are_named(tmp_path: Path) -> None:
    with pytest.raises(ExportError, match="classes must be the network's 3, got 2"):
        export_onnx(_network(NetworkConfig(features=4), input_width=6), CLASSES[:2], None, tmp_path / "model.onnx")
    with pytest.raises(ExportError, match="format must be 'onnx', got 'pickle'"):
        export_run(tmp_path, format="pickle")  # type: ignore[arg-type]  # what a user may type
    with pytest.raises(ModelError, match="must be the folder of a finished run"):
        export_run(tmp_path)


def test_the_recipe_names_every_number() -> None:
    said = describe(CLASSES, Transform(256, 224, (0.5, 0.4, 0.3), (0.1, 0.2, 0.3)))
    assert "resize to 256 x 256" in said["preprocessing"]
    assert "centre 224 x 224" in said["preprocessing"]
    assert (said["mean"], said["std"]) == ("[0.5, 0.4, 0.3]", "[0.1, 0.2, 0.3]")


def test_a_run_is_exported_beside_its_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    network = _network()
    AdaptedModel(network, CONFIG, CLASSES).save(tmp_path)
    path = export_run(tmp_path)
    assert path == tmp_path / "model.onnx"
    inputs = torch.randn(2, 3, 160, 160, generator=torch.Generator().manual_seed(0))
    (got,) = _session(path).run(None, {"images": inputs.numpy()})
    with torch.no_grad():
        assert np.allclose(got, network.eval()(inputs).softmax(dim=1).numpy(), atol=1e-4)
    with pytest.raises(ExportError, match="exists"):
        export_run(tmp_path)
    with pytest.raises(ExportError, match="exists"):
        AdaptedModel(network, CONFIG, CLASSES).export(path)
    monkeypatch.setattr(export, "_convert", lambda *_: b"content")
    assert export_run(tmp_path, tmp_path / "other.onnx").read_bytes() == b"content"
    assert AdaptedModel(network, CONFIG, CLASSES).export(path, force=True).read_bytes() == b"content"
