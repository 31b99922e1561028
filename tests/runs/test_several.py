"""Several backbones side by side, from folders to a model, its predictions and its ONNX file."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import safetensors.torch
import timm
import torch
from tests.own_images import BACKBONE, make_folders, save_weights, small_config

import qurate
from qurate.data.images import ImageFiles, read_image
from qurate.data.own_images import find_images
from qurate.embedding.backbone import FrozenBackbones, freeze_backbones
from qurate.embedding.embed import embed_files
from qurate.errors import ConfigError
from qurate.networks.backbones import join_vectors
from qurate.runtime.randomness import generator, seeded

SECOND = "timm/test_vit@96@both"
BOTH = f"{BACKBONE}+{SECOND}"


@pytest.fixture(scope="module")
def weights(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("weights")
    with seeded(1):
        safetensors.torch.save_file(
            timm.create_model("test_vit", num_classes=0).state_dict(), folder / "vit.safetensors"
        )
    return f"{save_weights(folder / 'resnet.safetensors')}+{folder / 'vit.safetensors'}"


@pytest.fixture
def place(tmp_path: Path) -> dict[str, Any]:
    return make_folders(tmp_path)


def test_joined_vectors_are_of_equal_length_and_as_large_as_others() -> None:
    small, large = (scale * torch.randn(5, width, generator=generator(0)) for scale, width in ((0.01, 3), (100.0, 9)))
    joined = join_vectors([small, large])
    first, second = joined.split([3, 9], dim=1)
    assert torch.allclose(first.norm(dim=1), second.norm(dim=1))
    assert joined.square().mean().item() == pytest.approx(1.0)
    assert torch.allclose(torch.nn.functional.cosine_similarity(first, small), torch.ones(5))


def test_each_is_cached_by_itself(
    place: dict[str, Any], weights: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("QURATE_PRECISION", "float32")  # that of the module itself; attention may have bfloat16
    cache, files = tmp_path / "cache", ImageFiles(tuple(find_images(place["unlabeled"])))
    each = [
        embed_files(files.paths, freeze_backbones(name, own), cache=cache).of(files)
        for name, own in zip((BACKBONE, SECOND), weights.split("+"), strict=True)
    ]
    told: list[tuple[int, int]] = []
    frozen = freeze_backbones(BOTH, weights)
    assert isinstance(frozen, FrozenBackbones)
    found = embed_files(files.paths, frozen, cache=cache, on_progress=lambda *counts: told.append(counts))
    assert found.made == 0
    assert torch.equal(found.of(files), join_vectors(each))
    assert found.of(files).shape == (len(files), frozen.width)
    assert told[-1] == (2 * len(files), 2 * len(files))
    assert len([path for path in cache.iterdir() if path.is_dir()]) == 2
    with torch.no_grad():
        image = read_image(files.paths[0])
        whole = frozen.module(*(member.transform.for_testing(image)[None] for member in frozen.members))
    assert torch.allclose(whole[0], found.of(files)[0], atol=1e-4)


def test_a_run_with_two_backbones_predicts_and_is_exported(place: dict[str, Any], weights: str, tmp_path: Path) -> None:
    pytest.importorskip("onnxscript", reason="needs the extra: pip install 'qurate[onnx]'")
    onnxruntime = pytest.importorskip("onnxruntime", reason="needs the extra: pip install 'qurate[onnx]'")
    run = tmp_path / "run"
    config = small_config("none")
    qurate.adapt(
        **place, config=config, backbone=BOTH, weights=weights, out=run, cache=tmp_path / "cache", compare=False
    )
    model = qurate.load(run)
    assert model.config.backbone == BOTH
    kept = pd.read_csv(run / "predictions.csv").set_index("file")
    told = model.predict(place["unlabeled"]).set_index("file").loc[kept.index]
    assert list(told["label"]) == list(kept["label"])
    assert told["probability"].to_numpy() == pytest.approx(kept["probability"].to_numpy(), abs=1e-4)
    assert model.evaluate(place["labeled"]).accuracy >= 0

    session: Any = onnxruntime.InferenceSession(model.export(tmp_path / "m.onnx"), providers=["CPUExecutionProvider"])
    recipe = session.get_modelmeta().custom_metadata_map
    inputs = recipe["input"].split(", ")
    assert inputs == ["images_1", "images_2"]
    assert [json.loads(recipe[f"crop_{number}"]) for number in (1, 2)] == [160, 96]
    image = read_image(Path(kept.index[0]))
    given = {
        name: transform.for_testing(image)[None].numpy()
        for name, transform in zip(inputs, model.transforms, strict=True)
    }
    (said,) = session.run([recipe["output"]], given)
    assert float(np.max(said)) == pytest.approx(kept["probability"].iloc[0], abs=1e-4)


def test_several_are_only_put_side_by_side_frozen(place: dict[str, Any], weights: str) -> None:
    with pytest.raises(ConfigError, match="can only be frozen"):
        qurate.adapt(**place, backbone=BOTH, weights=weights, train="full")
