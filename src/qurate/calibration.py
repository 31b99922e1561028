"""How sure a model may be: temperatures, from labelled target images that it was not trained on.

softmax(log p / T) are the probabilities of a network with its logits divided by T. T changes how sure it is of a class,
never which class it predicts. Guo et al., "On calibration of modern neural networks", 2017.

The adapted network is sure of nearly everything; S+T, trained without D_u, knows better what it does not know. So the
model is both: softmax(log p_adapted / T_a + log p_S+T / T_b), a logarithmic opinion pool.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Any, Literal, get_args

import torch
from torch import Tensor
from torch.nn import functional as F

from qurate.data.samples import DataError, check_positions, describe

LEAST, MOST = 0.1, 100.0
"""A temperature is never outside of these. Our choice."""
PRIOR = 0.5
"""Images that are added to the held-out ones as right and as wrong, each: Jeffreys' prior of a share."""
_EVIDENCE = 3.84
"""Twice the gain in log-likelihood from which on a temperature below 1 is believed: 5 % of chi-square."""
_HALVINGS = 60
_ROUNDING = 1e-7  # of probabilities in float32

Source = Literal["held-out images", "agreement with S+T", "the run before", "nothing"]


@dataclass(frozen=True)
class Calibration:
    """What a model's logits are divided by, and how that was found.

    Args:
        temperature: T of the adapted network; 1 leaves its probabilities as they are.
        by: What it was found from.
        images: How many held-out images, each counted once per repetition; 0 where there were none.
        baseline_temperature: T of S+T, whose probabilities are multiplied by; None where there is no S+T in the model.
    """

    temperature: float = 1.0
    by: Source = "nothing"
    images: int = 0
    baseline_temperature: float | None = None

    def __post_init__(self) -> None:
        for name in ("temperature", "baseline_temperature"):
            value = getattr(self, name)
            if value is None and name == "baseline_temperature":
                continue
            if type(value) not in (int, float) or not LEAST <= value <= MOST:
                raise DataError(f"{name} must be a number from {LEAST:g} to {MOST:g}, got {value!r}.")
        if self.by not in get_args(Source):
            raise DataError(f"by must be one of {', '.join(get_args(Source))}, got {self.by!r}.")
        if type(self.images) is not int or self.images < 0:
            raise DataError(f"images must be a whole number from 0 on, got {self.images!r}.")

    def __str__(self) -> str:
        if self.by == "held-out images":
            both = "" if self.baseline_temperature is None else f", of S+T {self.baseline_temperature:.2f}"
            return f"calibrated on {self.images} held-out images (temperature {self.temperature:.2f}{both})"
        if self.by == "agreement with S+T":
            return f"calibrated without labels, by how often it agrees with S+T (temperature {self.temperature:.2f})"
        if self.by == "the run before":
            kept = "as sure, on average, as those of the run before, which were calibrated"
            return f"{kept} (temperature {self.temperature:.2f})"
        return "not calibrated: probabilities are usually too high"

    @classmethod
    def of(cls, stored: Any) -> Calibration:
        """The calibration in model.json.

        Raises:
            DataError: If it is no calibration.
        """
        names = [each.name for each in fields(cls)]
        if not isinstance(stored, dict) or stored.keys() != {*names}:
            raise DataError(f"calibration must be a table of {', '.join(names)}, got {str(stored)[:60]}.")
        return cls(**stored)


def at_temperature(log_probabilities: Tensor, temperature: float) -> Tensor:
    """Probabilities softmax(log p / T), (N, K)."""
    return F.softmax(log_probabilities / temperature, dim=1)


def combine(adapted: Tensor, baseline: Tensor | None, calibration: Calibration) -> Tensor:
    """Calibrated log-probabilities of the model: log softmax(log p_adapted / T_a + log p_S+T / T_b), (N, K).

    Args:
        adapted: Log-probabilities of the adapted network, (N, K).
        baseline: Those of S+T; None where the model has none.
        calibration: T_a and T_b.
    """
    if baseline is None or calibration.baseline_temperature is None:
        return F.log_softmax(adapted / calibration.temperature, dim=1)
    return F.log_softmax(adapted / calibration.temperature + baseline / calibration.baseline_temperature, dim=1)


def fit_combination(adapted: Tensor, baseline: Tensor, labels: Tensor) -> Calibration:
    """Both temperatures from held-out images: each network as sure as it may be, then their product.

    Args:
        adapted: Log-probabilities of held-out images by the adapted network, (n, K).
        baseline: Those by S+T, (n, K).
        labels: Their classes, (n,) int64.
    """
    first, second = (fit_temperature(log_probs, labels) for log_probs in (adapted, baseline))
    product = F.log_softmax(adapted.double() / first + baseline.double() / second, dim=1)
    both = fit_temperature(product, labels)
    first, second = (min(MOST, max(LEAST, both * each)) for each in (first, second))
    return Calibration(first, "held-out images", len(labels), second)


