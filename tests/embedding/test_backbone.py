from __future__ import annotations

import pytest
import timm
import torch
from torch import nn

from qurate.data.images import Transform
from qurate.embedding import backbone as precision
from qurate.embedding.backbone import FrozenBackbone, choose_precision, digest_weights, freeze_module, has_attention
from qurate.errors import ConfigError
from qurate.networks.backbones import build_backbone
from qurate.runtime.tensors import tensor_digest


@pytest.fixture(autouse=True)
def unset(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("QURATE_PRECISION", raising=False)


@pytest.mark.parametrize(
    ("name", "attends"),
    [
        ("test_vit", True),
        ("vit_small_patch14_dinov2", True),
        ("eva02_tiny_patch14_224", True),
        ("swin_tiny_patch4_window7_224", True),
        ("tf_efficientnet_lite0", False),
        ("resnet34", False),
        ("convnext_atto", False),
    ],
)
def test_networks_with_attention_are_known(name: str, attends: bool) -> None:
    with torch.device("meta"):
        assert has_attention(timm.create_model(name)) is attends


def test_the_precision_depends_on_device_processor_and_network(monkeypatch: pytest.MonkeyPatch) -> None:
    convolution, attention = nn.Conv2d(3, 3, 1), nn.MultiheadAttention(4, 1)
    for able in (True, False):
        monkeypatch.setattr(precision, "multiplies_bfloat16", lambda able=able: able)
        assert choose_precision(convolution, "cpu") == torch.float32  # as in the published tables
        assert choose_precision(attention, "cpu") == (torch.bfloat16 if able else torch.float32)
        assert choose_precision(convolution, "cuda") == choose_precision(attention, "cuda") == torch.float16
        assert choose_precision(attention, "mps") == torch.float32


def test_the_environment_decides(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("QURATE_PRECISION", "float32")
    assert choose_precision(nn.MultiheadAttention(4, 1), "cuda") == torch.float32
    monkeypatch.setenv("QURATE_PRECISION", "bfloat16")
    assert choose_precision(nn.Conv2d(3, 3, 1), "cpu") == torch.bfloat16
    monkeypatch.setenv("QURATE_PRECISION", "float8")
    with pytest.raises(ConfigError, match="QURATE_PRECISION must be one of float32, bfloat16, float16"):
        choose_precision(nn.Identity(), "cpu")


def test_a_cache_tells_precisions_apart() -> None:
    frozen = FrozenBackbone("one", nn.Linear(2, 2), 2, Transform())
    one, two = (frozen.describe_space(kind) for kind in (torch.float32, torch.float16))
    assert one != two
    assert '"precision": "float16"' in two
    assert '"decoding": "JPEG at no less than 3 times the resized side"' in two


def test_the_backbone_of_a_model_that_was_just_trained_embeds_in_evaluation_mode() -> None:
    trained = build_backbone("timm/test_efficientnet", "none", None).module.train()
    module = freeze_module("timm/test_efficientnet", trained, 256, (Transform(32, 32),)).module
    assert not any(layer.training for layer in module.modules())


def test_weights_that_change_in_any_way_have_another_digest() -> None:
    module = torch.nn.Linear(3, 2)
    first = digest_weights(module)
    assert digest_weights(module) == first == tensor_digest(module.state_dict())
    module.weight.data.numpy()[1, 2] += 1e-3  # torch does not count this as a change
    assert digest_weights(module) != first
    assert digest_weights(module) == tensor_digest(module.state_dict())
    other = torch.nn.Linear(3, 2)
    assert digest_weights(other) == tensor_digest(other.state_dict()) != digest_weights(module)
