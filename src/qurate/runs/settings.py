"""From a few words to the whole configuration of a run on one's own images."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Literal

from qurate.config import MethodConfig, NetworkConfig, RunConfig, SelectionConfig, TrainingConfig
from qurate.errors import QurateError
from qurate.methods import METHODS
from qurate.networks.offline import OFFLINE_BACKBONE, offline_is_installed
from qurate.presets import POSITIVE_SHARE, with_preset
from qurate.selection.algorithm import SELECTORS

BACKBONE = "timm/tf_efficientnet_lite0.in1k"
"""Default backbone: 4.7 million weights, about 30 images a second on two cores. Our choice."""

Train = Literal["head", "full"]


class SettingError(QurateError, ValueError):
    """An argument that is none of those allowed, which the message lists."""


def make_config(
    *,
    method: str = "tml",
    selector: str = "dqn",
    backbone: str = BACKBONE,
    weights: str = "pretrained",
    train: Train = "head",
    seed: int = 0,
    steps: int = TrainingConfig.steps,
    rounds: int = SelectionConfig.rounds,
    device: str = "auto",
) -> RunConfig:
    """The run that `adapt` makes of its arguments; on a frozen backbone the inputs are its embeddings."""
    for name, value, allowed in (
        ("train", train, ("head", "full")),
        ("method", method, tuple(METHODS)),
        ("selector", selector, SELECTORS),
    ):
        if value not in allowed:
            raise SettingError(f"{name} must be one of {', '.join(allowed)}, got {value!r}.")
    network = NetworkConfig(bottleneck="normalized")
    if train == "full":
        network = dataclasses.replace(network, backbone=backbone, weights=weights)
    training = TrainingConfig(steps=steps, device=device, positive_share=POSITIVE_SHARE)
    config = RunConfig(network, MethodConfig(name=method), training, SelectionConfig(selector=selector), seed)
    if selector == "dqn":
        config = with_preset(config, "qurate")
    return dataclasses.replace(config, selection=dataclasses.replace(config.selection, rounds=rounds))


def find_weights(backbone: str, weights: str) -> str:
    """What 'auto' stands for here; a file by its whole path, for a run may be resumed from elsewhere."""
    if weights == "auto":
        fits = backbone.partition(".")[0] == OFFLINE_BACKBONE
        return "offline" if fits and offline_is_installed() else "pretrained"
    return str(Path(weights).resolve()) if Path(weights).is_file() else weights