def fit_temperature(log_probabilities: Tensor, labels: Tensor) -> float:
    """The temperature under which held-out images are most likely.

    With b = 1 / T, it minimises the convex function of b

        sum_i nll_i(b) + a (mean over images of nll to the first guess + the same to the second guess)

    where nll is -b log p_y + log sum_k exp(b log p_k), and a is `PRIOR`: as if half an image more were right and half
    an image more were wrong. So a few images that are all right do not make the model sure of everything, nor a few
    that are all wrong sure of nothing. A temperature below 1, which makes the model surer than it is, is taken only
    where a likelihood-ratio test believes it (5 %); else it is 1.

    Args:
        log_probabilities: Of the held-out images, (n, K) with K of at least 2.
        labels: Their classes, (n,) int64.
    """
    log_probs, count = _checked(log_probabilities), len(log_probabilities)
    check_positions(labels, log_probs.shape[1], "fit_temperature: labels")
    if len(labels) != count:
        raise DataError(f"fit_temperature: {count} images but {len(labels)} labels.")
    first, second = log_probs.topk(2, dim=1).values.T
    of_truth = log_probs.gather(1, labels[:, None]).squeeze(1)

    def slope(b: float) -> float:
        expected = (F.softmax(b * log_probs, dim=1) * log_probs).sum(dim=1)
        prior = PRIOR * (2 * expected - first - second).mean()
        return float((expected - of_truth).sum() + prior)

    def loss(b: float) -> float:
        return float((torch.logsumexp(b * log_probs, dim=1) - b * of_truth).sum())

    inverse = _zero_of(slope, 1 / MOST, 1 / LEAST)
    is_surer = inverse > 1
    if is_surer and 2 * (loss(1.0) - loss(inverse)) < _EVIDENCE:
        return 1.0
    return 1 / inverse


def match_confidence(log_probabilities: Tensor, share: float) -> float:
    """The temperature from 1 on at which the mean confidence is a share; without any label.

    The share of D_u on which the adapted model and S+T agree is near the share on which the adapted model is right:
    both are wrong together on some images, and only S+T is wrong on about as many.

    Args:
        log_probabilities: (N, K).
        share: The mean confidence to have, such as how often another model agrees.
    """
    log_probs = _checked(log_probabilities)

    def missing(b: float) -> float:
        return float(F.softmax(b * log_probs, dim=1).max(dim=1).values.mean()) - share

    return 1 / _zero_of(missing, 1 / MOST, 1.0)


def accept_at_precision(probabilities: Tensor, precision: float) -> Tensor:
    """Which predictions to accept: as many of the most probable as have a mean probability of the precision, (N,) bool.

    The mean of calibrated probabilities is the share that is expected to be right. Of equal probabilities the first
    are accepted; NaN, of images without a prediction, never is.

    Args:
        probabilities: Of the predicted classes, (N,), calibrated.
        precision: Share of the accepted ones that should be right, above 0 and up to 1.

    Example:
        >>> accept_at_precision(torch.tensor([0.5, 0.99, 0.92, 0.9]), 0.93).tolist()
        [False, True, True, True]
    """
    if not 0 < precision <= 1:
        raise DataError(f"precision must be a number above 0 and up to 1, such as 0.95, got {precision!r}.")
    if probabilities.ndim != 1:
        raise DataError(f"probabilities must be a tensor (N,), got {describe(probabilities)}.")
    ordered, order = probabilities.double().nan_to_num(nan=-math.inf).sort(descending=True, stable=True)
    means = ordered.cumsum(dim=0) / torch.arange(1, len(ordered) + 1)
    accepted = torch.zeros(len(ordered), dtype=torch.bool)
    accepted[order[: int((means >= precision - _ROUNDING).sum())]] = True  # means never rise
    return accepted


def _checked(log_probabilities: Tensor) -> Tensor:
    is_table = isinstance(log_probabilities, Tensor) and log_probabilities.ndim == 2 and len(log_probabilities) > 0
    if not is_table or log_probabilities.shape[1] < 2 or bool(log_probabilities.isnan().any()):
        raise DataError(
            f"log_probabilities must be a tensor (N, K) without NaN, N at least 1 and K at least 2, got "
            f"{describe(log_probabilities)}."
        )
    return log_probabilities.double().clamp(min=-700)  # a probability of 0 would be no number times 0


def _zero_of(rising: Callable[[float], float], low: float, high: float) -> float:
    """Where a function that never falls is zero; the nearer end where it is not between them."""
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        if rising(middle) < 0:
            low = middle
        else:
            high = middle
    return (low + high) / 2
