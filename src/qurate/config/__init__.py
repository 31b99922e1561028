"""What a run is: frozen dataclasses, every number marked "paper" or "our choice".

Every field is checked when a config is made. The numbers of a method are a subclass of `MethodConfig` in the method's
own file, those of a selector a subclass of `SelectorConfig`. `RunConfig.from_file` reads a config back.
"""

from qurate.config.agent import DQNConfig, EpisodeConfig, QLearningConfig
from qurate.config.choices import AdaptiveShareConfig, MethodConfig, NoneConfig, SelectorConfig, ShareConfig
from qurate.config.files import fingerprint, read_settings, to_dict
from qurate.config.run import (
    HOW_NOT_WHAT,
    NAMED_IF_CHANGED,
    Bottleneck,
    Device,
    NetworkConfig,
    Precision,
    RewardConfig,
    RunConfig,
    SelectionConfig,
    TrainingConfig,
)

__all__ = [
    "HOW_NOT_WHAT",
    "NAMED_IF_CHANGED",
    "AdaptiveShareConfig",
    "Bottleneck",
    "DQNConfig",
    "Device",
    "EpisodeConfig",
    "MethodConfig",
    "NetworkConfig",
    "NoneConfig",
    "Precision",
    "QLearningConfig",
    "RewardConfig",
    "RunConfig",
    "SelectionConfig",
    "SelectorConfig",
    "ShareConfig",
    "TrainingConfig",
    "fingerprint",
    "read_settings",
    "to_dict",
]
