"""qurate: adapt an image classifier to a new domain with a few labels a class."""

from __future__ import annotations

from importlib.metadata import version

from qurate.config import MethodConfig, NetworkConfig, RunConfig, TrainingConfig
from qurate.data.digits import digits_split
from qurate.data.samples import Labeled, SealedLabels, Split, Unlabeled
from qurate.estimator import SSDAClassifier
from qurate.evaluation import Metrics, evaluate, predict_probabilities
from qurate.methods import METHODS, Method
from qurate.runs.adaptation import adapt
from qurate.runs.model import AdaptedModel
from qurate.runs.model import load_model as load
from qurate.selection.algorithm import fit
from qurate.training import TrainingError

__version__ = version("qurate")

__all__ = [
    "METHODS",
    "AdaptedModel",
    "Labeled",
    "Method",
    "MethodConfig",
    "Metrics",
    "NetworkConfig",
    "RunConfig",
    "SSDAClassifier",
    "SealedLabels",
    "Split",
    "TrainingConfig",
    "TrainingError",
    "Unlabeled",
    "__version__",
    "adapt",
    "digits_split",
    "evaluate",
    "fit",
    "load",
    "predict_probabilities",
]
