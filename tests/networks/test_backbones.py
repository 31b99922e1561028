"""timm's models at any size, with weights of another size, and tokens pooled in three ways."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import timm
import torch
import torchvision
from torch import Tensor, nn

from qurate.networks.backbone_names import BackboneError, BackboneName
from qurate.networks.backbones import DigitsCNN, build_backbone, build_timm, load_weights, output_shape
from qurate.runtime.randomness import generator


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


VIT = "vit_small_patch14_dinov2"
TINY = "test_vit"


def images(size: int) -> Tensor:
    return torch.randn(2, 3, size, size, generator=generator(0))


@pytest.mark.parametrize(("size", "stored"), [(224, 518), (518, 224)])
def test_a_vit_with_weights_of_another_size_is_timms_own(size: int, stored: int, tmp_path: Path) -> None:
    path = tmp_path / "weights.safetensors"
    weights = timm.create_model(VIT, img_size=stored, depth=2, num_classes=0).state_dict()
    weights["pos_embed"] = torch.randn(weights["pos_embed"].shape, generator=generator(1))  # they begin near zero
    safetensors.torch.save_file(weights, path)
    timms: Any = timm.create_model(  # timm's own way to weights of another size
        VIT, img_size=size, depth=2, num_classes=0, pretrained=True, pretrained_cfg_overlay={"file": str(path)}
    )
    ours = build_two_layers(size, path)
    assert ours.state_dict()["pos_embed"].shape == (1, (size // 14) ** 2 + 1, 384)
    inputs = images(size)
    with torch.no_grad():
        expected = timms.eval()(inputs)
        assert expected.shape == (2, 384)
        assert torch.equal(ours.eval()(inputs), expected)


def build_two_layers(size: int, path: Path) -> nn.Module:
    """The backbone by its name, but with two of its layers, to stay quick."""
    create = timm.create_model
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("timm.create_model", lambda name, **options: create(name, depth=2, **options))
        backbone = build_backbone(f"timm/{VIT}@{size}", str(path))
    assert backbone.width == 384
    assert backbone.transform is not None
    assert (backbone.transform.crop, backbone.transform.resize) == (size, round(size * 256 / 224))
    return backbone.module


@pytest.mark.parametrize(("name", "interpolation"), [(TINY, "bicubic"), ("tf_efficientnet_lite0", "bilinear")])
def test_images_are_resized_as_the_model_was_made_with(name: str, interpolation: str) -> None:
    transform = build_timm(BackboneName(f"timm/{name}"), pretrained=False).transform
    assert transform is not None
    data = timm.data.config.resolve_model_data_config(timm.create_model(name))
    assert data["interpolation"] == "bicubic"
    assert transform.interpolation == interpolation  # the published tables are of bilinear
    assert (transform.mean, transform.std) == (data["mean"], data["std"])


def test_tokens_are_pooled_three_ways() -> None:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model: Any = timm.create_model(TINY, num_classes=0).eval()
    size = 160
    pooled = {}
    for pooling in ("class", "mean", "both"):
        backbone = build_timm(BackboneName(f"timm/{TINY}", 0, pooling), pretrained=False)
        module: Any = backbone.module
        module.model.load_state_dict(model.state_dict())
        with torch.no_grad():
            pooled[pooling] = module.eval()(images(size))
        assert pooled[pooling].shape == (2, backbone.width)
    with torch.no_grad():
        tokens = model.forward_features(images(size))
        assert torch.allclose(pooled["class"], tokens[:, 0], atol=1e-6)
        assert torch.allclose(pooled["mean"], tokens[:, 1:].mean(dim=1), atol=1e-6)
        assert torch.equal(pooled["both"], torch.cat([pooled["class"], pooled["mean"]], dim=1))
        made_for = {"token": "class", "avg": "mean"}[model.global_pool]
        assert torch.allclose(model(images(size)), pooled[made_for], atol=1e-6)


def test_a_pooling_needs_a_class_token() -> None:
    with pytest.raises(BackboneError, match="models with a class token, and timm/test_resnet has none"):
        build_backbone("timm/test_resnet@mean")
    with pytest.raises(BackboneError, match="models of timm alone"):
        build_backbone("torchvision/resnet34@224")


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("timm/test_vit@100", r"100 cannot be taken by timm/test_vit \(its patches are 16 pixels.*96 and 112\."),
        ("timm/maxvit_nano_rw_256@200", r"200 cannot be taken by timm/maxvit_nano_rw_256.*The nearest sizes: \d+ and"),
    ],
)
def test_a_size_that_cannot_be_taken_names_the_nearest(name: str, message: str) -> None:
    with pytest.raises(BackboneError, match=message):
        build_backbone(name)


def test_a_convolutional_model_takes_any_size() -> None:
    backbone = build_backbone("timm/test_resnet@225")
    assert backbone.transform is not None
    assert backbone.transform.crop == 225
    with torch.no_grad():
        assert backbone.module.eval()(images(225)).shape == (2, backbone.width)


def test_the_width_is_that_of_the_vectors() -> None:
    backbone = build_backbone("timm/mobilenetv3_small_100")  # its num_features are those before its last layer
    assert output_shape(backbone.module, 224) == (1, 1024)
    assert backbone.width == 1024


def test_a_model_without_a_vector_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    maps: Any = nn.Sequential(nn.Conv2d(3, 4, 1))
    maps.pretrained_cfg = {"input_size": (3, 8, 8)}
    monkeypatch.setattr("timm.create_model", lambda name, **options: maps)
    with pytest.raises(BackboneError, match=r"timm/maps gives no vector for an image but numbers of shape \(4, 8, 8\)"):
        build_backbone("timm/maps")
