"""Which backbone, what of it is trained, and how a person is asked."""

from __future__ import annotations

from typing import Literal

BACKBONE = "timm/tf_efficientnet_lite0.in1k"
"""Default backbone: 4.7 million weights, about 64 images per second on two idle cores. Our choice."""

Train = Literal["head", "full"]

DEFAULT_ASKER = "density"
"""How images to label are chosen. Our choice: the best of the askers on Office-31 (docs/asking.md)."""
