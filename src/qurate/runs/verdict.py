"""Does adaptation help? A verdict from few labelled and many unlabelled target images; pure functions of tensors.

The gain is the accuracy of the model minus that of S+T. Only images on which the two disagree contribute: with delta
the share of D_u on which they do, gain = theta * delta with theta between -1 and 1. The estimate of theta combines a
prior and two pieces of evidence, each normal.

1. The prior: mean 0, deviation `SPREAD`.
2. The unlabelled evidence: how sure each of the two is where they disagree. The margin of a model on such an image is
   the calibrated probability of its own class minus that of the other's class; the evidence is the mean margin of the
   model minus that of S+T. Its deviation from theta is `UNLABELED_ERROR`.
3. The labelled evidence: labelled images, each predicted by models that were not trained on it. Averaged is not
   correctness, 0 or 1, but

       p_y + max p - sum_k p_k^2,

   whose mean is the accuracy wherever the probabilities p are calibrated, and which varies less from image to image.
   Its deviation is the standard error of that mean, and `FOLD_ERROR`: models trained on all labelled images are not
   those of the folds.

The posterior of theta is normal; its mean is that of the three weighted by 1 / deviation^2. The interval holds its
middle 95 %. The verdict is 'helps' where the whole interval is above 0, 'harms' where it is below, else 'unclear'.
docs/verdict.md counts how often the interval holds the true gain.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from qurate.calibration import at_temperature, fit_temperature
from qurate.run_results import Gain
from qurate.selection.crossfit import HeldOut

SPREAD = 0.5
"""Prior deviation of theta. Our choice; measured: docs/verdict.md."""
UNLABELED_ERROR = 0.5
"""Deviation of the unlabelled evidence from theta. Our choice: with 0.35 the interval held 92 % of the gains of the
tuning runs, with this 95 %. Measured alone it is less: docs/verdict.md."""
FOLD_ERROR = 0.1
"""Deviation of theta of the folds' models from that of the final ones. Our choice; measured: docs/verdict.md."""
PRIOR_IMAGES = 5.0
"""Images that are added to the labelled ones when their variance is estimated, as if on a share delta of them exactly
one model were right. Our choice: three images that agree prove little."""
_Z95 = 1.959963984540054


@dataclass(frozen=True)
class Evidence:
    """A normal estimate of theta: its value and deviation."""

    value: float
    deviation: float


@dataclass(frozen=True)
class GainEstimate:
    """The gain over S+T, and what it was estimated from.

    Args:
        gain: In accuracy.
        disagreement: delta, the share of D_u on which the two differ.
        unlabeled: Evidence of D_u.
        labeled: Evidence of the labelled images.
    """

    gain: Gain
    disagreement: float
    unlabeled: Evidence
    labeled: Evidence


def verdict_of(gain: Gain) -> Literal["helps", "unclear", "harms"]:
    """The sign of a gain, where its interval excludes 0."""
    return "helps" if gain.low > 0 else "harms" if gain.high < 0 else "unclear"


def estimate_gain(held_out: HeldOut, adapted: Tensor, baseline: Tensor) -> GainEstimate:
    """Estimate the gain from labelled and unlabelled target images.

    Args:
        held_out: Labelled images by models that were not trained on them; `adapted` is calibrated.
        adapted: Calibrated log-probabilities of D_u by the model, (N_u, K).
        baseline: Log-probabilities by S+T, (N_u, K).
    """
    temperature = fit_temperature(held_out.baseline, held_out.labels)
    values = [
        soft_right(probabilities, held_out.labels)
        for probabilities in (held_out.adapted.double().exp(), at_temperature(held_out.baseline.double(), temperature))
    ]
    both = adapted.double().exp(), at_temperature(baseline.double(), temperature)
    disagreement = float((adapted.argmax(dim=1) != baseline.argmax(dim=1)).double().mean())
    unlabeled = Evidence(difference_of_margins(*both), UNLABELED_ERROR)
    labeled = labeled_evidence(mean_per_image(held_out.images, values[0] - values[1]), disagreement)
    return GainEstimate(posterior(disagreement, unlabeled, labeled), disagreement, unlabeled, labeled)


