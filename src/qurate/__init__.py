"""qurate: adapt an image classifier to a new domain with a few labels per class.

Importing this package loads nothing heavy: each public name is imported when it is first used.
"""

from __future__ import annotations

import ast
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from qurate.active.pool import Pool as Pool
    from qurate.active.strategies import QueryStrategy as QueryStrategy
    from qurate.config import DQNConfig as DQNConfig
    from qurate.config import EpisodeConfig as EpisodeConfig
    from qurate.config import ExecutionConfig as ExecutionConfig
    from qurate.config import MethodConfig as MethodConfig
    from qurate.config import NetworkConfig as NetworkConfig
    from qurate.config import QLearningConfig as QLearningConfig
    from qurate.config import RewardConfig as RewardConfig
    from qurate.config import RunConfig as RunConfig
    from qurate.config import SelectionConfig as SelectionConfig
    from qurate.config import SelectorConfig as SelectorConfig
    from qurate.config import TrainingConfig as TrainingConfig
    from qurate.data.digits import digits_split as digits_split
    from qurate.data.domains import Domain as Domain
    from qurate.data.domains import from_arrays as from_arrays
    from qurate.data.domains import read_folder as read_folder
    from qurate.data.domains import read_unlabeled_folder as read_unlabeled_folder
    from qurate.data.lists import read_list as read_list
    from qurate.data.lists import read_table as read_table
    from qurate.data.samples import DataError as DataError
    from qurate.data.samples import Labeled as Labeled
    from qurate.data.samples import SealedLabels as SealedLabels
    from qurate.data.samples import Split as Split
    from qurate.data.samples import Unlabeled as Unlabeled
    from qurate.data.splits import read_mme_split as read_mme_split
    from qurate.data.splits import split_parts as split_parts
    from qurate.data.splits import split_target as split_target
    from qurate.embedding.embed import embed_split as embed_split
    from qurate.errors import ConfigError as ConfigError
    from qurate.errors import QurateError as QurateError
    from qurate.errors import TrainingError as TrainingError
    from qurate.estimator import SSDAClassifier as SSDAClassifier
    from qurate.evaluation import Metrics as Metrics
    from qurate.evaluation import evaluate as evaluate
    from qurate.evaluation import predict_probabilities as predict_probabilities
    from qurate.methods import Method as Method
    from qurate.presets import make_config as make_config
    from qurate.registry import METHODS as METHODS
    from qurate.registry import QUERY_STRATEGIES as QUERY_STRATEGIES
    from qurate.registry import SELECTORS as SELECTORS
    from qurate.runs.adapt import adapt as adapt
    from qurate.runs.cold_start import suggest as suggest
    from qurate.runs.model import AdaptedModel as AdaptedModel
    from qurate.runs.model import load as load
    from qurate.runs.options import AdaptOptions as AdaptOptions
    from qurate.selection.algorithm import Adaptation as Adaptation
    from qurate.selection.algorithm import fit as fit
    from qurate.selection.answered import Answered as Answered
    from qurate.selection.answered import Previous as Previous
    from qurate.selection.answered import answer as answer
    from qurate.selection.answered import fit_with_answers as fit_with_answers
    from qurate.selection.callbacks import Callback as Callback
    from qurate.selection.pseudo_labels import Positives as Positives
    from qurate.selection.pseudo_labels import Round as Round
    from qurate.selection.selectors import Selector as Selector

    __version__: str


def _read_public_names() -> dict[str, str]:
    """The module of each public name, read from the imports above, which are for type checkers and never run."""
    tree = ast.parse(Path(__file__).read_text(encoding="utf-8"))
    (block,) = (node for node in tree.body if isinstance(node, ast.If))
    imports = [node for node in block.body if isinstance(node, ast.ImportFrom)]
    return {alias.name: str(node.module) for node in imports for alias in node.names}


_MODULES = _read_public_names()

__all__ = ["__version__", *_MODULES]


def __getattr__(name: str) -> Any:
    """Import a public name when it is first used (PEP 562)."""
    if name == "__version__":
        from importlib.metadata import version

        found: Any = version("qurate")
    elif name in _MODULES:
        found = getattr(import_module(_MODULES[name]), name)
    else:
        raise AttributeError(f"module 'qurate' has no attribute {name!r}")
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
