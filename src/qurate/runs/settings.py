"""Which backbone, and what of it is trained."""

from __future__ import annotations

from typing import Literal

BACKBONE = "timm/tf_efficientnet_lite0.in1k"
"""Default backbone: 4.7 million weights, about 64 images per second on two idle cores. Our choice."""

Train = Literal["head", "full"]
