"""Is it helping? A verdict from few labelled and many unlabelled target images; pure functions of tensors.

The gain is the accuracy of the adapted model less that of S+T. Only images on which the two disagree can make it: with
delta the share of D_u on which they do, gain = theta * delta with theta between -1 and 1. Three things tell of theta.

1. Before anything is seen it is as likely below 0 as above: normal, with deviation `SPREAD`.
2. The lean of D_u. Where the two disagree, each class that is named is as probable as both models together hold it: by
   the product of their probabilities, each at the temperature that the held-out labelled images ask for, times the
   estimated proportion of the class. The lean is the share of those images on which the adapted model is then right,
   less that on which S+T is. It is right about theta up to a deviation of `LEAN_ERROR`.
3. The labelled images, each judged by models that had not seen it. What is averaged is not right or wrong but

       p_y + max p - sum_k p_k^2,

   of which the mean is the accuracy wherever the probabilities p are honest, and which varies less from image to image.
   Classes count as often as they come in D_u, or all alike for balanced accuracy. The mean is right up to its standard
   error, and up to `FOLD_ERROR`: models that saw all labelled images are not those of the folds.

Each speaks as loud as it is sharp: theta is normal, its mean that of the three weighed by 1 / deviation^2. With few
labelled images the lean decides, with many they do. The verdict is 'helps' if theta is above 0 with a probability of
`SURE`, 'harms' if it is below 0 with that probability, else 'unclear'.
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

Verdict = Literal["helps", "unclear", "harms"]

SPREAD = 0.35
"""Deviation of theta before anything is seen. Our choice; measured: docs/verdict.md."""
LEAN_ERROR = 0.3
"""Deviation of the lean from theta. Our choice; measured: docs/verdict.md."""
FOLD_ERROR = 0.15
"""Deviation of theta of the folds' models from that of the final ones. Our choice."""
SURE = 0.95
"""Probability from which on there is a verdict. Our choice."""
BORROWED = 5.0
"""Images that are added to the labelled ones when their variance is estimated, as if on a share delta of them one
model alone were right. Our choice: three images that say the same prove little."""
_LEAST = -200.0  # a log-probability; two models that give a class no chance at all must still add up
_Z95 = 1.959963984540054
_ITERATIONS = 20  # of the class proportions


@dataclass(frozen=True)
class Voice:
    """What one source says of theta: a value and its deviation."""

    value: float
    deviation: float


@dataclass(frozen=True, eq=False)
class Judgement:
    """The adapted model against S+T.

    Args:
        gain: Of the accuracy on images as frequent as in D_u.
        balanced: Of the mean accuracy over classes.
        disagreement: Share of D_u on which the two differ.
        proportions: Of the classes in D_u, estimated, (K,).
        lean: What D_u says of theta.
        labeled: What the labelled images say of theta.
    """

    gain: Gain
    balanced: Gain
    disagreement: float
    proportions: Tensor
    lean: Voice
    labeled: Voice


def verdict_of(gain: Gain) -> Verdict:
    """What can be said of the sign of a gain."""
    return "helps" if gain.chance >= SURE else "harms" if gain.chance <= 1 - SURE else "unclear"


