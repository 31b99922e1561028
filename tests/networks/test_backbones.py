from __future__ import annotations

import pickle
from pathlib import Path

import pytest
import safetensors.torch
import torch
import torchvision

from qurate.networks.backbone_names import BackboneError
from qurate.networks.backbones import DigitsCNN, build_backbone, load_weights


def test_digits_cnn_takes_small_images() -> None:
    assert DigitsCNN()(torch.zeros(2, 1, 8, 8)).shape == (2, 128)
    assert DigitsCNN()(torch.zeros(2, 1, 28, 28)).shape == (2, 128)


def test_timm_backbone_by_name_brings_its_own_normalisation() -> None:
    backbone = build_backbone("timm/tf_efficientnet_lite0")
    assert backbone.width == 1280
    assert backbone.transform is not None
    assert backbone.transform.mean == (0.5, 0.5, 0.5)
    assert (backbone.transform.resize, backbone.transform.crop) == (256, 224)
    with torch.no_grad():
        assert backbone.module.eval()(torch.zeros(1, 3, 224, 224)).shape == (1, 1280)


def test_real_weights_load_into_timm(office31_weights: Path) -> None:
    random = build_backbone("timm/tf_efficientnet_lite0").module.state_dict()
    loaded = build_backbone("timm/tf_efficientnet_lite0", str(office31_weights)).module.state_dict()
    stored = safetensors.torch.load_file(office31_weights)
    shared = loaded.keys() & stored.keys()
    assert len(shared) > 0.9 * len(loaded)
    assert all(torch.equal(loaded[name], stored[name]) for name in shared)
    assert not torch.equal(random["conv_stem.weight"], loaded["conv_stem.weight"])


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("resnet", "Unknown backbone 'resnet'. Allowed:"),
        ("timm/no_such_model", "timm has no model 'no_such_model'"),
        ("none", "needs input_width"),
    ],
)
def test_unknown_names_say_what_is_allowed(name: str, message: str) -> None:
    with pytest.raises(BackboneError, match=message):
        build_backbone(name)


def test_offline_pretrained_says_the_three_ways_out(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def no_network(*args: object, **kwargs: object) -> object:
        raise OSError("no route to host")

    monkeypatch.setattr("timm.create_model", no_network)
    monkeypatch.setattr(torchvision.models, "vgg16", no_network)
    for name in ("timm/resnet34.tv_in1k", "torchvision/vgg16"):
        with pytest.raises(BackboneError, match=r"Two ways out: \(1\).*\(2\).*`weights=FILE`"):
            build_backbone(name, "pretrained")


@pytest.mark.parametrize("suffix", [".safetensors", ".pth"])
def test_weights_from_a_local_file(tmp_path: Path, suffix: str) -> None:
    state = DigitsCNN().state_dict()
    path = tmp_path / f"weights{suffix}"
    if suffix == ".safetensors":
        safetensors.torch.save_file(state, path)
    else:
        torch.save(state, path)
    module = build_backbone("digits", str(path)).module
    assert all(torch.equal(module.state_dict()[name], state[name]) for name in state)


def test_foreign_weights_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "other.safetensors"
    safetensors.torch.save_file({"layer.weight": torch.zeros(2)}, path)
    with pytest.raises(BackboneError, match=r"lacks .* of the backbone's"):
        load_weights(DigitsCNN(), path)
    shaped = {name: torch.zeros(1) if value.ndim else value for name, value in DigitsCNN().state_dict().items()}
    safetensors.torch.save_file(shaped, path)
    with pytest.raises(BackboneError, match="another shape"):
        load_weights(DigitsCNN(), path)
    with pytest.raises(BackboneError, match="no such weight file"):
        load_weights(DigitsCNN(), tmp_path / "absent.pth")


class Bomb:
    """Creates a file when unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[object, tuple[Path]]:
        return Path.touch, (self.path,)


def test_a_pickle_with_code_is_never_run(tmp_path: Path) -> None:
    hostile, victim = tmp_path / "model.pth", tmp_path / "victim"
    hostile.write_bytes(pickle.dumps(Bomb(victim)))
    with pytest.raises(BackboneError, match="not a readable weight file"):
        load_weights(DigitsCNN(), hostile)
    assert not victim.exists()