def soft_right(probabilities: Tensor, labels: Tensor) -> Tensor:
    """p_y + max p - sum_k p_k^2, (N,): its mean is the accuracy where the probabilities are calibrated."""
    of_truth = probabilities.gather(1, labels[:, None]).squeeze(1)
    return of_truth + probabilities.max(dim=1).values - probabilities.square().sum(dim=1)


def difference_of_margins(first: Tensor, second: Tensor) -> float:
    """How much surer the first model is than the second where they disagree, from -1 to 1; 0 where they never do.

    Args:
        first: Its probabilities, (N, K).
        second: Those of the other, (N, K).
    """
    named = first.argmax(dim=1), second.argmax(dim=1)
    disputed = (named[0] != named[1]).nonzero().squeeze(1)
    if not len(disputed):
        return 0.0
    one, other = (each[disputed] for each in named)
    return float(sum((p[disputed, one] - p[disputed, other]).mean() for p in (first, second)))


def mean_per_image(images: Tensor, values: Tensor) -> Tensor:
    """The mean value of each image over its repetitions, in the order of the sorted images."""
    once, place = images.unique(return_inverse=True)
    total = torch.zeros(len(once), dtype=torch.float64).index_add(0, place, values.double())
    return total / torch.bincount(place)


def labeled_evidence(differences: Tensor, disputed: float) -> Evidence:
    """Evidence of the labelled images; none where the models never disagree.

    Args:
        differences: In accuracy, one for each image, (n,).
        disputed: delta.
    """
    if not disputed:
        return Evidence(0.0, 1e6)
    middle, count = float(differences.mean()), len(differences)
    squares = float((differences - middle).square().sum()) + PRIOR_IMAGES * disputed
    error = math.sqrt(squares / (count - 1 + PRIOR_IMAGES) / count)
    return Evidence(middle / disputed, math.hypot(error / disputed, FOLD_ERROR))


def posterior(disputed: float, unlabeled: Evidence, labeled: Evidence) -> Gain:
    """The gain and its interval; `disputed` is delta, the largest possible gain."""
    precisions = [1 / evidence.deviation**2 for evidence in (unlabeled, labeled)]
    total = sum(precisions) + 1 / SPREAD**2
    values = unlabeled.value, labeled.value
    middle = sum(precision * value for precision, value in zip(precisions, values, strict=True)) / total
    half = _Z95 / math.sqrt(total)
    low, high = (max(-1.0, min(1.0, middle + side * half)) for side in (-1, 1))  # |theta| is at most 1
    smallest = _Z95 * math.sqrt(total) / sum(precisions)
    return Gain(
        max(-1.0, min(1.0, middle)) * disputed + 0.0,  # not -0.0
        low * disputed + 0.0,
        high * disputed + 0.0,
        smallest * disputed if disputed and smallest <= 1 else math.inf,
    )


def images_needed(estimate: GainEstimate, images: int, gain: float) -> int | None:
    """How many labelled images, of the same kind, would show a gain half of the time.

    Args:
        estimate: From the images at hand.
        images: How many those are.
        gain: To be shown, from 0 to 1.

    Returns:
        None where ten thousand would not do.
    """
    sampling = max(0.0, estimate.labeled.deviation**2 - FOLD_ERROR**2)
    for more in (round(1.05**power) for power in range(190)):
        deviation = math.sqrt(sampling * images / (images + more) + FOLD_ERROR**2)
        labeled = Evidence(estimate.labeled.value, deviation)
        if posterior(estimate.disagreement, estimate.unlabeled, labeled).smallest <= gain:
            return images + more
    return None
