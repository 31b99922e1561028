"""Does adaptation help? A verdict from few labelled and many unlabelled target images; pure functions of tensors.

The gain is the accuracy of the adapted model minus that of S+T. Only images on which the two disagree contribute: with
delta the share of D_u on which they do, gain = theta * delta with theta between -1 and 1. The estimate of theta
combines a prior and two pieces of evidence, each normal.

1. The prior: mean 0, deviation `SPREAD`.
2. The unlabelled evidence. Where the two models disagree, the probability of each of the two classes is taken from the
   product of the models' probabilities, each at the temperature fitted on the held-out labelled images, times the
   estimated class proportion. The evidence is the expected share of those images on which the adapted model is right,
   minus that on which S+T is. Its deviation from theta is `UNLABELED_ERROR`.
3. The labelled evidence: labelled images, each predicted by models that were not trained on it. Averaged is not
   correctness, 0 or 1, but

       p_y + max p - sum_k p_k^2,

   whose mean is the accuracy wherever the probabilities p are calibrated, and which varies less from image to image.
   Classes are weighted by their frequency in D_u, or equally for balanced accuracy. Its deviation is the standard error
   of that mean, and `FOLD_ERROR`: models trained on all labelled images are not those of the folds.

The posterior of theta is normal; its mean is that of the three weighted by 1 / deviation^2. With few labelled images
the unlabelled evidence decides, with many the labelled evidence. The verdict is 'helps' if theta is above 0 with
probability `SURE`, 'harms' if it is below 0 with that probability, else 'unclear'.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor
from torch.nn import functional as F

from qurate.run_results import Gain
from qurate.selection.crossfit import HeldOut

SPREAD = 0.35
"""Prior deviation of theta. Our choice; measured: docs/verdict.md."""
UNLABELED_ERROR = 0.3
"""Deviation of the unlabelled evidence from theta. Our choice; measured: docs/verdict.md."""
FOLD_ERROR = 0.15
"""Deviation of theta of the folds' models from that of the final ones. Our choice."""
SURE = 0.95
"""Least probability of a verdict. Our choice."""
PRIOR_IMAGES = 5.0
"""Images that are added to the labelled ones when their variance is estimated, as if on a share delta of them exactly
one model were right. Our choice: three images that agree prove little."""
_LEAST = -200.0  # a log-probability; two models that give a class no chance at all must still add up
_Z95 = 1.959963984540054
_Z_SURE = float(torch.distributions.Normal(0.0, 1.0).icdf(torch.tensor(SURE, dtype=torch.float64)))


@dataclass(frozen=True)
class Evidence:
    """A normal estimate of theta: its value and deviation."""

    value: float
    deviation: float


@dataclass(frozen=True, eq=False)
class GainEstimate:
    """The gain of the adapted model over S+T, and what it was estimated from.

    Args:
        gain: In accuracy, with the class frequencies of D_u.
        balanced: In balanced accuracy.
        disagreement: delta, the share of D_u on which the two differ.
        proportions: Estimated class proportions of D_u, (K,).
        unlabeled: Evidence of D_u.
        labeled: Evidence of the labelled images.
    """

    gain: Gain
    balanced: Gain
    disagreement: float
    proportions: Tensor
    unlabeled: Evidence
    labeled: Evidence


def verdict_of(gain: Gain) -> Literal["helps", "unclear", "harms"]:
    """The sign of a gain, where it is sure enough."""
    return "helps" if gain.chance >= SURE else "harms" if gain.chance <= 1 - SURE else "unclear"


def estimate_gain(held_out: HeldOut, adapted: Tensor, baseline: Tensor) -> GainEstimate:
    """Estimate the gain from labelled and unlabelled target images.

    Args:
        held_out: Log-probabilities of labelled images by models that were not trained on them.
        adapted: Log-probabilities of D_u by the adapted model, (N_u, K).
        baseline: Those by S+T, (N_u, K).
    """
    labels, n_classes = held_out.labels, adapted.shape[1]
    both = [log_probs.double().clamp(min=_LEAST) for log_probs in (held_out.adapted, held_out.baseline)]
    temperatures = [temperature_for(log_probs, labels, held_out.images) for log_probs in both]
    joint = together(adapted.clamp(min=_LEAST), baseline.clamp(min=_LEAST), *temperatures)
    proportions = estimate_proportions(joint)
    joint = joint * proportions
    values = [
        soft_right(F.softmax(log_probs / temperature, dim=1), labels)
        for log_probs, temperature in zip(both, temperatures, strict=True)
    ]
    images, difference = mean_per_image(held_out.images, values[0] - values[1])
    classes = labels[(held_out.images[None, :] == images[:, None]).int().argmax(dim=1)]
    named = adapted.argmax(dim=1), baseline.argmax(dim=1)
    disagreement = float((named[0] != named[1]).double().mean())
    found = []
    for weigh in (torch.ones(n_classes, dtype=torch.float64), 1 / (n_classes * proportions)):
        share, theta = unlabeled_gain(joint, *named, weigh)
        middle, error = weighted_mean(difference, classes, proportions * weigh, share)
        found.append((share, Evidence(theta, UNLABELED_ERROR), labeled_evidence(middle, error, share)))
    gain, balanced = (combine(*one) for one in found)
    _, unlabeled, labeled = found[0]
    return GainEstimate(gain, balanced, disagreement, proportions, unlabeled, labeled)


