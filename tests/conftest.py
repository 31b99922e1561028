from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import safetensors.torch
import torchvision
from hypothesis import settings
from torch import nn

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # worker processes import what tests define
settings.register_profile("qurate", deadline=None)  # a busy machine is no failure
settings.load_profile("qurate")


@pytest.fixture(autouse=True, scope="session")
def own_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Embeddings of the tests stay out of the user's cache."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("QURATE_CACHE", str(tmp_path_factory.mktemp("embeddings")))
        patch.setenv("QURATE_ENGINE", "torch")  # installed or not; those of OpenVINO say so
        yield


@pytest.fixture(scope="session")
def office31() -> Path:
    """The Office-31 images and the public lists, which are no part of the repository."""
    beside = Path(__file__).resolve().parents[2] / "shared" / "data"
    root = Path(os.environ.get("QURATE_DATA") or beside) / "office31"
    if not (root / "splits").is_dir():
        pytest.skip(f"Office-31 is not at {root}; set QURATE_DATA to the folder that holds office31/")
    return root


@pytest.fixture(scope="session")
def office31_weights(office31: Path) -> Path:
    """Pretrained weights of timm's tf_efficientnet_lite0, which are no part of the repository."""
    path = office31.parents[1] / "weights" / "tf_efficientnet_lite0.safetensors"
    if not path.is_file():
        pytest.skip(f"the weights are not at {path}")
    return path


@pytest.fixture
def small_vgg(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Weights of a network that is built like VGG-16, but of few numbers, and that stands in for it."""

    def build(**_: object) -> torchvision.models.VGG:
        network = torchvision.models.VGG(nn.Sequential(nn.Conv2d(3, 2, 3)), init_weights=False)
        first, last, classes = nn.Linear(2 * 7 * 7, 8), nn.Linear(8, 4096), nn.Linear(4096, 5)
        network.classifier = nn.Sequential(first, nn.ReLU(), nn.Dropout(), last, nn.ReLU(), nn.Dropout(), classes)
        return network

    path = tmp_path / "small_vgg.safetensors"
    safetensors.torch.save_file(build().state_dict(), path)
    monkeypatch.setattr(torchvision.models, "vgg16", build)
    return path
