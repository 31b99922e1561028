from __future__ import annotations

import pytest

from qurate.errors import ConfigError
from qurate.networks.backbone_names import BackboneName, check_trainable, name_with, parse_backbones, weights_of


@pytest.mark.parametrize(
    ("name", "members"),
    [
        ("none", [BackboneName("none")]),
        ("timm/resnet34.tv_in1k", [BackboneName("timm/resnet34.tv_in1k")]),
        ("timm/vit@224", [BackboneName("timm/vit", 224)]),
        ("timm/vit@mean", [BackboneName("timm/vit", 0, "mean")]),
        ("timm/vit@518@both+timm/b", [BackboneName("timm/vit", 518, "both"), BackboneName("timm/b")]),
        ("timm/hf-hub:owner/name@main", [BackboneName("timm/hf-hub:owner/name@main")]),
    ],
)
def test_a_name_says_model_size_and_pooling_and_is_written_as_it_was_read(
    name: str, members: list[BackboneName]
) -> None:
    assert list(parse_backbones(name)) == members
    assert "+".join(str(member) for member in members) == name


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