def temperature_for(log_probs: Tensor, labels: Tensor, images: Tensor) -> float:
    """The temperature T under which the labels are most likely, log T being normal with deviation 0.7 beforehand.

    Not `calibration.fit_temperature`: the constants of this module were chosen with this prior, and with the other one
    a dozen images were enough for a verdict.

    Args:
        log_probs: Log-probabilities, (n, K).
        labels: (n,).
        images: Which image each row is of, (n,); an image counts once, however often it comes.
    """
    _, place, counts = images.unique(return_inverse=True, return_counts=True)
    best, lowest = 1.0, math.inf
    for step in range(-30, 51):  # T from 1/20 to 150 in steps of 10 %
        temperature = math.exp(step / 10)
        loss = F.cross_entropy(log_probs / temperature, labels, reduction="none")
        total = float((loss / counts[place]).sum()) + (step / 10) ** 2
        if total < lowest:
            best, lowest = temperature, total
    return best


def together(adapted: Tensor, baseline: Tensor, first: float, second: float) -> Tensor:
    """The product of two models' probabilities, each at its temperature, (N, K), rows of sum 1."""
    return F.softmax(adapted.double() / first + baseline.double() / second, dim=1)


def estimate_proportions(joint: Tensor) -> Tensor:
    """Class proportions by expectation maximisation, (K,); they sum to 1 and none is 0.

    q_nk is proportional to joint_nk * pi_k, pi_k = (sum_n q_nk + a) / (N + K a) with a = N / (10 K): a tenth of the
    images are taken to be even over the classes, for these probabilities are not exact. Saerens et al., 2002.

    Args:
        joint: Probabilities of D_u under equal class proportions, (N, K).
    """
    count, n_classes = joint.shape
    even = count / (10 * n_classes)
    proportions = torch.full((n_classes,), 1 / n_classes, dtype=torch.float64)
    for _ in range(20):
        posterior = joint * proportions
        posterior = posterior / posterior.sum(dim=1, keepdim=True)
        proportions = (posterior.sum(dim=0) + even) / (count + n_classes * even)
    return proportions


def soft_right(probabilities: Tensor, labels: Tensor) -> Tensor:
    """p_y + max p - sum_k p_k^2, (N,): its mean is the accuracy where the probabilities are calibrated."""
    of_truth = probabilities.gather(1, labels[:, None]).squeeze(1)
    return of_truth + probabilities.max(dim=1).values - probabilities.square().sum(dim=1)


def unlabeled_gain(joint: Tensor, adapted: Tensor, baseline: Tensor, weigh: Tensor) -> tuple[float, float]:
    """On how much of D_u the models disagree, and which is right there.

    Args:
        joint: Probabilities by both models together, (N, K); rows need not sum to 1.
        adapted: Predicted classes of the adapted model, (N,).
        baseline: Those of S+T, (N,).
        weigh: Weight of an image of each class, (K,).

    Returns:
        The weighted share of images on which they disagree; and of these the share on which the adapted model is right
        minus that on which S+T is, from -1 to 1.
    """
    rows = torch.arange(len(joint))
    odds, others = joint[rows, adapted], joint[rows, baseline]
    total = odds + others
    for_adapted = torch.where(total > 0, odds / total, 0.5)  # 0 / 0: both give both classes probability 0
    disputed = (adapted != baseline).double()
    won = (for_adapted * weigh[adapted] * disputed).sum()
    lost = ((1 - for_adapted) * weigh[baseline] * disputed).sum()
    weight = float(won + lost)
    return weight / len(joint), float(won - lost) / weight if weight else 0.0


def weighted_mean(values: Tensor, classes: Tensor, wanted: Tensor, disputed: float) -> tuple[float, float]:
    """The mean over images with the classes at given frequencies, and its standard error.

    Args:
        values: Of the images, (n,).
        classes: Of the images, (n,); a class without an image is left out.
        wanted: Frequencies of the classes, (K,); they need not sum to 1.
        disputed: Share of images on which the models differ, for `PRIOR_IMAGES`.
    """
    counts = torch.bincount(classes, minlength=len(wanted)).clamp(min=1)
    weights = (wanted.double() / counts)[classes]
    weights = weights / weights.sum()
    middle = float((weights * values).sum())
    squares = float((values - middle).square().sum()) + PRIOR_IMAGES * disputed
    return middle, math.sqrt(squares / (len(values) - 1 + PRIOR_IMAGES) * float(weights.square().sum()))


def mean_per_image(images: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
    """Sorted unique images, and the mean of the values of each over its repetitions."""
    once, place = images.unique(return_inverse=True)
    total = torch.zeros(len(once), dtype=torch.float64).index_add(0, place, values.double())
    return once, total / torch.bincount(place)


def combine(disputed: float, unlabeled: Evidence, labeled: Evidence) -> Gain:
    """The posterior of the gain; `disputed` is delta, the largest possible gain."""
    precisions = [1 / evidence.deviation**2 for evidence in (unlabeled, labeled)]
    total = sum(precisions) + 1 / SPREAD**2
    values = unlabeled.value, labeled.value
    middle = sum(precision * value for precision, value in zip(precisions, values, strict=True)) / total
    deviation = 1 / math.sqrt(total)
    low, high = (max(-1.0, min(1.0, middle + side * _Z95 * deviation)) for side in (-1, 1))  # |theta| is at most 1
    smallest = _Z_SURE * math.sqrt(total) / sum(precisions)
    return Gain(
        max(-1.0, min(1.0, middle)) * disputed + 0.0,  # not -0.0
        low * disputed + 0.0,
        high * disputed + 0.0,
        0.5 * (1 + math.erf(middle / deviation / math.sqrt(2))),
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
        if combine(estimate.disagreement, estimate.unlabeled, labeled).smallest <= gain:
            return images + more
    return None


def labeled_evidence(middle: float, error: float, disputed: float) -> Evidence:
    """Evidence of the labelled images: (middle +- error) / delta; none where the models never disagree."""
    if not disputed:
        return Evidence(0.0, 1e6)
    return Evidence(middle / disputed, math.hypot(error / disputed, FOLD_ERROR))