def judge(held_out: HeldOut, adapted: Tensor, baseline: Tensor) -> Judgement:
    """Weigh all that is known.

    Args:
        held_out: Log-probabilities of labelled images by models that did not see them.
        adapted: Log-probabilities of D_u by the adapted model, (N_u, K).
        baseline: Those by S+T, (N_u, K).
    """
    labels, n_classes = held_out.labels, adapted.shape[1]
    both = [said.double().clamp(min=_LEAST) for said in (held_out.adapted, held_out.baseline)]
    temperatures = [temperature_for(said, labels, held_out.images) for said in both]
    opinion = together(adapted.clamp(min=_LEAST), baseline.clamp(min=_LEAST), *temperatures)
    proportions = estimate_proportions(opinion)
    opinion = opinion * proportions
    values = [
        soft_right(F.softmax(said / temperature, dim=1), labels)
        for said, temperature in zip(both, temperatures, strict=True)
    ]
    images, difference = mean_per_image(held_out.images, values[0] - values[1])
    classes = labels[_first_of_each(held_out.images, images)]
    named = adapted.argmax(dim=1), baseline.argmax(dim=1)
    disagreement = float((named[0] != named[1]).double().mean())
    found = []
    for weigh in (torch.ones(n_classes, dtype=torch.float64), 1 / (n_classes * proportions)):
        share, lean = lean_of(opinion, *named, weigh)
        middle, error = weighted_mean(difference, classes, proportions * weigh, share)
        found.append((share, Voice(lean, LEAN_ERROR), _voice(middle, error, share)))
    gain, balanced = (combine(*one) for one in found)
    _, lean_said, labeled_said = found[0]
    return Judgement(gain, balanced, disagreement, proportions, lean_said, labeled_said)


def temperature_for(said: Tensor, labels: Tensor, images: Tensor) -> float:
    """The temperature T under which the labels are most likely, log T being normal with deviation 0.7 beforehand.

    Not `calibration.fit_temperature`: the constants of this module were chosen with this prior, and with the other one
    a dozen images were enough for a verdict.

    Args:
        said: Log-probabilities, (n, K).
        labels: (n,).
        images: Which image each row is of, (n,); an image counts once, however often it comes.
    """
    _, place, counts = images.unique(return_inverse=True, return_counts=True)
    best, lowest = 1.0, math.inf
    for step in range(-30, 51):  # T from 1/20 to 150 in steps of 10 %
        temperature = math.exp(step / 10)
        loss = F.cross_entropy(said / temperature, labels, reduction="none")
        total = float((loss / counts[place]).sum()) + (step / 10) ** 2
        if total < lowest:
            best, lowest = temperature, total
    return best


def together(adapted: Tensor, baseline: Tensor, first: float, second: float) -> Tensor:
    """The product of two models' probabilities, each at its temperature, (N, K), rows of sum 1."""
    return F.softmax(adapted.double() / first + baseline.double() / second, dim=1)


def estimate_proportions(opinion: Tensor) -> Tensor:
    """Class proportions by expectation maximisation, (K,); they sum to 1 and none is 0.

    q_nk is proportional to opinion_nk * pi_k, pi_k = (sum_n q_nk + a) / (N + K a) with a = N / (10 K): a tenth of the
    images are held to be even over the classes, for the opinion is not quite right. Saerens et al., 2002.

    Args:
        opinion: Probabilities of D_u where all classes are as likely, (N, K).
    """
    count, n_classes = opinion.shape
    even = count / (10 * n_classes)
    proportions = torch.full((n_classes,), 1 / n_classes, dtype=torch.float64)
    for _ in range(_ITERATIONS):
        posterior = opinion * proportions
        posterior = posterior / posterior.sum(dim=1, keepdim=True)
        proportions = (posterior.sum(dim=0) + even) / (count + n_classes * even)
    return proportions


def soft_right(probabilities: Tensor, labels: Tensor) -> Tensor:
    """p_y + max p - sum_k p_k^2, (N,): on the mean the accuracy, where the probabilities are honest."""
    of_truth = probabilities.gather(1, labels[:, None]).squeeze(1)
    return of_truth + probabilities.max(dim=1).values - probabilities.square().sum(dim=1)


def lean_of(opinion: Tensor, adapted: Tensor, baseline: Tensor, weigh: Tensor) -> tuple[float, float]:
    """How much of D_u the two dispute, and who is right there.

    Args:
        opinion: Of both together, (N, K), whatever the sum of its rows.
        adapted: Classes that the adapted model names, (N,).
        baseline: Those that S+T names, (N,).
        weigh: What an image of each class counts, (K,).

    Returns:
        The share of images in dispute, each counted as the class that it is of; and of these the share on which the
        adapted model is right less that on which S+T is, from -1 to 1.
    """
    rows = torch.arange(len(opinion))
    odds, others = opinion[rows, adapted], opinion[rows, baseline]
    for_adapted = torch.where(odds + others > 0, odds / (odds + others), 0.5)  # both give neither class any chance
    disputed = (adapted != baseline).double()
    won = (for_adapted * weigh[adapted] * disputed).sum()
    lost = ((1 - for_adapted) * weigh[baseline] * disputed).sum()
    total = float(won + lost)
    return total / len(opinion), float(won - lost) / total if total else 0.0


