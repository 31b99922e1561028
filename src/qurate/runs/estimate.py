"""How often the model is right, from the answers to images that were drawn at random."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from itertools import takewhile
from typing import NamedTuple

from qurate.runs.answers import Answer

_Z = 1.959964  # of a normal distribution, for 95 %


class Estimate(NamedTuple):
    """Accuracy on a random sample.

    Args:
        images: How many images the person gave a class or called wrong.
        right: Of how many of them the model had said it.
        none: Images of the sample that belong to no class; they are not counted.
        low: Lower end of the 95 % interval of the accuracy on all images; 0 where there are none.
        high: Upper end; 1 where there are none.
    """

    images: int
    right: int
    none: int
    low: float
    high: float


def estimate_accuracy(order: Iterable[str], answers: Mapping[str, Answer], predicted: Mapping[str, str]) -> Estimate:
    """Count the answers to a random sample, up to the first image that still lacks one.

    Hard images are put off more often than easy ones. So answers behind a gap do not count before it is closed, and
    neither do answers that the sample only happens to share with other questions. Who says only that an image is not
    what another model, or a pseudo-label, took it for has not said whether this model is right.

    Args:
        order: All files in a random order; the sample is its beginning.
        answers: What counts for each file.
        predicted: What the model says of each.
    """
    sample = takewhile(lambda file: tells(answers.get(file), predicted[file]), order)
    return count_right(answers[file]._replace(predicted=predicted[file]) for file in sample)


def tells(answer: Answer | None, predicted: str) -> bool:
    """Whether an answer says if the model is right; one that denies another class than the model's does not.

    Args:
        answer: If there is one.
        predicted: What the model says of the image.
    """
    return answer is not None and (answer.answer != "wrong" or answer.predicted == predicted)


def count_right(sample: Iterable[Answer]) -> Estimate:
    """How often the model was right on images that were drawn at random, by what it said when they were asked about.

    Args:
        sample: The answers to them.
    """
    kinds = [(answer.answer, answer.label == answer.predicted) for answer in sample]
    judged = [is_right for kind, is_right in kinds if kind != "none"]
    return Estimate(len(judged), sum(judged), len(kinds) - len(judged), *wilson_interval(sum(judged), len(judged)))


def wilson_interval(right: int, total: int) -> tuple[float, float]:
    """Wilson's 95 % interval of a share; it is honest also of few images, and of none or all of them right.

    Example:
        >>> [round(end, 3) for end in wilson_interval(9, 10)]
        [0.596, 0.982]
    """
    if not total:
        return 0.0, 1.0
    share, square = right / total, _Z**2 / total
    middle = (share + square / 2) / (1 + square)
    half = _Z / (1 + square) * math.sqrt(share * (1 - share) / total + square / (4 * total))
    return min(share, max(0.0, middle - half)), max(share, min(1.0, middle + half))  # but for rounding
