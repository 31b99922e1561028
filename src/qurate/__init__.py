"""qurate: adapt an image classifier to a new domain with a few labels per class.

Importing this package loads nothing heavy: each public name is imported when it is first used.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from qurate.config import (
        DQNConfig,
        EpisodeConfig,
        MethodConfig,
        NetworkConfig,
        QLearningConfig,
        RewardConfig,
        RunConfig,
        SelectionConfig,
        SelectorConfig,
        TrainingConfig,
    )
    from qurate.data.digits import digits_split
    from qurate.data.domains import Domain, from_arrays
    from qurate.data.embedding.embed import embed_split
    from qurate.data.folders import read_folder, read_unlabeled_folder
    from qurate.data.lists import read_list, read_table
    from qurate.data.samples import DataError, Labeled, SealedLabels, Split, Unlabeled
    from qurate.data.splits import read_mme_split, split_parts, split_target
    from qurate.errors import ConfigError, QurateError
    from qurate.estimator import SSDAClassifier
    from qurate.evaluation import Metrics, evaluate, predict_probabilities
    from qurate.methods import Method
    from qurate.presets import make_config
    from qurate.registry import METHODS, SELECTORS
    from qurate.runs.adaptation import adapt
    from qurate.runs.model import AdaptedModel
    from qurate.runs.model import load_model as load
    from qurate.selection.algorithm import Adaptation, fit
    from qurate.selection.callbacks import Callback
    from qurate.selection.positives import Positives
    from qurate.selection.pseudo_labels import Round
    from qurate.selection.selectors.base import Selector
    from qurate.training import TrainingError

    __version__: str

_HOMES = {
    "config": (
        *("DQNConfig", "EpisodeConfig", "MethodConfig", "NetworkConfig", "QLearningConfig", "RewardConfig"),
        *("RunConfig", "SelectionConfig", "SelectorConfig", "TrainingConfig"),
    ),
    "data.digits": ("digits_split",),
    "data.domains": ("Domain", "from_arrays"),
    "data.embedding.embed": ("embed_split",),
    "data.folders": ("read_folder", "read_unlabeled_folder"),
    "data.lists": ("read_list", "read_table"),
    "data.samples": ("DataError", "Labeled", "SealedLabels", "Split", "Unlabeled"),
    "data.splits": ("read_mme_split", "split_parts", "split_target"),
    "errors": ("ConfigError", "QurateError"),
    "estimator": ("SSDAClassifier",),
    "evaluation": ("Metrics", "evaluate", "predict_probabilities"),
    "methods": ("Method",),
    "presets": ("make_config",),
    "registry": ("METHODS", "SELECTORS"),
    "runs.adaptation": ("adapt",),
    "runs.model": ("AdaptedModel", "load"),
    "selection.algorithm": ("Adaptation", "fit"),
    "selection.callbacks": ("Callback",),
    "selection.positives": ("Positives",),
    "selection.pseudo_labels": ("Round",),
    "selection.selectors.base": ("Selector",),
    "training": ("TrainingError",),
}
"""The module of each public name."""
_MODULES = {name: module for module, names in _HOMES.items() for name in names}
_NAMES_AT_HOME = {"load": "load_model"}

__all__ = [
    "METHODS",
    "SELECTORS",
    "Adaptation",
    "AdaptedModel",
    "Callback",
    "ConfigError",
    "DQNConfig",
    "DataError",
    "Domain",
    "EpisodeConfig",
    "Labeled",
    "Method",
    "MethodConfig",
    "Metrics",
    "NetworkConfig",
    "Positives",
    "QLearningConfig",
    "QurateError",
    "RewardConfig",
    "Round",
    "RunConfig",
    "SSDAClassifier",
    "SealedLabels",
    "SelectionConfig",
    "Selector",
    "SelectorConfig",
    "Split",
    "TrainingConfig",
    "TrainingError",
    "Unlabeled",
    "__version__",
    "adapt",
    "digits_split",
    "embed_split",
    "evaluate",
    "fit",
    "from_arrays",
    "load",
    "make_config",
    "predict_probabilities",
    "read_folder",
    "read_list",
    "read_mme_split",
    "read_table",
    "read_unlabeled_folder",
    "split_parts",
    "split_target",
]


def __getattr__(name: str) -> Any:
    """Import a public name when it is first used (PEP 562)."""
    if name == "__version__":
        from importlib.metadata import version

        found: Any = version("qurate")
    elif name in _MODULES:
        found = getattr(import_module(f"qurate.{_MODULES[name]}"), _NAMES_AT_HOME.get(name, name))
    else:
        raise AttributeError(f"module 'qurate' has no attribute {name!r}")
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
