"""The model that a run gives: the adapted network and S+T on one backbone, calibrated as one, and the score `known`."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import NamedTuple

import torch
from torch import Tensor

from qurate.calibration import Calibration, combine
from qurate.data.samples import Inputs
from qurate.networks.heads import Network
from qurate.networks.inference import log_probabilities
from qurate.novelty import Novelty


class Prediction(NamedTuple):
    """What the model says of N images.

    Args:
        log_probs: Calibrated log-probabilities, (N, K).
        known: How well each image fits any class, 0 to 1; NaN where that is not known, (N,).
        flagged: Which fit none, (N,) bool.
        baseline: Log-probabilities by S+T alone, as sure as it is within the model, (N, K); None where it has no part.
    """

    log_probs: Tensor
    known: Tensor
    flagged: Tensor
    baseline: Tensor | None = None

    @property
    def labels(self) -> Tensor:
        """The most probable class of each image, (N,) int64."""
        return self.log_probs.argmax(dim=1)

    @property
    def probabilities(self) -> Tensor:
        """(N, K)."""
        return self.log_probs.exp()


@dataclass(frozen=True, eq=False)
class CombinedModel:
    """A network, perhaps with S+T beside it.

    Args:
        network: The adapted F and C.
        baseline: S+T, which takes the same inputs; None where there is none.
        calibration: How both are combined, and how sure the result may be.
        novelty: How well images fit the classes; None where that was not measured.
    """

    network: Network
    baseline: Network | None = None
    calibration: Calibration = field(default_factory=Calibration)
    novelty: Novelty | None = None

    def predict(self, inputs: Inputs) -> Prediction:
        """Probabilities and `known` of all inputs."""
        baseline = None
        if self.baseline is not None and self.calibration.baseline_temperature is not None:
            baseline = log_probabilities(self.baseline, inputs)
        log_probs = combine(log_probabilities(self.network, inputs), baseline, self.calibration)
        if baseline is not None:
            baseline = combine(baseline, None, Calibration(self.calibration.baseline_temperature or 1.0))
        if self.novelty is None or not isinstance(inputs, Tensor):
            none = torch.zeros(len(log_probs), dtype=torch.bool)
            return Prediction(log_probs, torch.full((len(log_probs),), math.nan), none, baseline)
        return Prediction(log_probs, self.novelty.known(inputs), self.novelty.flags(inputs), baseline)
