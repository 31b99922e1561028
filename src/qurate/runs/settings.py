"""Which backbone, and where its weights come from."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from qurate.data.places import is_file
from qurate.errors import ConfigError
from qurate.networks.offline import OFFLINE_BACKBONE, offline_is_installed

BACKBONE = "timm/tf_efficientnet_lite0.in1k"
"""Default backbone: 4.7 million weights, about 64 images per second on two idle cores. Our choice."""

Train = Literal["head", "full"]


def find_weights(backbone: str, weights: str) -> str:
    """What 'auto' stands for here; a file by its whole path, for a run may be resumed from elsewhere."""
    for argument, word in (("backbone", backbone), ("weights", weights)):
        if not isinstance(word, str) or not word:
            raise ConfigError(f"{argument} must be text, got {word!r}.")
    if weights == "auto":
        fits = backbone.partition(".")[0] == OFFLINE_BACKBONE
        return "offline" if fits and offline_is_installed() else "pretrained"
    return str(Path(weights).resolve()) if is_file(Path(weights)) else weights