def weighted_mean(values: Tensor, classes: Tensor, wanted: Tensor, disputed: float) -> tuple[float, float]:
    """The mean over images as if the classes were as frequent as wanted, and its standard error.

    Args:
        values: Of the images, (n,).
        classes: Of the images, (n,); a class without an image is left out.
        wanted: Frequencies of the classes, (K,), whatever their sum.
        disputed: Share of images on which the models differ, for `BORROWED`.
    """
    counts = torch.bincount(classes, minlength=len(wanted)).clamp(min=1)
    weights = (wanted.double() / counts)[classes]
    weights = weights / weights.sum()
    middle = float((weights * values).sum())
    squares = float((values - middle).square().sum()) + BORROWED * disputed
    return middle, math.sqrt(squares / (len(values) - 1 + BORROWED) * float(weights.square().sum()))


def mean_per_image(images: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
    """Images in order, each once, and the mean of its values over all repetitions."""
    once, place = images.unique(return_inverse=True)
    total = torch.zeros(len(once), dtype=torch.float64).index_add(0, place, values.double())
    return once, total / torch.bincount(place)


def combine(disputed: float, lean: Voice, labeled: Voice) -> Gain:
    """What all sources together say of the gain.

    Args:
        disputed: delta, the most that it can be.
        lean: Of D_u.
        labeled: Of the labelled images.
    """
    sharpness = [1 / voice.deviation**2 for voice in (lean, labeled)]
    total = sum(sharpness) + 1 / SPREAD**2
    middle = sum(sharp * voice.value for sharp, voice in zip(sharpness, (lean, labeled), strict=True)) / total
    deviation = 1 / math.sqrt(total)
    low, high = (max(-1.0, min(1.0, middle + side * _Z95 * deviation)) for side in (-1, 1))  # |theta| is at most 1
    smallest = _needed() * math.sqrt(total) / sum(sharpness)
    return Gain(
        max(-1.0, min(1.0, middle)) * disputed + 0.0,  # not -0.0
        low * disputed + 0.0,
        high * disputed + 0.0,
        0.5 * (1 + math.erf(middle / deviation / math.sqrt(2))),
        smallest * disputed if disputed and smallest <= 1 else math.inf,
    )


def images_needed(judgement: Judgement, images: int, gain: float) -> int | None:
    """How many labelled images, of the kind that there are, would show a gain half of the time.

    Args:
        judgement: From the images that there are.
        images: How many those are.
        gain: To be seen, from 0 to 1.

    Returns:
        None where ten thousand would not do.
    """
    sampling = max(0.0, judgement.labeled.deviation**2 - FOLD_ERROR**2)
    for more in (round(1.05**power) for power in range(190)):
        deviation = math.sqrt(sampling * images / (images + more) + FOLD_ERROR**2)
        labeled = Voice(judgement.labeled.value, deviation)
        if combine(judgement.disagreement, judgement.lean, labeled).smallest <= gain:
            return images + more
    return None


def _voice(middle: float, error: float, disputed: float) -> Voice:
    """What the labelled images say of theta; nothing where nothing is in dispute."""
    if not disputed:
        return Voice(0.0, 1e6)
    return Voice(middle / disputed, math.hypot(error / disputed, FOLD_ERROR))


def _first_of_each(images: Tensor, once: Tensor) -> Tensor:
    return (images[None, :] == once[:, None]).int().argmax(dim=1)


def _needed() -> float:
    """Deviations from 0 from which on there is a verdict."""
    return float(torch.distributions.Normal(0.0, 1.0).icdf(torch.tensor(SURE, dtype=torch.float64)))
